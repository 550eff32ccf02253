//! The main function of a daemon: arguments, configuration file, exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser};
use csp_control::{ConfigError, exit_code};

use crate::DaemonError;

/// The arguments that every daemon takes.
#[derive(Args, Debug)]
pub struct ConfigFile {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Only check the configuration.
    #[arg(long, alias = "check")]
    pub check_config: bool,
}

/// Parses the arguments as `A`, reads the configuration file that `file` selects from them with `load`, and passes the
/// configuration to `run`. Errors are printed to standard error after the name of `program`, and become exit codes.
pub fn main<A: Parser, C>(
    program: &str,
    file: impl FnOnce(&A) -> &ConfigFile,
    load: impl FnOnce(&Path) -> Result<C, ConfigError>,
    run: impl FnOnce(C) -> Result<(), DaemonError>,
) -> ExitCode {
    let arguments = match A::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print(); // if standard error is closed, the exit code remains
            return if error.use_stderr() { exit_code::USAGE } else { exit_code::OK }.into();
        }
    };
    let ConfigFile { config: path, check_config } = file(&arguments);
    let ended = match load(path) {
        Ok(_) if *check_config => {
            println!("{}: the configuration is right", path.display());
            Ok(())
        }
        Ok(config) => {
            raise_descriptor_limit(program);
            run(config)
        }
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(()) => exit_code::OK.into(),
        Err(error) => {
            eprintln!("{program}: {error}");
            error.exit_code().into()
        }
    }
}

/// Raises the limit of open files to the operator's maximum: VIs of processes, connections in custody and links each
/// use descriptors.
fn raise_descriptor_limit(program: &str) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("{program}: the limit of open files cannot be raised: {error}");
    }
}

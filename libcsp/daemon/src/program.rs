//! The main function of a daemon: arguments, configuration file, exit code.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser};
pub use clap_complete::Shell;
use csp_control::{ConfigError, exit_code};

use crate::DaemonError;

/// The arguments that every daemon takes.
#[derive(Args, Debug)]
pub struct ConfigFile {
    /// The configuration file (YAML).
    #[arg(long, value_name = "FILE", required_unless_present = "completions")]
    pub config: Option<PathBuf>,
    /// Only check the configuration.
    #[arg(long, alias = "check")]
    pub check_config: bool,
    /// Print a completion script for a shell, for packages.
    #[arg(long, value_name = "SHELL", hide = true)]
    pub completions: Option<Shell>,
}

/// Parses the arguments as `A`, reads the configuration file that `file` selects from them with `load`, and
/// passes the configuration to `run`. Errors are printed to standard error after the name of `program`, and
/// become exit codes.
pub fn main<A: Parser, C>(
    program: &str,
    file: impl FnOnce(&A) -> &ConfigFile,
    load: impl FnOnce(&Path) -> Result<C, ConfigError>,
    run: impl FnOnce(C) -> Result<(), DaemonError>,
) -> ExitCode {
    let arguments: A = match parse() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let ConfigFile { config, check_config, completions } = file(&arguments);
    if let Some(shell) = completions {
        return print_completions::<A>(program, *shell);
    }
    // The parser requires the file unless completions are requested.
    let path = config.as_deref().unwrap_or(Path::new(""));
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
    exit_code_of(program, ended)
}

/// Parses the arguments of this process. What is wrong with them, or the help that they ask for, is printed;
/// the exit code is returned then.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        let _ = error.print(); // if standard error is closed, the exit code remains
        if error.use_stderr() { exit_code::USAGE } else { exit_code::OK }.into()
    })
}

/// Returns the exit code of a program that has ended so. An error is printed to standard error after the name
/// of `program`.
pub fn exit_code_of(program: &str, ended: Result<(), DaemonError>) -> ExitCode {
    match ended {
        Ok(()) => exit_code::OK.into(),
        Err(error) => {
            eprintln!("{program}: {error}");
            error.exit_code().into()
        }
    }
}

/// Writes the completion script of the command line `A` to standard output. A reader that closes the pipe
/// early is no error.
pub fn print_completions<A: CommandFactory>(program: &str, shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut A::command(), program, &mut script);
    match std::io::stdout().write_all(&script) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("{program}: the completion script cannot be written: {error}");
            exit_code::UNAVAILABLE.into()
        }
        _ => exit_code::OK.into(),
    }
}

/// Raises the limit of open files to the operator's maximum: VIs of processes, connections in custody and
/// links each use descriptors.
pub fn raise_descriptor_limit(program: &str) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        eprintln!("{program}: the limit of open files cannot be raised: {error}");
    }
}

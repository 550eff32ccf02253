//! `csp-mgmt-node`: see `csp-mgmt-node --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use csp_control::exit_code;
use csp_mgmt_node::config::MgmtConfig;
use csp_mgmt_node::daemon::{self, Arguments};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = if error.use_stderr() { exit_code::USAGE } else { exit_code::OK };
            let _ = error.print();
            return code.into();
        }
    };
    let config = match MgmtConfig::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("csp-mgmt-node: the configuration is wrong:\n{error}");
            return exit_code::CONFIG.into();
        }
    };
    if arguments.check {
        println!("{}: right", arguments.config.display());
        return exit_code::OK.into();
    }
    let format = match config.log.format {
        csp_control::LogFormat::Text => csp_telemetry::LogFormat::Text,
        csp_control::LogFormat::Json => csp_telemetry::LogFormat::Json,
    };
    if let Err(error) = csp_telemetry::init_logging(&config.log.level, format) {
        eprintln!("csp-mgmt-node: {}: log.level: {error}", arguments.config.display());
        return exit_code::CONFIG.into();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("csp-mgmt-node: cannot start: {error}");
            return exit_code::INTERNAL.into();
        }
    };
    match runtime.block_on(daemon::run(config)) {
        Ok(()) => exit_code::OK.into(),
        Err(error) => {
            eprintln!("csp-mgmt-node: {error}");
            error.exit_code().into()
        }
    }
}

//! `csp-mgmt-node`: see `csp-mgmt-node --help`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use csp_daemon::program;
use csp_mgmt_node::config::MgmtConfig;
use csp_mgmt_node::daemon::{self, Arguments};

fn main() -> ExitCode {
    program::main("csp-mgmt-node", |arguments: &Arguments| &arguments.file, MgmtConfig::load, daemon::run)
}

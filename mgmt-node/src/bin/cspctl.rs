//! `cspctl`: see `cspctl --help`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    csp_mgmt_node::cli::main().into()
}

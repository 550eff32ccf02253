//! libcsp's example server as a further service of the demo.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use csp_cluster::VIP;

use super::Machines;

/// The service's port.
pub const PORT: u16 = 8081;

/// The directory of the library in the source tree.
const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../libcsp/capi");

/// Adds the service to the policy.
pub fn add_service(policy: &str) -> String {
    let service = format!(
        "  - name: files\n    vip: {VIP}\n    port: {PORT}\n    pool:\n      - {{node: an-1, port: {PORT}}}\negress:"
    );
    policy.replacen("egress:", &service, 1)
}

/// Links the built library and compiles the server into `folder`.
pub fn compile(binaries: &Path, folder: &Path) -> Result<()> {
    let mut link = Command::new(format!("{LIBRARY}/link.sh"));
    succeed(link.arg(binaries.join("libcsp.a")).arg(folder))?;
    let mut compile = Command::new("cc");
    compile.arg("-O2").arg("-o").arg(folder.join("http_server"));
    compile.arg(format!("{LIBRARY}/examples/http_server.c")).arg(format!("-I{LIBRARY}/include"));
    compile.arg(format!("-L{}", folder.display())).arg("-lcsp");
    succeed(compile.arg(format!("-Wl,-rpath,{}", folder.display())))
}

fn succeed(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

impl Machines {
    pub(super) fn start_library(&mut self) -> Result<()> {
        let dir = self.scratch.0.display().to_string();
        let agent = format!("CSP_AGENT={dir}/run/agent.sock");
        let address = format!("0.0.0.0:{PORT}");
        let (program, www) = (format!("{dir}/http_server"), format!("{dir}/www"));
        let application = self.application();
        self.start(application, "http_server", &["/usr/bin/env", &agent, &program, &address, &www])
    }

    /// Checks that the server has opened the RDMA device itself, so that the agent does not relay.
    pub(super) fn has_device_open(&mut self) -> Result<()> {
        let application = self.application();
        let command = "ls -l /proc/$(pgrep -x http_server)/fd | grep -c uverbs";
        self.shell(application, command).map(drop).context("http_server has no RDMA device open")
    }
}

//! Node.js with a cluster of two workers.

use std::time::Duration;

use anyhow::{Result, bail};

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

pub const ROWS: [Row; 1] = [Row {
    name: "node",
    program: "Node.js, a cluster of 2",
    version: &["node", "--version"],
    driven: "files and an upload by curl; wrk and a checking client; both workers answer",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let script = stage.hosts.write("cluster.js", include_str!("../../apps/cluster.js"))?;
    let (port, www) = (http::PORT.to_string(), stage.hosts.path("www"));
    stage.start("node", "node", &[&script, &port, &www])?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    let figures = http::under_load(stage, http::SHORT, 0, |_| Ok(()))?;
    let url = format!("http://{VIP}:{}/1KiB?[1-16]", http::PORT);
    let arguments = ["-sSf", "-m", "10", "-H", "Connection: close", "-o", "/dev/null", "-D", "-", &url];
    let heads = stage.hosts.client("curl", &arguments)?;
    for worker in ["1", "2"] {
        if !heads.lines().any(|line| line.eq_ignore_ascii_case(&format!("X-Worker: {worker}"))) {
            bail!("no answer from worker {worker}:\n{heads}");
        }
    }
    Ok(figures)
}

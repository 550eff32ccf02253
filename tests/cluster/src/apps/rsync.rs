//! rsync as a daemon: a child for each connection.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::http::same;
use super::stage::{FILES, Stage};
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 873;
const ROUNDS: usize = 3;

pub const ROWS: [Row; 1] = [Row {
    name: "rsync",
    program: "rsync, as a daemon",
    version: &["rsync", "--version"],
    driven: "files of 0 B to 16 MiB there and back, and again, digests compared",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    fs::create_dir_all(stage.hosts.path("up"))?;
    let conf = format!(
        "use chroot = no\nuid = root\ngid = root\nlog file = {dir}/log/rsync.error\npid file = {dir}/rsync.pid\n\
         [www]\n  path = {dir}/www\n[up]\n  path = {dir}/up\n  read only = no\n"
    );
    let conf = stage.hosts.write("rsyncd.conf", &conf)?;
    let (port, config) = (PORT.to_string(), format!("--config={conf}"));
    stage.start("rsync", "/usr/bin/rsync", &["--daemon", "--no-detach", "--port", &port, &config])?;
    stage.wait_port(PORT)?;
    for round in 0..ROUNDS {
        let down = stage.hosts.path(&format!("down{round}"));
        stage.hosts.client("rsync", &["-a", &format!("rsync://{VIP}:{PORT}/www/"), &down])?;
        stage.hosts.client("rsync", &["-a", &format!("{down}/"), &format!("rsync://{VIP}:{PORT}/up/")])?;
        for (name, _) in FILES {
            same(&stage.hosts.path(&format!("up/{name}")), &stage.hosts.path(&format!("www/{name}")))?;
            fs::remove_file(stage.hosts.path(&format!("up/{name}")))?;
        }
    }
    stage.alive()?;
    Ok(format!("{ROUNDS} rounds of {} files there and back", FILES.len()))
}

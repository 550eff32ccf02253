//! memcached with four threads.

use std::time::Duration;

use anyhow::Result;

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 11_211;

pub const ROWS: [Row; 1] = [Row {
    name: "memcached",
    program: "memcached, 4 threads",
    version: &["memcached", "-V"],
    driven: "sets and gets of 1 B to 500 KiB on 40 connections, digests compared",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let port = PORT.to_string();
    let arguments = ["-u", "nobody", "-l", "0.0.0.0", "-p", &port, "-t", "4", "-m", "256"];
    stage.start("memcached", "/usr/bin/memcached", &arguments)?;
    stage.wait_port(PORT)?;
    let script = include_str!("../../apps/memcache_client.py");
    let reported = stage.hosts.client_python("memcache_client.py", script, &[VIP, &port, "40", "5"])?;
    stage.alive()?;
    Ok(reported.trim().to_owned())
}

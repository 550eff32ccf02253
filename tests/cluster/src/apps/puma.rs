//! puma: a Ruby server with two forked workers of four threads, and a reactor thread that waits for slow
//! requests.

use std::time::Duration;

use anyhow::Result;

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};

pub const ROWS: [Row; 1] = [Row {
    name: "puma",
    program: "puma, 2 workers of 4 threads",
    version: &["puma", "--version"],
    driven: "files and an upload by curl; wrk and a checking client",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let application = stage.hosts.write("config.ru", include_str!("../../apps/config.ru"))?;
    let (bind, www) = (format!("tcp://0.0.0.0:{}", http::PORT), format!("WWW={}", stage.hosts.path("www")));
    let arguments = [&www, "puma", "-b", &bind, "-w", "2", "-t", "4:4", "-e", "production", &application];
    stage.start("puma", "/usr/bin/env", &arguments)?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    http::under_load(stage, http::SHORT, 0, |_| Ok(()))
}

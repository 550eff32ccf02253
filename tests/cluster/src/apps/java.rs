//! Java's own HttpServer.

use std::time::Duration;

use anyhow::Result;

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};

pub const ROWS: [Row; 1] = [Row {
    name: "java",
    program: "Java, HttpServer with 8 threads",
    version: &["java", "-version"],
    driven: "files and an upload by curl; wrk and a checking client",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(90),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let script = stage.hosts.write("FileServer.java", include_str!("../../apps/FileServer.java"))?;
    let (port, www) = (http::PORT.to_string(), stage.hosts.path("www"));
    stage.start("java", "java", &["-Xmx512m", &script, &port, &www])?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    http::under_load(stage, http::SHORT, 0, |_| Ok(()))
}

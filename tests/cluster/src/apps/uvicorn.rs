//! uvicorn with two workers: the parent binds a socket and does not listen; spawned processes inherit and
//! listen on it.

use std::time::Duration;

use anyhow::Result;

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};

const PYTHON: &str = "/usr/bin/python3";

pub const ROWS: [Row; 1] = [Row {
    name: "uvicorn",
    program: "uvicorn, 2 workers",
    version: &[PYTHON, "-m", "uvicorn", "--version"],
    driven: "files and an upload by curl; wrk and a checking client; early refusals",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    stage.hosts.write("asgi.py", include_str!("../../apps/asgi.py"))?;
    let (port, dir) = (http::PORT.to_string(), stage.hosts.path(""));
    let www = format!("WWW={}", stage.hosts.path("www"));
    let arguments = [
        &www,
        PYTHON,
        "-m",
        "uvicorn",
        "--host",
        "0.0.0.0",
        "--port",
        &port,
        "--workers",
        "2",
        "--app-dir",
        &dir,
        "asgi:app",
    ];
    stage.start("uvicorn", "/usr/bin/env", &arguments)?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    let refused = http::refused(&stage.hosts, "upload", 413)?;
    Ok(format!("{}; {refused}", http::under_load(stage, http::SHORT, 0, |_| Ok(()))?))
}

//! Python: http.server, asyncio, and gunicorn with two forked workers.

use std::time::Duration;

use anyhow::Result;

use super::Row;
use super::http;
use super::stage::Stage;

const PYTHON: &str = "/usr/bin/python3";
const LIMIT: Duration = Duration::from_secs(60);

pub const ROWS: [Row; 3] = [
    Row {
        name: "python-http",
        program: "Python, http.server",
        version: &[PYTHON, "--version"],
        driven: "files by curl; wrk and a checking client, a connection a request",
        ports: &[http::PORT],
        limit: LIMIT,
        run: http_server,
    },
    Row {
        name: "python-asyncio",
        program: "Python, asyncio",
        version: &[PYTHON, "--version"],
        driven: "files and an upload by curl; wrk and a checking client",
        ports: &[http::PORT],
        limit: LIMIT,
        run: asyncio,
    },
    Row {
        name: "gunicorn",
        program: "gunicorn, 2 workers",
        version: &[PYTHON, "-m", "gunicorn", "--version"],
        driven: "files and an upload by curl; wrk and a checking client, a connection a request",
        ports: &[http::PORT],
        limit: LIMIT,
        run: gunicorn,
    },
];

fn http_server(stage: &mut Stage) -> Result<String> {
    let (port, www) = (http::PORT.to_string(), stage.hosts.path("www"));
    let arguments = ["-m", "http.server", &port, "--bind", "0.0.0.0", "--directory", &www];
    stage.start("http.server", PYTHON, &arguments)?;
    http::files(stage)?;
    http::under_load(stage, http::SHORT, 0, |_| Ok(()))
}

fn asyncio(stage: &mut Stage) -> Result<String> {
    let script = stage.hosts.write("asyncio_server.py", include_str!("../../apps/asyncio_server.py"))?;
    let (port, www) = (http::PORT.to_string(), stage.hosts.path("www"));
    stage.start("asyncio", PYTHON, &[&script, &port, &www])?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    http::under_load(stage, http::SHORT, 0, |_| Ok(()))
}

fn gunicorn(stage: &mut Stage) -> Result<String> {
    stage.hosts.write("wsgi.py", include_str!("../../apps/wsgi.py"))?;
    let (bind, dir) = (format!("0.0.0.0:{}", http::PORT), stage.hosts.path(""));
    let www = format!("WWW={}", stage.hosts.path("www"));
    let arguments = ["-m", "gunicorn", "-w", "2", "-b", &bind, "--chdir", &dir, "-e", &www, "wsgi"];
    stage.start("gunicorn", PYTHON, &arguments)?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    http::under_load(stage, http::SHORT, 0, |_| Ok(()))
}

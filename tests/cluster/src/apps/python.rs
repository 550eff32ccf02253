//! Python: http.server, asyncio, and gunicorn with two forked workers.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PYTHON: &str = "/usr/bin/python3";
const LIMIT: Duration = Duration::from_secs(60);
/// Number of requests while one of two workers is busy.
const QUICK: u32 = 40;
/// Limit for the slowest of these, in seconds: far less than the busy worker takes.
const QUICK_MAX: f64 = 1.0;

pub const ROWS: [Row; 3] = [
    Row {
        name: "python-http",
        program: "Python, http.server",
        version: &[PYTHON, "--version"],
        driven: "files by curl; early refusals; wrk and a checking client, a connection a request",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: LIMIT,
        run: http_server,
    },
    Row {
        name: "python-asyncio",
        program: "Python, asyncio",
        version: &[PYTHON, "--version"],
        driven: "files and an upload by curl; wrk and a checking client",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: LIMIT,
        run: asyncio,
    },
    Row {
        name: "gunicorn",
        program: "gunicorn, 2 workers",
        version: &[PYTHON, "-m", "gunicorn", "--version"],
        driven: "files and an upload by curl; early refusals; wrk and a checking client, a connection a request; one worker busy for 4 s",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: LIMIT,
        run: gunicorn,
    },
];

fn http_server(stage: &mut Stage) -> Result<String> {
    let (port, www) = (http::PORT.to_string(), stage.hosts.path("www"));
    let arguments = ["-m", "http.server", &port, "--bind", "0.0.0.0", "--directory", &www];
    stage.start("http.server", PYTHON, &arguments)?;
    http::files(stage)?;
    let refused = http::refused(&stage.hosts, "1KiB", 501)?;
    Ok(format!("{}; {refused}", http::under_load(stage, http::SHORT, 0, |_| Ok(()))?))
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
    let figures = http::under_load(stage, http::SHORT, 0, |_| Ok(()))?;
    let refused = http::refused(&stage.hosts, "upload", 413)?;
    Ok(format!("{figures}; {refused}; {}", one_busy(stage)?))
}

/// One worker is busy for seconds, and the other answers other requests meanwhile: a busy process must not
/// delay others.
fn one_busy(stage: &mut Stage) -> Result<String> {
    let clients = stage.hosts.clone();
    let url = |path: &str| format!("http://{VIP}:{}/{path}", http::PORT);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| clients.client("curl", &["-sSf", "-m", "20", &url("busy")]));
        stage.wait("the busy worker", |hosts| Path::new(&hosts.path("www/is-busy")).exists())?;
        let quick = format!(
            "for n in $(seq {QUICK}); do curl -sSf -m 10 -o /dev/null -w '%{{time_total}}\\n' {}; done",
            url("1KiB")
        );
        let reported = stage.hosts.client_shell(&quick)?;
        if busy.is_finished() {
            bail!("the busy worker was done before the {QUICK} requests beside it");
        }
        let times = reported
            .lines()
            .map(str::parse::<f64>)
            .collect::<Result<Vec<_>, _>>()
            .context(reported.clone())?;
        let slowest = times.into_iter().fold(0.0, f64::max);
        if slowest > QUICK_MAX {
            bail!("a request beside a busy worker took {slowest} s");
        }
        let answer = busy.join().map_err(|_| anyhow::anyhow!("the client's thread panicked"))??;
        if answer != "done" {
            bail!("the busy worker answered {answer:?}");
        }
        Ok(format!("{QUICK} beside a busy worker, the slowest in {:.0} ms", slowest * 1e3))
    })
}

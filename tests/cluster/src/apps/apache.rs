//! Apache httpd in its three multi-processing modules.

use std::time::Duration;

use anyhow::Result;

use super::http::{self, CONNECTIONS};
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs;

pub(super) const VERSION: &[&str] = &["/usr/sbin/apache2", "-v"];
const LIMIT: Duration = Duration::from_secs(60);
const LOAD: Duration = Duration::from_secs(8);

const fn row(name: &'static str, program: &'static str, run: fn(&mut Stage) -> Result<String>) -> Row {
    Row {
        name,
        program,
        version: VERSION,
        driven: "files by curl; wrk and a checking client over a graceful restart",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: LIMIT,
        run,
    }
}

pub const ROWS: [Row; 3] = [
    row("apache-prefork", "Apache httpd, prefork", |stage| drive(stage, "prefork")),
    row("apache-worker", "Apache httpd, worker", |stage| drive(stage, "worker")),
    row("apache-event", "Apache httpd, event", |stage| drive(stage, "event")),
];

fn drive(stage: &mut Stage, module: &str) -> Result<String> {
    // A process of prefork serves one kept connection; it takes seconds to start further processes.
    let servers = if module == "prefork" { 2 * CONNECTIONS } else { 2 };
    let sizes = format!("StartServers {servers}\nMaxRequestWorkers 100\nLimitRequestBody 33554432\n");
    let text = configs::apache(stage.hosts.dir(), module, &sizes);
    let conf = stage.hosts.write("apache.conf", &text)?;
    stage.start("apache2", "/usr/sbin/apache2", &["-f", &conf, "-DFOREGROUND"])?;
    http::files(stage)?;
    let refused = http::refused(&stage.hosts, "1KiB", 413)?;
    let figures = http::under_load(stage, LOAD, CONNECTIONS, |stage| {
        std::thread::sleep(LOAD / 2);
        let master = stage.pid("apache2")?.to_string();
        stage.hosts.app("kill", &["-s", "USR1", &master]).map(drop)
    })?;
    http::files(stage)?;
    Ok(format!("{figures}; {refused}"))
}

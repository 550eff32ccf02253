//! Apache httpd in its three multi-processing modules.

use std::time::Duration;

use anyhow::Result;

use super::Row;
use super::http::{self, CONNECTIONS};
use super::stage::Stage;
use crate::configs::VIP;

const LIMIT: Duration = Duration::from_secs(60);
const LOAD: Duration = Duration::from_secs(8);

const fn row(name: &'static str, program: &'static str, run: fn(&mut Stage) -> Result<String>) -> Row {
    Row {
        name,
        program,
        version: &["/usr/sbin/apache2", "-v"],
        driven: "files by curl; wrk and a checking client over a graceful restart",
        ports: &[http::PORT],
        limit: LIMIT,
        run,
    }
}

pub const ROWS: [Row; 3] = [
    row("apache-prefork", "Apache httpd, prefork", |stage| drive(stage, "prefork")),
    row("apache-worker", "Apache httpd, worker", |stage| drive(stage, "worker")),
    row("apache-event", "Apache httpd, event", |stage| drive(stage, "event")),
];

fn config(dir: &str, module: &str) -> String {
    let load = |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    // A process serves one kept connection; further ones are started only as seconds go by.
    let servers = if module == "prefork" { 2 * CONNECTIONS } else { 2 };
    let modules = load(&format!("mpm_{module}")) + &load("authz_core");
    format!(
        "{modules}ServerRoot {dir}\nServerName {VIP}\nDefaultRuntimeDir {dir}/run\nPidFile {dir}/apache.pid\n\
         ErrorLog {dir}/log/apache.error\nUser www-data\nGroup www-data\nListen 80\nDocumentRoot {dir}/www\n\
         EnableSendfile On\nMaxKeepAliveRequests 0\nStartServers {servers}\nMaxRequestWorkers 100\n\
         <Directory {dir}/www>\n  Require all granted\n</Directory>\n"
    )
}

fn drive(stage: &mut Stage, module: &str) -> Result<String> {
    let conf = stage.hosts.write("apache.conf", &config(&stage.hosts.path(""), module))?;
    stage.start("apache2", "/usr/sbin/apache2", &["-f", &conf, "-DFOREGROUND"])?;
    http::files(stage)?;
    let figures = http::under_load(stage, LOAD, CONNECTIONS, |stage| {
        std::thread::sleep(LOAD / 2);
        let master = stage.pid("apache2")?.to_string();
        stage.hosts.app("kill", &["-s", "USR1", &master]).map(drop)
    })?;
    http::files(stage)?;
    Ok(figures)
}

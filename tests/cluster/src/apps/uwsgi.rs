//! uWSGI: a master binds and listens, forked workers accept under a lock that they share.

use std::time::Duration;

use anyhow::Result;

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};

pub const ROWS: [Row; 1] = [Row {
    name: "uwsgi",
    program: "uWSGI, 4 workers",
    version: &["dpkg-query", "-W", "uwsgi-core"],
    driven: "files and an upload by curl; wrk and a checking client, a connection a request; early refusals",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let application = stage.hosts.write("wsgi.py", include_str!("../../apps/wsgi.py"))?;
    let (socket, www) = (format!("0.0.0.0:{}", http::PORT), format!("WWW={}", stage.hosts.path("www")));
    let arguments = [
        "--plugin",
        "python3",
        "--http-socket",
        &socket,
        "--master",
        "--processes",
        "4",
        "--thunder-lock",
        "--die-on-term",
        // It ends each connection after a response and does not say so by itself, which wrk takes for errors.
        "--add-header",
        "Connection: close",
        "--env",
        &www,
        "--wsgi-file",
        &application,
    ];
    stage.start("uwsgi", "/usr/bin/uwsgi-core", &arguments)?;
    http::files(stage)?;
    http::upload(&stage.hosts, "16MiB")?;
    let refused = http::refused(&stage.hosts, "upload", 413)?;
    Ok(format!("{}; {refused}", http::under_load(stage, http::SHORT, 0, |_| Ok(()))?))
}

//! Varnish as a cache for a server that it reaches by the egress rule.

use std::time::Duration;

use anyhow::{Result, bail};

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::{self, CLIENT_ADDRESS, VIP};

/// The port of the server behind the cache.
const BACKEND_PORT: u16 = 8001;

pub const ROWS: [Row; 1] = [Row {
    name: "varnish",
    program: "Varnish",
    version: &["/usr/sbin/varnishd", "-V"],
    driven: "files by curl through the cache, hits and misses; wrk and a checking client",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(90),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let text = configs::nginx(stage.hosts.dir())
        .replace("listen 80;", &format!("listen {CLIENT_ADDRESS}:{BACKEND_PORT};"))
        .replace("nginx-error.log", "log/outside.error");
    let conf = stage.hosts.write("outside.conf", &text)?;
    stage.start_outside("outside", "/usr/sbin/nginx", &["-c", &conf])?;
    let (listen, backend) = (format!("0.0.0.0:{}", http::PORT), format!("{CLIENT_ADDRESS}:{BACKEND_PORT}"));
    let work = stage.hosts.path("varnish");
    stage.start(
        "varnishd",
        "/usr/sbin/varnishd",
        &["-F", "-n", &work, "-a", &listen, "-b", &backend, "-s", "malloc,64m"],
    )?;
    http::files(stage)?;
    let figures = http::under_load(stage, http::SHORT, 0, |_| Ok(()))?;
    let url = format!("http://{VIP}:{}/1KiB", http::PORT);
    let head = stage.hosts.client("curl", &["-sSf", "-m", "10", "-o", "/dev/null", "-D", "-", &url])?;
    // Two numbers: that of this request, and that of the one that fetched the object.
    let from_cache =
        |line: &str| line.strip_prefix("X-Varnish: ").is_some_and(|ids| ids.trim().contains(' '));
    if !head.lines().any(from_cache) {
        bail!("{url} did not come from the cache:\n{head}");
    }
    Ok(figures)
}

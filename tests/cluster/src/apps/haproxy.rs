//! HAProxy as a server, with one backend on its own host and one on the client's.

use std::time::Duration;

use anyhow::{Result, bail};

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::{self, CLIENT_ADDRESS, VIP};

/// The port of the backends.
const BACKEND_PORT: u16 = 8001;

pub const ROWS: [Row; 1] = [Row {
    name: "haproxy",
    program: "HAProxy, 2 threads",
    version: &["/usr/sbin/haproxy", "-v"],
    driven: "files by curl; early refusals; wrk and a checking client; backends by loopback and by the egress rule",
    ports: &[http::PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

/// Starts a plain nginx on `address`, with configuration files named after `name`.
fn backend(stage: &Stage, name: &str, address: &str) -> Result<String> {
    let text = configs::nginx(stage.hosts.dir())
        .replace("listen 80;", &format!("listen {address}:{BACKEND_PORT};"))
        .replace("nginx-error.log", &format!("log/{name}.error"))
        .replace("nginx.pid", &format!("{name}.pid"));
    stage.hosts.write(&format!("{name}.conf"), &text)
}

fn drive(stage: &mut Stage) -> Result<String> {
    let (inside, outside) =
        (backend(stage, "inside", "127.0.0.1")?, backend(stage, "outside", CLIENT_ADDRESS)?);
    stage.start_plain("inside", "/usr/sbin/nginx", &["-c", &inside])?;
    stage.start_outside("outside", "/usr/sbin/nginx", &["-c", &outside])?;
    let text = format!(
        "global\n  nbthread 2\n  maxconn 1000\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  \
         timeout server 30s\n  retries 0\nfrontend web\n  bind 0.0.0.0:{port}\n  \
         http-request deny deny_status 403 if {{ req.hdr_val(content-length) gt 33554432 }}\n  default_backend both\n\
         backend both\n  balance roundrobin\n  http-response set-header X-Server %s\n  \
         server inside 127.0.0.1:{BACKEND_PORT}\n  server outside {CLIENT_ADDRESS}:{BACKEND_PORT}\n",
        port = http::PORT
    );
    let conf = stage.hosts.write("haproxy.cfg", &text)?;
    stage.start("haproxy", "/usr/sbin/haproxy", &["-db", "-f", &conf])?;
    http::files(stage)?;
    let refused = http::refused(&stage.hosts, "1KiB", 403)?;
    let figures = http::under_load(stage, http::SHORT, 0, |_| Ok(()))?;
    let url = format!("http://{VIP}:{}/1KiB?[1-4]", http::PORT);
    let heads = stage.hosts.client("curl", &["-sSf", "-m", "10", "-o", "/dev/null", "-D", "-", &url])?;
    for server in ["inside", "outside"] {
        if !heads.lines().any(|line| line.eq_ignore_ascii_case(&format!("X-Server: {server}"))) {
            bail!("no answer from the backend {server}:\n{heads}");
        }
    }
    Ok(format!("{figures}; {refused}"))
}

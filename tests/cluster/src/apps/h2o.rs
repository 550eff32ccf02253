//! h2o: HTTP/1.1, and HTTP/2 over TLS, by an event loop of its own on two threads.

use std::time::Duration;

use anyhow::{Result, bail};

use super::http;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const TLS_PORT: u16 = 443;
const STREAMS: u32 = 20_000;

pub const ROWS: [Row; 1] = [Row {
    name: "h2o",
    program: "h2o, 2 threads",
    version: &["h2o", "--version"],
    driven: "files by curl; wrk and a checking client; h2load over TLS; early refusals",
    ports: &[http::PORT, TLS_PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(90),
    run: drive,
}];

fn config(dir: &str) -> String {
    format!(
        "user: root\nnum-threads: 2\nlimit-request-body: 33554432\nerror-log: {dir}/log/h2o.error\n\
         listen: {{host: 0.0.0.0, port: {port}}}\nhosts:\n  default:\n    listen:\n      host: 0.0.0.0\n      port: {TLS_PORT}\n      \
         ssl: {{certificate-file: {dir}/tls.crt, key-file: {dir}/tls.key}}\n    \
         paths:\n      /: {{file.dir: {dir}/www}}\n",
        port = http::PORT
    )
}

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    let certificate = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=vip.test",
        "-keyout",
        &format!("{dir}/tls.key"),
        "-out",
        &format!("{dir}/tls.crt"),
    ];
    stage.hosts.app("openssl", &certificate)?;
    let conf = stage.hosts.write("h2o.conf", &config(&dir))?;
    stage.start("h2o", "/usr/bin/h2o", &["-m", "worker", "-c", &conf])?;
    http::files(stage)?;
    let refused = http::refused(&stage.hosts, "1KiB", 413)?;
    let figures = http::under_load(stage, http::SHORT, 0, |_| Ok(()))?;
    let (url, streams) = (format!("https://{VIP}:{TLS_PORT}/1KiB"), STREAMS.to_string());
    let report = stage.hosts.client("h2load", &["-n", &streams, "-c", "16", "-m", "8", &url])?;
    if !report.contains(&format!("{STREAMS} succeeded, 0 failed")) {
        bail!("h2load: {report}");
    }
    stage.alive()?;
    Ok(format!("{figures}; {STREAMS} HTTP/2 requests over TLS; {refused}"))
}

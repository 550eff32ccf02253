//! Clients that people use: bytes are whole, and no request fails.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use csp_cluster::testing::pattern;

use super::stage::{FILE_LEN, Stage, number_before};

/// Requests of a load.
const REQUESTS: u64 = 10_000;

fn name(tls: bool) -> &'static str {
    if tls { "TLS" } else { "plain" }
}

/// curl: a long answer, an upload and two requests on one connection, by a version.
fn curl(stage: &Stage, tls: bool, option: &str, version: &str) -> Result<String> {
    let (got, ca, digest) = (stage.path("got"), stage.ca(), digest(stage)?);
    // By ALPN curl offers http/1.0 alone with this option.
    let offers = if option == "--http1.0" { "--no-alpn" } else { "--alpn" };
    let shared = ["-sS", "-f", "-m", "60", "--cacert", &ca, offers, option];
    let shown = ["-w", "%{http_version} %{num_connects}\n"];
    let big = stage.url(tls, "/big");
    let said = stage.run("curl", &[&shared[..], &shown, &["-o", &got, &big]].concat())?;
    if said.trim() != format!("{version} 1") || fs::read(&got)? != pattern(FILE_LEN) {
        bail!("by {}, {} bytes", said.trim(), fs::metadata(&got)?.len());
    }
    let from = format!("@{}", stage.path("www/big"));
    let upload = stage.url(tls, "/upload");
    let chunked = ["-H", "Transfer-Encoding: chunked"];
    let framings: &[[&str; 2]] =
        if option == "--http1.1" { &[["-H", "Expect:"], chunked] } else { &[["-H", "Expect:"]] };
    for framing in framings {
        let said = stage.run("curl", &[&shared[..], framing, &["--data-binary", &from, &upload]].concat())?;
        if said.trim() != digest {
            bail!("upload {framing:?}: {said}");
        }
    }
    if option == "--http2-prior-knowledge" && !tls {
        return Ok("20 MiB each way".to_owned()); // curl 7.88 fails the second request on such a connection, at nginx, too
    }
    let twice = stage.url(tls, "/1KiB");
    let both = ["-o", "/dev/null", "-o", "/dev/null", &twice, &twice];
    let said = stage.run("curl", &[&shared[..], &shown, &both].concat())?;
    let opened: Vec<&str> = said.split_whitespace().skip(1).step_by(2).collect();
    let expected = if option == "--http1.0" { ["1", "1"] } else { ["1", "0"] };
    if opened != expected {
        bail!("two requests opened connections: {opened:?}");
    }
    Ok("20 MiB each way, two requests on a connection".to_owned())
}

fn digest(stage: &Stage) -> Result<String> {
    let said = stage.run("sha256sum", &[&stage.path("www/big")])?;
    said.split_whitespace().next().map(str::to_owned).context("sha256sum")
}

fn nghttp(stage: &Stage, tls: bool) -> Result<String> {
    // One connection, 50 requests at once.
    let url = stage.url(tls, "/big");
    let said = stage.run("nghttp", &["--no-verify-peer", "-n", "-s", "-m", "10", &url])?;
    let whole = said.lines().filter(|line| line.contains(" 200 ") && line.ends_with("/big")).count();
    if whole != 10 {
        bail!("{whole} of 10 answers: {said}");
    }
    Ok("10 streams of 20 MiB".to_owned())
}

fn h2load(stage: &Stage, tls: bool, options: &[&str], path: &str) -> Result<String> {
    let (url, count) = (stage.url(tls, path), REQUESTS.to_string());
    let said = stage.run("h2load", &[&["-n", &count, "-t", "1"][..], options, &[&url]].concat())?;
    let summary: Vec<&str> = said
        .lines()
        .filter(|l| {
            l.starts_with("finished in") || l.starts_with("requests:") || l.starts_with("status codes:")
        })
        .collect();
    let summary = summary.join("; ");
    println!("  h2load {options:?}: {summary}");
    if number_before(&said, " succeeded")? != REQUESTS || number_before(&said, " 2xx")? != REQUESTS {
        bail!("{summary}");
    }
    Ok(summary)
}

fn wrk(stage: &Stage, tls: bool) -> Result<String> {
    let said = stage
        .run("wrk", &["-t", "2", "-c", "64", "-d", "5s", "--timeout", "30s", &stage.url(tls, "/1KiB")])?;
    let line = said.lines().find(|line| line.contains("requests in")).context("wrk")?;
    if said.contains("Socket errors") || said.contains("Non-2xx") {
        bail!("{said}");
    }
    Ok(line.trim().to_owned())
}

fn ab(stage: &Stage, tls: bool) -> Result<String> {
    let (url, count) = (stage.url(tls, "/1KiB"), REQUESTS.to_string());
    let said = stage.run("ab", &["-q", "-k", "-n", &count, "-c", "32", &url])?;
    let field = |name: &str| {
        said.lines().find_map(|line| Some(line.strip_prefix(name)?.trim())).unwrap_or("-").to_owned()
    };
    let (complete, failed, kept) =
        (field("Complete requests:"), field("Failed requests:"), field("Keep-Alive requests:"));
    if complete != count || failed != "0" || said.contains("Non-2xx") || kept != count {
        bail!("{said}");
    }
    Ok(format!("{complete} requests of HTTP/1.0, {failed} failed, {kept} kept alive"))
}

fn script(stage: &Stage, tls: bool, program: &str, script: Option<&str>) -> Result<String> {
    let (url, ca, file) = (stage.url(tls, ""), stage.ca(), stage.path("www/big"));
    let script: Vec<&str> = script.into_iter().collect();
    stage.run(program, &[&script[..], &[&url, &ca, &file]].concat())
}

fn compile_go(stage: &Stage) -> Result<String> {
    let (source, program) =
        (stage.write("client.go", include_str!("../../apps/http/client.go")), stage.path("client"));
    let output = Command::new("go")
        .args(["build", "-o", &program, &source])
        .env("GOFLAGS", "")
        .output()
        .context("go")?;
    if !output.status.success() {
        bail!("go build: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(program)
}

fn all_of(stage: &mut Stage, tls: bool, python: &str, node: &str, go: Option<&str>) {
    let of = name(tls);
    for (option, version) in
        [("--http1.0", "1.1"), ("--http1.1", "1.1"), ("--http2", "2"), ("--http2-prior-knowledge", "2")]
    {
        if tls || option != "--http2" {
            let result = curl(stage, tls, option, version);
            stage.row(format!("curl {option} ({of})"), result);
        }
    }
    let result = nghttp(stage, tls);
    stage.row(format!("nghttp ({of})"), result);
    let body = stage.path("www/1KiB");
    for (what, options, path) in [
        ("1 connection, 100 streams", vec!["-c", "1", "-m", "100"], "/1KiB"),
        ("10 connections, 100 streams", vec!["-c", "10", "-m", "100"], "/1KiB"),
        ("10 connections, 10 streams, uploads", vec!["-c", "10", "-m", "10", "-d", &body], "/upload"),
        ("HTTP/1.1, 32 connections", vec!["--h1", "-c", "32"], "/1KiB"),
    ] {
        let result = h2load(stage, tls, &options, path);
        stage.row(format!("h2load ({of}): {what}"), result);
    }
    let result = wrk(stage, tls);
    stage.row(format!("wrk ({of})"), result);
    let result = ab(stage, tls);
    stage.row(format!("ab -k ({of})"), result);
    let result = script(stage, tls, "/usr/bin/python3", Some(python));
    stage.row(format!("Python: http.client, requests ({of})"), result);
    let result = script(stage, tls, "node", Some(node));
    stage.row(format!("Node: http, http2 ({of})"), result);
    if let Some(go) = go {
        let result = script(stage, tls, go, None);
        stage.row(format!("Go: net/http ({of})"), result);
    }
}

/// With and without TLS.
pub fn run(stage: &mut Stage) {
    let python = stage.write("clients.py", include_str!("../../apps/http/clients.py"));
    let node = stage.write("clients.js", include_str!("../../apps/http/clients.js"));
    let go = compile_go(stage);
    if let Err(error) = &go {
        println!("SKIPPED Go's net/http: {error:#}");
    }
    for tls in [false, true] {
        all_of(stage, tls, &python, &node, go.as_deref().ok());
    }
}

//! Clients of HTTP servers: files whose digests are compared, wrk, and a client that checks each response.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::hosts::Hosts;
use super::stage::{FILES, Stage};
use crate::client::Digest;
use crate::configs::VIP;

/// The service's port.
pub const PORT: u16 = 80;
/// Number of wrk's connections.
pub const CONNECTIONS: u32 = 16;
/// A short load, if the issue specifies no length.
pub const SHORT: Duration = Duration::from_secs(5);

/// Waits for the service, then fetches every file and compares its SHA-256 with that of the file on disk.
pub fn files(stage: &mut Stage) -> Result<()> {
    let url = format!("http://{VIP}:{PORT}/1KiB");
    stage.wait(&format!("an answer from {url}"), |hosts| {
        hosts.client("curl", &["-sf", "-m", "2", "-o", "/dev/null", &url]).is_ok()
    })?;
    FILES.into_iter().try_for_each(|(name, _)| fetched(&stage.hosts, name, name))
}

/// Fetches `path` and compares it with the file `name` of `www`.
pub fn fetched(hosts: &Hosts, path: &str, name: &str) -> Result<()> {
    let got = hosts.path("got");
    std::fs::write(&got, "")?; // curl creates no file for an empty body
    let url = format!("http://{VIP}:{PORT}/{path}");
    hosts.client("curl", &["-sSf", "-m", "60", "-o", &got, &url])?;
    same(&got, &hosts.path(&format!("www/{name}")))
}

/// Compares two files by their SHA-256.
pub fn same(got: &str, wanted: &str) -> Result<()> {
    let (there, here) = (Digest::of_file(got.as_ref())?, Digest::of_file(wanted.as_ref())?);
    if there != here {
        bail!("{got} has SHA-256 {}, {wanted} has {}", there.0, here.0);
    }
    Ok(())
}

/// Sends 16 MiB to a server that answers with the SHA-256 of what it received.
pub fn upload(hosts: &Hosts, path: &str) -> Result<()> {
    let file = hosts.path("www/16MiB");
    let (body, url) = (format!("@{file}"), format!("http://{VIP}:{PORT}/{path}"));
    let arguments = ["-sSf", "-m", "60", "-X", "POST", "-H", "Expect:", "--data-binary", &body, &url];
    let answer = hosts.client("curl", &arguments)?;
    let wanted = Digest::of_file(file.as_ref())?;
    if answer.trim() != wanted.0 {
        bail!("the server received {:?}, the file is {}", answer.trim(), wanted.0);
    }
    Ok(())
}

/// Number of uploads that [`refused`] sends.
const REFUSALS: u32 = 30;

/// Sends uploads that the server refuses with `status` before it has read them. Every answer must arrive
/// whole, though the server closes its connections with unread bytes. Returns the figures.
pub fn refused(hosts: &Hosts, path: &str, status: u16) -> Result<String> {
    let (port, status, count) = (PORT.to_string(), status.to_string(), REFUSALS.to_string());
    let script = include_str!("../../apps/refused_client.py");
    let reported = hosts.client_python(
        "refused_client.py",
        script,
        &[VIP, &port, &format!("/{path}"), &status, &count],
    )?;
    Ok(reported.trim().to_owned())
}

/// Runs wrk on the 1 KiB file; returns the answered requests. Fails if more than `errors_max` connections
/// failed.
pub fn wrk(hosts: &Hosts, how_long: Duration, errors_max: u32) -> Result<u64> {
    let (connections, seconds) = (format!("-c{CONNECTIONS}"), format!("-d{}s", how_long.as_secs()));
    wrk_with(hosts, &[&connections, &seconds], "1KiB", errors_max)
}

/// As [`wrk`], for a path, with all of wrk's arguments.
pub fn wrk_with(hosts: &Hosts, arguments: &[&str], path: &str, errors_max: u32) -> Result<u64> {
    // With the port as a number: a bare machine has no /etc/services to look "http" up in.
    let url = format!("http://{VIP}:{PORT}/{path}");
    let report = hosts.client("wrk", &[&["-t1"], arguments, &[&url]].concat())?;
    let errors: u32 = report
        .lines()
        .find(|line| line.contains("Socket errors:"))
        .map_or(0, |line| line.split([' ', ',']).filter_map(|word| word.parse::<u32>().ok()).sum());
    if errors > errors_max || report.contains("Non-2xx") {
        bail!("wrk: {report}");
    }
    let line = report.lines().find(|line| line.contains("requests in")).context("wrk reports no requests")?;
    line.split_whitespace().next().and_then(|word| word.parse().ok()).context("wrk reports no number")
}

/// Runs a client that compares every response. A kept connection may be closed, as HTTP permits; any other
/// failure counts.
pub fn checked(hosts: &Hosts, how_long: Duration) -> Result<String> {
    let wanted = Digest::of_file(hosts.path("www/64KiB").as_ref())?;
    let (port, seconds) = (PORT.to_string(), how_long.as_secs().to_string());
    let script = include_str!("../../apps/http_load.py");
    let reported =
        hosts.client_python("http_load.py", script, &[VIP, &port, "/64KiB", &wanted.0, "4", &seconds])?;
    Ok(reported.trim().to_owned())
}

/// Runs wrk and the checking client at the same time, and meanwhile `work`; returns the figures of both.
pub fn under_load(
    stage: &mut Stage,
    how_long: Duration,
    errors_max: u32,
    work: impl FnOnce(&mut Stage) -> Result<()>,
) -> Result<String> {
    let clients = stage.hosts.clone();
    let (requests, checked) = std::thread::scope(|scope| {
        let wrk = scope.spawn(|| wrk(&clients, how_long, errors_max));
        let check = scope.spawn(|| checked(&clients, how_long));
        let worked = work(stage);
        let joined = |_| anyhow::anyhow!("a client's thread panicked");
        let figures = (wrk.join().map_err(joined)??, check.join().map_err(joined)??);
        worked.map(|()| figures)
    })?;
    stage.alive()?;
    Ok(format!("{requests} requests by wrk, {checked}"))
}

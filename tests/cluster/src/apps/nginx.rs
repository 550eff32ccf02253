//! nginx: reloads under load with two and with four workers, and an upgrade of its binary.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::http::{self, CONNECTIONS};
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs;
use crate::process::wait_until;
use crate::steady::children;

pub(super) const VERSION: &[&str] = &["nginx", "-v"];
const RELOAD_EVERY: Duration = Duration::from_secs(2);
/// How long old workers and masters may take to exit.
const GONE_DEADLINE: Duration = Duration::from_secs(20);

pub const ROWS: [Row; 3] = [
    Row {
        name: "nginx-2",
        program: "nginx, 2 workers",
        version: VERSION,
        driven: "files by curl; early refusals; wrk and a checking client while it reloads every 2 s",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(150),
        run: |stage| reloads(stage, 2),
    },
    Row {
        name: "nginx-4",
        program: "nginx, 4 workers",
        version: VERSION,
        driven: "files by curl; early refusals; wrk and a checking client while it reloads every 2 s",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(150),
        run: |stage| reloads(stage, 4),
    },
    Row {
        name: "nginx-upgrade",
        program: "nginx, binary upgrade",
        version: VERSION,
        driven: "SIGUSR2, SIGWINCH, SIGQUIT under wrk and a checking client",
        ports: &[http::PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(90),
        run: upgrade,
    },
];

pub(super) fn configure(stage: &Stage, workers: usize, daemon: &str) -> Result<String> {
    let text = configs::nginx(stage.hosts.dir())
        .replace("worker_processes 2;", &format!("worker_processes {workers};"))
        .replace("daemon off;", &format!("daemon {daemon};"))
        .replace("nginx-error.log", "log/nginx.error");
    stage.hosts.write("nginx.conf", &text)
}

fn reloads(stage: &mut Stage, workers: usize) -> Result<String> {
    let conf = configure(stage, workers, "off")?;
    stage.start("nginx", "/usr/sbin/nginx", &["-c", &conf])?;
    http::files(stage)?;
    let refused = http::refused(&stage.hosts, "1KiB", 413)?;
    let (master, load) = (stage.pid("nginx")?, stage.load());
    let before = children(master, "nginx");
    let count = (load.as_secs() / RELOAD_EVERY.as_secs()).saturating_sub(1) as u32;
    // A kept connection that nginx closes while a request is in transit fails, once for each reload.
    let figures = http::under_load(stage, load, count * CONNECTIONS, |stage| {
        let began = Instant::now();
        for round in 1..=count {
            std::thread::sleep((RELOAD_EVERY * round).saturating_sub(began.elapsed()));
            stage.hosts.app("nginx", &["-c", &conf, "-s", "reload"])?;
            stage.alive()?;
        }
        Ok(())
    })?;
    wait_until("only the last generation of workers", GONE_DEADLINE, || {
        let now = children(master, "nginx");
        (now.len() == workers && !now.iter().any(|id| before.contains(id))).then_some(())
    })?;
    http::files(stage)?;
    Ok(format!("{count} reloads, {figures}; {refused}"))
}

/// Returns the master's process id from nginx's pid file.
fn pid(stage: &Stage, file: &str) -> Option<u32> {
    fs::read_to_string(stage.hosts.path(file)).ok()?.trim().parse().ok()
}

fn signal(stage: &Stage, name: &str, id: u32) -> Result<()> {
    stage.hosts.app("kill", &["-s", name, &id.to_string()]).map(drop)
}

fn upgrade(stage: &mut Stage) -> Result<String> {
    let conf = configure(stage, 2, "on")?;
    // A master that was not started as a daemon assumes that it is a new binary's, and refuses.
    stage.start("nginx", "/usr/sbin/nginx", &["-c", &conf])?;
    stage.ended("nginx")?;
    http::files(stage)?;
    let old = pid(stage, "nginx.pid").context("the master's id")?;
    let how_long = Duration::from_secs(12);
    let figures = http::under_load(stage, how_long, 3 * CONNECTIONS, |stage| {
        std::thread::sleep(Duration::from_secs(2));
        signal(stage, "USR2", old)?;
        let new = wait_until("the new binary's master and workers", GONE_DEADLINE, || {
            let new = pid(stage, "nginx.pid").filter(|id| *id != old)?;
            (children(new, "nginx").len() == 2).then_some(new)
        })?;
        std::thread::sleep(Duration::from_secs(2));
        signal(stage, "WINCH", old)?;
        wait_until("the old workers to end", GONE_DEADLINE, || {
            (children(old, "nginx") == [new]).then_some(())
        })?;
        std::thread::sleep(Duration::from_secs(2));
        signal(stage, "QUIT", old)?;
        let gone = || (!Path::new(&format!("/proc/{old}")).exists()).then_some(());
        wait_until("the old master to end", GONE_DEADLINE, gone)
    })?;
    http::files(stage)?;
    let new = pid(stage, "nginx.pid").context("the new master's id")?;
    if children(new, "nginx").len() != 2 {
        bail!("the new master {new} has {} workers", children(new, "nginx").len());
    }
    Ok(format!("the new binary serves, {figures}"))
}

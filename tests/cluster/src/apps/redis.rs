//! redis: every command of its benchmark, a snapshot under load, and replication from a master outside of the
//! cluster.

use std::time::Duration;

use anyhow::{Result, bail};

use super::http::same;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::{CLIENT_ADDRESS, VIP};

const PORT: u16 = 6379;
const SERVER: &str = "/usr/bin/redis-server";

pub const ROWS: [Row; 2] = [
    Row {
        name: "redis",
        program: "redis-server",
        version: &[SERVER, "--version"],
        driven: "redis-benchmark, all commands, alone and pipelined; BGSAVE under load; a 16 MiB value",
        ports: &[PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(150),
        run: benchmark,
    },
    Row {
        name: "redis-replica",
        program: "redis-server, replica",
        version: &[SERVER, "--version"],
        driven: "replication from a plain redis on the client's host by an active open; digests compared",
        ports: &[PORT],
        sans: BY_SHM,
        limit: Duration::from_secs(90),
        run: replicate,
    },
];

/// Returns the server's arguments; its files are in a folder `name`.
fn arguments(stage: &Stage, name: &str, port: u16) -> Result<Vec<String>> {
    let dir = stage.hosts.path(name);
    std::fs::create_dir_all(&dir)?;
    let text = format!(
        "--port {port} --bind 0.0.0.0 --protected-mode no --save --dir {dir} --enable-debug-command yes"
    );
    // An empty argument after --save: snapshots are taken only on request.
    Ok(text
        .split(' ')
        .flat_map(|w| if w == "--save" { vec![w, ""] } else { vec![w] })
        .map(str::to_owned)
        .collect())
}

fn start(stage: &mut Stage) -> Result<()> {
    let words = arguments(stage, "redis", PORT)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.start("redis", SERVER, &words)?;
    stage.wait("PONG", |hosts| {
        hosts
            .client("timeout", &["2", "redis-cli", "-h", VIP, "ping"])
            .is_ok_and(|text| text.trim() == "PONG")
    })
}

/// Returns a redis server's answer.
fn ask(stage: &Stage, address: &str, words: &[&str]) -> Result<String> {
    let mut all = vec!["-h", address];
    all.extend_from_slice(words);
    Ok(stage.hosts.client("redis-cli", &all)?.trim().to_owned())
}

/// Returns whether `section` of `INFO` contains the line.
fn info_has(hosts: &super::hosts::Hosts, section: &str, line: &str) -> bool {
    let info = hosts.client("redis-cli", &["-h", VIP, "info", section]);
    info.is_ok_and(|text| text.lines().any(|l| l.trim() == line))
}

/// Returns the number of redis-benchmark's lines with a rate; fails if it reports an error.
fn run_benchmark(stage: &Stage, more: &[&str]) -> Result<usize> {
    let mut all = vec!["-h", VIP, "-q", "-c", "20"];
    all.extend_from_slice(more);
    let output = stage.hosts.client("redis-benchmark", &all)?;
    if output.contains("rror") {
        bail!("redis-benchmark {}: {output}", more.join(" "));
    }
    Ok(output.matches("requests per second").count())
}

fn benchmark(stage: &mut Stage) -> Result<String> {
    start(stage)?;
    let commands = run_benchmark(stage, &["-n", "5000"])?;
    run_benchmark(stage, &["-n", "20000", "-P", "16"])?;
    run_benchmark(stage, &["-n", "200", "-d", "100000", "-t", "set,get"])?;
    let hosts = stage.hosts.clone();
    std::thread::scope(|scope| {
        let load = scope.spawn(move || {
            hosts.client(
                "redis-benchmark",
                &["-h", VIP, "-q", "-c", "20", "-n", "200000", "-r", "100000", "-t", "set,get"],
            )
        });
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(500));
            ask(stage, VIP, &["bgsave"])?;
            stage.wait("the snapshot", |hosts| info_has(hosts, "persistence", "rdb_bgsave_in_progress:0"))?;
            if !info_has(&stage.hosts, "persistence", "rdb_last_bgsave_status:ok") {
                bail!("snapshot {round} failed: {}", ask(stage, VIP, &["info", "persistence"])?);
            }
        }
        load.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))?.map(drop)
    })?;
    let (file, got) = (stage.hosts.path("www/16MiB"), stage.hosts.path("got"));
    stage.hosts.client_shell(&format!("redis-cli -h {VIP} -x set big < {file} >&2"))?;
    // redis-cli appends a newline to the value.
    stage.hosts.client_shell(&format!("redis-cli -h {VIP} --raw get big | head -c -1 > {got}"))?;
    same(&got, &file)?;
    stage.alive()?;
    Ok(format!("{commands} kinds of request, 3 snapshots under load"))
}

fn replicate(stage: &mut Stage) -> Result<String> {
    let words = arguments(stage, "master", PORT)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.start_outside("master", SERVER, &words)?;
    stage.wait("the master", |hosts| hosts.client("redis-cli", &["-h", CLIENT_ADDRESS, "ping"]).is_ok())?;
    let fill =
        ["-h", CLIENT_ADDRESS, "-q", "-n", "50000", "-r", "50000", "-d", "200", "-t", "set,lpush,hset"];
    stage.hosts.client("redis-benchmark", &fill)?;
    start(stage)?;
    ask(stage, VIP, &["replicaof", CLIENT_ADDRESS, &PORT.to_string()])?;
    stage.wait("the link to the master", |hosts| info_has(hosts, "replication", "master_link_status:up"))?;
    // What is written from now on is replicated as a stream of commands.
    stage.hosts.client("redis-benchmark", &fill)?;
    let digest = ask(stage, CLIENT_ADDRESS, &["debug", "digest"])?;
    stage.wait("the replica to have the master's digest", |hosts| {
        hosts.client("redis-cli", &["-h", VIP, "debug", "digest"]).is_ok_and(|text| text.trim() == digest)
    })?;
    Ok(format!("{} keys, digest {}…", ask(stage, VIP, &["dbsize"])?, &digest[..12.min(digest.len())]))
}

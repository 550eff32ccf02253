//! php-fpm over TCP: forked workers accept on an inherited listener and speak FastCGI.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 9000;
const SCRIPT: &str = "<?php echo hash('sha256', file_get_contents('php://input'));\n";

pub const ROWS: [Row; 1] = [Row {
    name: "php-fpm",
    program: "php-fpm, 4 workers",
    version: &["dpkg-query", "-W", "php-fpm"],
    driven: "FastCGI on 8 connections at once: bodies of 1 B to 1 MiB, digests compared",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

/// Returns the program, whose name bears the version.
fn program() -> Result<String> {
    let names =
        fs::read_dir("/usr/sbin")?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let name = names.filter(|name| name.starts_with("php-fpm")).max();
    Ok(format!("/usr/sbin/{}", name.context("php-fpm is not installed (`make packages-apps`)")?))
}

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    let conf = format!(
        "[global]\ndaemonize = no\npid = {dir}/php-fpm.pid\nerror_log = {dir}/log/php-fpm.error\n\
         [www]\nuser = www-data\ngroup = www-data\nlisten = 0.0.0.0:{PORT}\npm = static\npm.max_children = 4\n"
    );
    let conf = stage.hosts.write("php-fpm.conf", &conf)?;
    let script = stage.hosts.write("digest.php", SCRIPT)?;
    stage.start("php-fpm", &program()?, &["-F", "-n", "-y", &conf])?;
    stage.wait_port(PORT)?;
    let client = include_str!("../../apps/fastcgi_client.py");
    let arguments = [VIP, &PORT.to_string(), &script, "8", "50"];
    let reported = stage.hosts.client_python("fastcgi_client.py", client, &arguments)?;
    stage.alive()?;
    Ok(reported.trim().to_owned())
}

//! Samba: a process for each connection, which changes its user for each request.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::http::same;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 445;
const ROUNDS: usize = 3;

pub const ROWS: [Row; 1] = [Row {
    name: "samba",
    program: "Samba smbd",
    version: &["smbd", "--version"],
    driven: "16 MiB there and back by smbclient, digests compared",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(60),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    let dir = stage.hosts.path("");
    for folder in ["share", "smb"] {
        fs::create_dir_all(stage.hosts.path(folder))?;
    }
    stage.hosts.app("chmod", &["777", &stage.hosts.path("share")])?;
    let folders: String = [
        "private dir",
        "lock directory",
        "state directory",
        "cache directory",
        "pid directory",
        "ncalrpc dir",
    ]
    .map(|name| format!("  {name} = {dir}/smb\n"))
    .concat();
    let conf = format!(
        "[global]\n  server role = standalone server\n  map to guest = bad user\n  smb ports = {PORT}\n  disable netbios = yes\n  \
         load printers = no\n  disable spoolss = yes\n  log file = {dir}/log/smbd.error\n{folders}\
         [share]\n  path = {dir}/share\n  guest ok = yes\n  read only = no\n"
    );
    let conf = stage.hosts.write("smb.conf", &conf)?;
    stage.start("samba", "/usr/sbin/smbd", &["-F", "--no-process-group", "-s", &conf])?;
    let (share, file) = (format!("//{VIP}/share"), stage.hosts.path("www/16MiB"));
    // smbd listens for IPv6 first; between its two calls of `listen` a client of IPv4 is reset, as by a
    // kernel.
    let port = PORT.to_string();
    let client = ["-N", "-s", &conf, "-p", &port, &share, "-c"];
    stage.wait("an answer of smbd", |hosts| {
        hosts.client("smbclient", &[&client[..], &["ls"]].concat()).is_ok()
    })?;
    for round in 0..ROUNDS {
        let got = stage.hosts.path(&format!("got{round}"));
        let commands = format!("put {file} f{round}; ls; get f{round} {got}");
        stage.hosts.client("smbclient", &[&client[..], &[&commands]].concat())?;
        same(&got, &file)?;
    }
    stage.alive()?;
    Ok(format!("{ROUNDS} files of 16 MiB there and back"))
}

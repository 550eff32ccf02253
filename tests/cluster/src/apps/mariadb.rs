//! MariaDB: writes and reads a table, and load on kept and on new connections.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::http::same;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

const PORT: u16 = 3306;
const SERVER: &str = "/usr/sbin/mariadbd";

pub const ROWS: [Row; 1] = [Row {
    name: "mariadb",
    program: "MariaDB",
    version: &[SERVER, "--version"],
    driven: "a table of 8 MiB there and back; mariadb-slap with 20 clients, and 200 connections one after another",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(150),
    run: drive,
}];

fn start(stage: &mut Stage) -> Result<()> {
    let data = stage.hosts.path("mariadb");
    fs::create_dir_all(&data)?;
    stage.hosts.app("chown", &["mysql", &data])?;
    let (folder, socket) = (format!("--datadir={data}"), format!("--socket={data}/socket"));
    let install = [
        "--no-defaults",
        "--user=mysql",
        "--skip-test-db",
        "--auth-root-authentication-method=normal",
        &folder,
    ];
    stage.hosts.app("mariadb-install-db", &install)?;
    let grants = stage.hosts.write("grants.sql", "CREATE USER csp@'%';\nGRANT ALL ON *.* TO csp@'%';\n")?;
    let (port, grants) = (format!("--port={PORT}"), format!("--init-file={grants}"));
    let words = [
        "--no-defaults",
        "--user=mysql",
        "--bind-address=0.0.0.0",
        "--skip-name-resolve",
        "--max-allowed-packet=64M",
        "--skip-log-bin",
        &folder,
        &socket,
        &port,
        &grants,
    ];
    stage.start("mariadbd", SERVER, &words)?;
    stage.wait("an answer to mariadb", |hosts| {
        hosts
            .client("timeout", &["3", "mariadb", "--no-defaults", "-h", VIP, "-u", "csp", "-e", "select 1"])
            .is_ok()
    })
}

fn drive(stage: &mut Stage) -> Result<String> {
    start(stage)?;
    let hosts = &stage.hosts;
    let (rows, got) = (hosts.path("rows"), hosts.path("got"));
    hosts.client_shell(&format!("seq 1 1100000 > {rows}"))?;
    let client = format!("mariadb --no-defaults --local-infile=1 -h {VIP} -u csp -N -B");
    hosts.client_shell(&format!(
        "{client} -e 'create database csp; create table csp.t (n int primary key)'"
    ))?;
    hosts.client_shell(&format!("{client} -e \"load data local infile '{rows}' into table csp.t\""))?;
    hosts.client_shell(&format!("{client} --quick -e 'select n from csp.t order by n' > {got}"))?;
    same(&got, &rows)?;
    let load = [
        "--no-defaults",
        "-h",
        VIP,
        "-u",
        "csp",
        "--auto-generate-sql",
        "--auto-generate-sql-load-type=mixed",
    ];
    hosts.client("mariadb-slap", &[&load[..], &["-c", "20", "--number-of-queries=4000"]].concat())?;
    // In addition, a connection for each query.
    let one = format!("for i in $(seq 200); do {client} -e \"select $i\"; done | sha256sum");
    let (reported, wanted) = (hosts.client_shell(&one)?, hosts.client_shell("seq 200 | sha256sum")?);
    if reported != wanted {
        anyhow::bail!("200 connections reported {reported:?}, not {wanted:?}");
    }
    stage.alive()?;
    Ok("1100000 rows there and back, 4000 queries by 20 clients, 200 connections".to_owned())
}

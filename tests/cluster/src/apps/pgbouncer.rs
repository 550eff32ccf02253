//! PgBouncer: libevent, many clients on few connections to a PostgreSQL behind a Unix socket.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::stage::Stage;
use super::{BY_SHM, Row, postgresql};
use crate::configs::VIP;

const PORT: u16 = 6432;

pub const ROWS: [Row; 1] = [Row {
    name: "pgbouncer",
    program: "PgBouncer",
    version: &["dpkg-query", "-W", "pgbouncer"],
    driven: "pgbench with 32 clients on 4 connections to the server, kept ones and a connection a transaction",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(90),
    run: drive,
}];

fn drive(stage: &mut Stage) -> Result<String> {
    postgresql::start_plain(stage)?;
    let (dir, data) = (stage.hosts.path(""), stage.hosts.path("data"));
    let conf = format!(
        "[databases]\npostgres = host={data} port={server} user=postgres pool_size=4\n\
         [pgbouncer]\nlisten_addr = 0.0.0.0\nlisten_port = {PORT}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
         max_client_conn = 200\nlogfile = {data}/pgbouncer.error\nignore_startup_parameters = extra_float_digits\n",
        server = postgresql::PORT
    );
    let conf = stage.hosts.write("pgbouncer.ini", &conf)?;
    stage.hosts.app("chmod", &["755", &dir])?;
    stage.start("pgbouncer", "/usr/sbin/pgbouncer", &["-u", "postgres", &conf])?;
    stage.wait_port(PORT)?;
    let port = PORT.to_string();
    let with = ["-h", VIP, "-p", &port, "-U", "postgres"];
    stage.hosts.client("pgbench", &[&with[..], &["-q", "-i", "-s", "2", "postgres"]].concat())?;
    let kept = [&with[..], &["-c", "32", "-j", "2", "-T", "5", "postgres"]].concat();
    let each = [&with[..], &["-C", "-S", "-c", "8", "-t", "50", "postgres"]].concat();
    let mut figures = String::new();
    for arguments in [each, kept] {
        let report = stage.hosts.client("pgbench", &arguments)?;
        if !report.contains("number of failed transactions: 0 ") {
            bail!("pgbench: {report}");
        }
        let line = report.lines().find(|line| line.contains("actually processed"));
        figures = line.context("pgbench reports no number")?.to_owned();
    }
    stage.alive()?;
    Ok(figures)
}

//! PostgreSQL: psql and pgbench over the VIP.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::http::same;
use super::stage::Stage;
use super::{BY_SHM, Row};
use crate::configs::VIP;

/// The server's port, and the number of its Unix socket.
pub const PORT: u16 = 5432;
/// Debian's directory of each version's programs.
const VERSIONS: &str = "/usr/lib/postgresql";

pub const ROWS: [Row; 1] = [Row {
    name: "postgresql",
    program: "PostgreSQL",
    version: &["psql", "--version"],
    driven: "psql with a table of 8 MiB there and back; pgbench with 8 clients",
    ports: &[PORT],
    sans: BY_SHM,
    limit: Duration::from_secs(120),
    run: drive,
}];

/// Returns the directory of the newest version's programs.
fn programs() -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(VERSIONS)
        .with_context(|| format!("{VERSIONS} (Debian package postgresql)"))?
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|folder| folder.join("postgres").exists())
        .collect();
    found.sort();
    found.pop().with_context(|| format!("{VERSIONS} has no version"))
}

/// Makes a database, and returns the command that starts the server on it.
fn command(stage: &Stage) -> Result<Vec<String>> {
    let programs = programs()?;
    let program = |name: &str| programs.join(name).to_string_lossy().into_owned();
    let data = stage.hosts.path("data");
    fs::create_dir_all(&data)?;
    stage.hosts.app("chown", &["postgres", &data])?;
    let user = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"];
    let with =
        |more: &[&str]| -> Vec<String> { user.iter().chain(more).map(|word| (*word).to_owned()).collect() };
    let words =
        with(&[&program("initdb"), "-D", &data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.hosts.app("setpriv", &words)?;
    fs::write(format!("{data}/pg_hba.conf"), "host all all 10.76.0.0/24 trust\nlocal all all trust\n")?;
    Ok(with(&[&program("postgres"), "-D", &data, "-p", &PORT.to_string(), "-k", &data]))
}

fn start(stage: &mut Stage) -> Result<()> {
    let mut words = command(stage)?;
    words.extend(["-c".to_owned(), "listen_addresses=0.0.0.0".to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.start("postgres", "setpriv", &words)?;
    stage.wait("an answer to psql", |hosts| {
        hosts.client("timeout", &["3", "psql", "-h", VIP, "-U", "postgres", "-c", "select 1"]).is_ok()
    })
}

/// Starts a server without the filter that listens on a Unix socket in the folder `data` only.
pub fn start_plain(stage: &mut Stage) -> Result<()> {
    let mut words = command(stage)?;
    words.extend(["-c".to_owned(), "listen_addresses=".to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    stage.start_plain("postgres", "setpriv", &words)?;
    let data = stage.hosts.path("data");
    stage.wait("an answer to psql", |hosts| {
        hosts.app("timeout", &["3", "psql", "-h", &data, "-U", "postgres", "-c", "select 1"]).is_ok()
    })
}

fn drive(stage: &mut Stage) -> Result<String> {
    start(stage)?;
    let hosts = &stage.hosts;
    let (rows, got) = (hosts.path("rows"), hosts.path("got"));
    hosts.client_shell(&format!("seq 1 1100000 > {rows}"))?;
    let psql = format!("psql -h {VIP} -U postgres -q -v ON_ERROR_STOP=1");
    hosts.client_shell(&format!("{psql} -c 'create table t (n int)' -c '\\copy t from {rows}'"))?;
    hosts.client_shell(&format!("{psql} -c '\\copy (select n from t order by n) to {got}'"))?;
    same(&got, &rows)?;
    hosts.client("pgbench", &["-h", VIP, "-U", "postgres", "-q", "-i", "-s", "2", "postgres"])?;
    let arguments = ["-h", VIP, "-U", "postgres", "-c", "8", "-j", "2", "-T", "5", "postgres"];
    let reported = hosts.client("pgbench", &arguments)?;
    // In addition, a connection for every transaction.
    let anew = hosts
        .client("pgbench", &["-h", VIP, "-U", "postgres", "-C", "-S", "-c", "4", "-t", "50", "postgres"])?;
    for report in [&reported, &anew] {
        if !report.contains("number of failed transactions: 0 ") {
            bail!("pgbench: {report}");
        }
    }
    let line = reported
        .lines()
        .find(|line| line.contains("actually processed"))
        .context("pgbench reports no number")?;
    stage.alive()?;
    Ok(line.to_owned())
}

//! The table of real programs: each runs unmodified under `csp-run` behind the whole path, is driven by a
//! real client, and gets a row with its result.
//!
//! Every row has a cluster of its own, and a time limit. The claims of a row are measured: the number of
//! accelerated connections comes from the agent's pages, and in a row that works no kernel TCP socket of its
//! service was seen.

mod apache;
mod cell;
mod crowd;
mod dnsmasq;
mod dovecot;
mod endurance;
mod h2o;
mod haproxy;
mod hosts;
mod http;
mod java;
mod kamailio;
mod lighttpd;
mod mariadb;
mod memcached;
mod mosquitto;
mod named;
mod nginx;
mod node;
mod pgbouncer;
mod php_fpm;
mod postgresql;
mod prosody;
mod puma;
mod python;
mod redis;
mod repositories;
mod rsync;
mod samba;
mod sshd;
mod stage;
mod table;
mod uvicorn;
mod uwsgi;
mod varnish;
mod vsftpd;
mod watch;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::San;
use cell::Cell;
use stage::Stage;
pub use table::Output;
use table::{Line, Verdict};
use watch::Seen;

/// The SAN of rows that run over one only.
const BY_SHM: &[San] = &[San::Shm];

/// One program, and how it is driven.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Its name for `--only`.
    name: &'static str,
    /// The program, without its version.
    program: &'static str,
    /// A command that prints the version.
    version: &'static [&'static str],
    /// What its client does.
    driven: &'static str,
    /// The service's ports.
    ports: &'static [u16],
    /// What carries the SAN: the row runs over each of them in turn.
    sans: &'static [San],
    /// Time limit of each run.
    limit: Duration,
    /// Starts and drives it, and returns figures.
    run: fn(&mut Stage) -> Result<String>,
}

const ROWS: [&[Row]; 31] = [
    &nginx::ROWS,
    &endurance::ROWS,
    &apache::ROWS,
    &lighttpd::ROWS,
    &vsftpd::ROWS,
    &redis::ROWS,
    &memcached::ROWS,
    &haproxy::ROWS,
    &python::ROWS,
    &node::ROWS,
    &java::ROWS,
    &sshd::ROWS,
    &postgresql::ROWS,
    &mariadb::ROWS,
    &varnish::ROWS,
    &dovecot::ROWS,
    &dnsmasq::ROWS,
    &h2o::ROWS,
    &uwsgi::ROWS,
    &uvicorn::ROWS,
    &puma::ROWS,
    &php_fpm::ROWS,
    &rsync::ROWS,
    &repositories::ROWS,
    &pgbouncer::ROWS,
    &mosquitto::ROWS,
    &prosody::ROWS,
    &named::ROWS,
    &kamailio::ROWS,
    &samba::ROWS,
    &crowd::ROWS,
];

/// Programs that a release of Debian does not have: the row's name, and the release's VERSION_ID.
const NOT_PACKAGED: [(&str, &str); 1] = [("h2o", "13")];

/// Which rows to run, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rows by name; all if empty.
    pub only: Vec<String>,
    /// Ten seconds of load where a full run has sixty.
    pub quick: bool,
    /// Rows over shared memory have network node and proxy node as one process.
    pub edge: bool,
    /// Leave each row's cluster running until Ctrl-C.
    pub keep: bool,
    /// Form of the table.
    pub output: Output,
}

/// Prints the rows' names and what each of them does.
pub fn list() {
    for row in ROWS.into_iter().flatten() {
        println!("{:<18} {}: {}", row.name, row.program, row.driven);
    }
}

fn chosen(only: &[String]) -> Result<Vec<&'static Row>> {
    let all = || ROWS.into_iter().flatten();
    if let Some(unknown) = only.iter().find(|name| !all().any(|row| row.name == **name)) {
        bail!("no row is called {unknown:?}; --list shows them");
    }
    Ok(all().filter(|row| only.is_empty() || only.iter().any(|name| name == row.name)).collect())
}

/// Returns the release of Debian that has no package of a row's program, if this host runs it.
fn not_packaged(row: &Row) -> Option<&'static str> {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is = |release: &str| text.lines().any(|line| line == format!("VERSION_ID=\"{release}\""));
    NOT_PACKAGED
        .into_iter()
        .find(|(name, release)| *name == row.name && is(release))
        .map(|(_, release)| release)
}

/// Runs the rows one after another and prints the table. Returns whether every row works.
pub fn run(options: &Options) -> Result<bool> {
    let (absent, rows): (Vec<&Row>, Vec<&Row>) =
        chosen(&options.only)?.into_iter().partition(|row| not_packaged(row).is_some());
    for row in absent {
        eprintln!("SKIPPED {}: Debian {} does not have it", row.name, not_packaged(row).unwrap_or_default());
    }
    // With this handler an interrupt makes the present row fail, and everything created is still removed.
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let mut lines = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        eprint!("  {:>2}/{} {:<18} ", at + 1, rows.len(), row.name);
        let _ = std::io::stderr().flush();
        let began = Instant::now();
        let (line, logs) = one(row, options, &stop);
        eprintln!("{} ({:.0} s)", line.verdict(), began.elapsed().as_secs_f64());
        if !line.works() {
            eprintln!("{logs}");
        }
        lines.push(line);
    }
    print!("{}", table::render(&lines, options.output));
    Ok(lines.len() == rows.len() && lines.iter().all(Line::works))
}

/// The result of a row over one SAN.
struct Act {
    verdict: Verdict,
    seen: Seen,
    cells: Vec<Cell>,
    logs: String,
}

/// Runs one row. Returns its line of the table, and the logs that matter if it does not work.
fn one(row: &Row, options: &Options, stop: &AtomicBool) -> (Line, String) {
    let version = match stage::version(row.version) {
        Ok(version) => version,
        Err(error) => {
            let verdict = Verdict::Fails(format!("{error:#}"));
            return (Line::new(row, String::new(), verdict, Seen::default()), String::new());
        }
    };
    let (mut verdicts, mut seen) = (Vec::new(), Seen::default());
    let (mut cells, mut logs) = (Vec::new(), String::new());
    for san in row.sans.iter().take_while(|_| !stop.load(Ordering::Relaxed)) {
        let act = act(row, *san, options, stop);
        if !act.verdict.works() {
            logs += &act.logs;
        }
        verdicts.push((cell::word(*san), act.verdict));
        seen.add(act.seen);
        cells.extend(act.cells);
    }
    (Line::new(row, version, Verdict::joined(&verdicts), seen).with(cells), logs)
}

/// Builds the stage over `san`, runs the row on it and clears it.
fn act(row: &Row, san: San, options: &Options, stop: &AtomicBool) -> Act {
    let mut stage = match Stage::build(row, san, options) {
        Ok(stage) => stage,
        Err(error) => {
            let verdict = Verdict::Fails(format!("{error:#}"));
            return Act { verdict, seen: Seen::default(), cells: Vec::new(), logs: String::new() };
        }
    };
    let watch = stage.watch();
    let outcome = (row.run)(&mut stage);
    let seen = watch.and_then(|watch| watch.end(&stage)).context("the watch over sockets");
    let (logs, cells) = (stage.logs(), std::mem::take(&mut stage.cells));
    if options.keep {
        stage.wait_for_interrupt(stop);
    }
    let cleared = stage.clear();
    let (verdict, seen) = match (outcome, seen, cleared) {
        (Ok(figures), Ok(seen), Ok(())) => (Verdict::of(figures, &seen), seen),
        (Err(error), seen, _) => (Verdict::Fails(format!("{error:#}")), seen.unwrap_or_default()),
        (Ok(_), Err(error), _) => (Verdict::Fails(format!("{error:#}")), Seen::default()),
        (Ok(_), Ok(seen), Err(error)) => (Verdict::Fails(format!("{error:#}")), seen),
    };
    Act { verdict, seen, cells, logs }
}

//! The hosts of a row, and commands on them that end at the row's time limit at the latest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::{Cluster, Tier};
use crate::host::Host;

/// Exit code of timeout(1) when it ended the command.
const TIMED_OUT: i32 = 124;
/// Lines of a failed command's output that the error contains.
const TAIL: usize = 6;

/// Hosts of a row. They exist as long as its [`Stage`](super::stage::Stage).
#[derive(Debug)]
pub struct Hosts {
    client: Host,
    app: Host,
    dir: PathBuf,
    end: Instant,
}

impl Clone for Hosts {
    fn clone(&self) -> Self {
        let (client, app) = (self.client.borrow(), self.app.borrow());
        Hosts { client, app, dir: self.dir.clone(), end: self.end }
    }
}

impl Hosts {
    /// Returns the hosts of a cluster, for a row that ends at `end`.
    pub fn of(cluster: &Cluster, end: Instant) -> Self {
        let (client, app) = (cluster.client.borrow(), cluster.host(Tier::AppNode).borrow());
        Hosts { client, app, dir: cluster.scratch().to_owned(), end }
    }

    /// Returns the rest of the row's time.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Returns the scratch folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a path in the scratch folder, as text.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Writes a file into the scratch folder; returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path(name);
        fs::write(&path, text).with_context(|| path.clone())?;
        Ok(path)
    }

    /// Runs a command on the client's host to its end; returns its standard output.
    pub fn client(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run(&self.client, program, arguments)
    }

    /// Runs a shell command on the client's host.
    pub fn client_shell(&self, line: &str) -> Result<String> {
        self.client("sh", &["-ec", line])
    }

    /// Runs a script with python3 on the client's host.
    pub fn client_python(&self, name: &str, script: &str, arguments: &[&str]) -> Result<String> {
        let path = self.path(name);
        // Written once: another process may be reading it.
        if !Path::new(&path).exists() {
            fs::write(&path, script)?;
        }
        let mut all = vec![path.as_str()];
        all.extend_from_slice(arguments);
        self.client("/usr/bin/python3", &all)
    }

    /// Runs a command on the app host to its end, without the filter.
    pub fn app(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run(&self.app, program, arguments)
    }

    fn run(&self, host: &Host, program: &str, arguments: &[&str]) -> Result<String> {
        let seconds = self.left().as_secs().max(1).to_string();
        let mut command: Command = host.command("timeout");
        command.args(["-k", "2", &seconds, program]).args(arguments).stdin(Stdio::null());
        let output = command.output().with_context(|| program.to_owned())?;
        let reported = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(reported);
        }
        let why = if output.status.code() == Some(TIMED_OUT) { " (not within the row's limit)" } else { "" };
        let reported = reported + &String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = reported.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join(" / ");
        bail!("{program} {}: {}{why}: {tail}", arguments.join(" "), output.status)
    }
}

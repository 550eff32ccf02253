//! Processes with a log file, ended by pid and never left running.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a daemon may take to end after SIGTERM before it is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Calls `done` until it returns `Some`, for at most `deadline`; the error names `what` was waited for.
pub fn wait_until<T>(what: &str, deadline: Duration, mut done: impl FnMut() -> Option<T>) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = done() {
            return Ok(value);
        }
        if Instant::now() >= end {
            bail!("{what}: not within {deadline:?}");
        }
        std::thread::sleep(POLL);
    }
}

/// Returns the processor time of a process's first thread, user and system, in nanoseconds.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.split_whitespace().next().and_then(|n| n.parse().ok()).with_context(|| format!("{path}: {text:?}"))
}

/// Returns the processor time of all threads that a process has, user and system, in nanoseconds.
pub fn cpu_ns_of_all(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/task");
    let mut sum = 0;
    for task in fs::read_dir(&path).with_context(|| path.clone())? {
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default(); // a thread may have ended
        sum += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum)
}

/// Returns a command for `program` whose process receives SIGTERM when the thread that starts it ends: a test
/// that is killed leaves no daemon behind.
#[must_use]
pub fn ending_with_parent(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", program]);
    command
}

/// A child process whose output goes to a file.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command`; standard output and error go to `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out = File::create(log).with_context(|| format!("{name}: cannot create {}", log.display()))?;
        let err = out.try_clone()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .with_context(|| format!("{name}: cannot start {command:?}"))?;
        Ok(Process { name: name.to_owned(), child, log: log.to_owned(), status: None })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status once it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Sends a signal, by name without SIG, to this process (while it has not been reaped).
    pub fn signal(&mut self, signal: &str) -> Result<()> {
        if self.exited().is_some() {
            bail!("{} has ended already", self.name);
        }
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status()?;
        if !status.success() {
            bail!("{}: kill -s {signal} {pid} failed", self.name);
        }
        Ok(())
    }

    /// Sends SIGTERM, waits, and sends SIGKILL if it does not end; returns the exit status.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        if self.exited().is_none() {
            self.signal("TERM")?;
        }
        let name = self.name.clone();
        let ended = wait_until(&format!("{name} to end after SIGTERM"), STOP_DEADLINE, || self.exited());
        if ended.is_err() {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
        ended
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.status = self.child.wait().ok();
    }

    /// Returns the last `lines` lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Returns the path of the log file.
    pub fn log(&self) -> &Path {
        &self.log
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() {
            let _ = self.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let log = std::env::temp_dir().join(format!("csp-process-{}.log", std::process::id()));
        let mut command = ending_with_parent("sh");
        command.args(["-c", "echo ready; exec sleep 1000"]);
        let started = std::thread::spawn({
            let log = log.clone();
            move || {
                let process = Process::spawn("sleep", command, &log).unwrap();
                let ready = || (process.log_tail(1) == "ready").then_some(());
                wait_until("the process", Duration::from_secs(20), ready).unwrap();
                process
            }
        });
        let mut process = started.join().unwrap();
        let status = wait_until("its end", Duration::from_secs(20), || process.exited()).unwrap();
        assert_eq!(status.signal(), Some(15));
        fs::remove_file(log).unwrap();
    }
}

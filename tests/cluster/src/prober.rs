//! A client that opens a connection to a VIP again and again, to measure for how long it does not answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::Host;
use crate::process::Process;

/// Time-out of an attempt, in milliseconds: a gap is measured to within it.
const TIMEOUT_MS: u64 = 50;

/// The running client.
#[derive(Debug)]
pub struct Prober {
    _process: Process,
    log: PathBuf,
}

impl Prober {
    /// Starts it on host `client`. Script and log are in the folder `scratch`.
    ///
    /// # Panics
    /// If Python cannot be started.
    pub fn start(client: &Host, scratch: &Path, vip: &str, port: u16) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let script = scratch.join("prober.py");
        if !script.exists() {
            let text = include_str!("../apps/prober.py");
            fs::write(&script, text).expect("the scratch folder can be written");
        }
        let mut command = client.command("/usr/bin/python3");
        command.arg(&script).args([vip, &port.to_string(), &TIMEOUT_MS.to_string()]);
        let at = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = scratch.join(format!("log/prober-{at}.log"));
        Prober { _process: Process::spawn("prober", command, &log).expect("python3 starts"), log }
    }

    /// Returns the attempts so far: when each began, in seconds of CLOCK_MONOTONIC, and whether it was
    /// answered.
    pub fn attempts(&self) -> Vec<(f64, bool)> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let attempt = |line: &str| {
            let (at, outcome) = line.split_once(' ')?;
            Some((at.parse().ok()?, outcome == "up"))
        };
        text.lines().filter_map(attempt).collect()
    }

    /// Returns the longest time between two answered attempts that begins after `since`, in seconds; to the
    /// last attempt, if that was not answered.
    pub fn longest_gap(&self, since: f64) -> f64 {
        let attempts = self.attempts();
        let mut answered =
            attempts.iter().filter(|(at, up)| *up && *at >= since).map(|(at, _)| *at).peekable();
        let (mut longest, mut last) = (0.0_f64, answered.peek().copied().unwrap_or(since));
        for at in answered.chain(attempts.last().filter(|(_, up)| !up).map(|(at, _)| *at)) {
            (longest, last) = (longest.max(at - last), at);
        }
        longest
    }

    /// Returns whether an attempt that began after `since` was answered.
    pub fn is_up_since(&self, since: f64) -> bool {
        self.attempts().iter().any(|(at, up)| *up && *at > since)
    }
}

/// Returns the time on the clock of [`Prober::attempts`].
pub fn now_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

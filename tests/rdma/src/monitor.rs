//! QEMU's monitor (QMP), which changes a guest from outside.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Time limit of QEMU's answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// A connection to a guest's monitor.
#[derive(Debug)]
pub(crate) struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Connects, and sends the capabilities command that the protocol requires first.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.execute(r#"{"execute": "qmp_capabilities"}"#)?;
        Ok(monitor)
    }

    /// Connects or disconnects the link of a network device.
    pub(crate) fn link(&mut self, device: &str, up: bool) -> Result<()> {
        self.execute(&format!(
            r#"{{"execute": "set_link", "arguments": {{"name": "{device}", "up": {up}}}}}"#
        ))
    }

    /// Stops or resumes the guest's processors.
    pub(crate) fn frozen(&mut self, frozen: bool) -> Result<()> {
        let command = if frozen { "stop" } else { "cont" };
        self.execute(&format!(r#"{{"execute": "{command}"}}"#))
    }

    /// Sends a command and waits for its answer. The greeting and events are skipped.
    fn execute(&mut self, command: &str) -> Result<()> {
        writeln!(self.0.get_mut(), "{command}")?;
        let mut line = String::new();
        while self.0.read_line(&mut line)? > 0 {
            if line.starts_with(r#"{"return""#) {
                return Ok(());
            }
            if line.starts_with(r#"{"error""#) {
                bail!("{command}: {line}");
            }
            line.clear();
        }
        bail!("{command}: QEMU is gone")
    }
}

//! QEMU's monitor (QMP): what is done to a machine from outside.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// What QEMU may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// A connection with a machine's monitor.
#[derive(Debug)]
pub(crate) struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// Connects and negotiates nothing, as the protocol demands before the first command.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).with_context(|| path.display().to_string())?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.execute(r#"{"execute": "qmp_capabilities"}"#)?;
        Ok(monitor)
    }

    /// Puts a network device's cable in or pulls it out.
    pub(crate) fn link(&mut self, device: &str, up: bool) -> Result<()> {
        self.execute(&format!(
            r#"{{"execute": "set_link", "arguments": {{"name": "{device}", "up": {up}}}}}"#
        ))
    }

    /// Lets its processors stand still, or go on.
    pub(crate) fn frozen(&mut self, frozen: bool) -> Result<()> {
        let command = if frozen { "stop" } else { "cont" };
        self.execute(&format!(r#"{{"execute": "{command}"}}"#))
    }

    /// Sends a command and waits for its answer. Greeting and events are lines without one.
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

//! A program in a guest, seen from the host.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Signal;

use crate::frame::Frame;

/// How long a program may take to end after it was told to.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Where a program's output goes on the host.
#[derive(Debug)]
pub enum Output {
    /// To this process' own standard output and error.
    Inherit,
    /// Both to a file.
    File(File),
    /// Both into memory, for [`Program::captured`].
    Memory,
}

/// What the guest's reader and the program's handle share.
#[derive(Debug)]
pub(crate) struct Sink {
    output: Output,
    memory: Mutex<Vec<u8>>,
}

impl Sink {
    pub(crate) fn new(output: Output) -> Self {
        Sink { output, memory: Mutex::default() }
    }

    /// Takes what the program wrote.
    pub(crate) fn take(&self, bytes: &[u8], error: bool) {
        // Output that the host cannot keep is lost; the program's exit code is not.
        let _ = match &self.output {
            Output::Inherit if error => io::stderr().write_all(bytes),
            Output::Inherit => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
            Output::File(file) => (&*file).write_all(bytes),
            Output::Memory => {
                self.memory.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
                Ok(())
            }
        };
    }
}

/// A program that was started in a guest.
#[derive(Debug)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) agent: Arc<Mutex<UnixStream>>,
    pub(crate) sink: Arc<Sink>,
    pub(crate) ended: Receiver<u32>,
    pub(crate) code: Option<u32>,
}

impl Program {
    /// Its exit code once it has ended: 128 + n for signal n, 127 where it could not be started.
    ///
    /// # Errors
    /// Where the guest is gone, or the program runs on after `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> Result<u32> {
        if let Some(code) = self.code {
            return Ok(code);
        }
        match self.ended.recv_timeout(deadline) {
            Ok(code) => {
                self.code = Some(code);
                Ok(code)
            }
            Err(RecvTimeoutError::Timeout) => bail!("{} runs on after {deadline:?}", self.name),
            Err(RecvTimeoutError::Disconnected) => bail!("{}: its guest is gone", self.name),
        }
    }

    /// Whether it has ended, with its exit code.
    pub fn exited(&mut self) -> Option<u32> {
        self.wait(Duration::ZERO).ok()
    }

    /// Sends a signal to it and its children.
    ///
    /// # Errors
    /// Where the guest is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Frame::Signal(signal.as_raw() as u32).write(self.number, &mut *agent)?)
    }

    /// SIGTERM, and SIGKILL where that does not help; its exit code.
    ///
    /// # Errors
    /// Where it did not end on SIGTERM, or the guest is gone.
    pub fn stop(&mut self) -> Result<u32> {
        let began = Instant::now();
        self.signal(Signal::TERM)?;
        let outcome = self.wait(STOP_DEADLINE);
        if outcome.is_err() && began.elapsed() >= STOP_DEADLINE {
            self.signal(Signal::KILL)?;
        }
        outcome
    }

    /// What it has written so far, of a program started with [`Output::Memory`].
    pub fn captured(&self) -> String {
        String::from_utf8_lossy(&self.sink.memory.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

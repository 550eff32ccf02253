//! The host's handle of a program in a guest.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Signal;

use crate::frame::Frame;

/// Time limit for the end of a program after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// The destination of a program's output on the host.
#[derive(Debug)]
pub enum Output {
    /// This process's own standard output and error.
    Inherit,
    /// A file, for both outputs.
    File(File),
    /// Memory, for both outputs: [`Program::captured`] returns it.
    Memory,
}

/// Output shared by the reader of the guest's frames and the program's handle.
#[derive(Debug)]
pub(crate) struct Sink {
    output: Output,
    memory: Mutex<Vec<u8>>,
}

impl Sink {
    pub(crate) fn new(output: Output) -> Self {
        Sink { output, memory: Mutex::default() }
    }

    /// Stores output of the program.
    pub(crate) fn take(&self, bytes: &[u8], error: bool) {
        // A failure to store output is ignored; the program's exit code is still reported.
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
    /// Waits for the program's end and returns its exit code: 128 + n after signal n, 127 if it could not be
    /// started.
    ///
    /// # Errors
    /// The guest has ended, or the program has not ended within `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> Result<u32> {
        if let Some(code) = self.code {
            return Ok(code);
        }
        match self.ended.recv_timeout(deadline) {
            Ok(code) => {
                self.code = Some(code);
                Ok(code)
            }
            Err(RecvTimeoutError::Timeout) => bail!("{} has not ended after {deadline:?}", self.name),
            Err(RecvTimeoutError::Disconnected) => bail!("{}: its guest is gone", self.name),
        }
    }

    /// Returns the exit code if the program has ended.
    pub fn exited(&mut self) -> Option<u32> {
        self.wait(Duration::ZERO).ok()
    }

    /// Sends a signal to the program and its children.
    ///
    /// # Errors
    /// The guest has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Frame::Signal(signal.as_raw() as u32).write(self.number, &mut *agent)?)
    }

    /// Sends SIGTERM, and SIGKILL if the program does not end. Returns its exit code.
    ///
    /// # Errors
    /// It did not end after SIGTERM, or the guest has ended.
    pub fn stop(&mut self) -> Result<u32> {
        let began = Instant::now();
        self.signal(Signal::TERM)?;
        let outcome = self.wait(STOP_DEADLINE);
        if outcome.is_err() && began.elapsed() >= STOP_DEADLINE {
            self.signal(Signal::KILL)?;
        }
        outcome
    }

    /// Returns the output so far of a program started with [`Output::Memory`].
    pub fn captured(&self) -> String {
        String::from_utf8_lossy(&self.sink.memory.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

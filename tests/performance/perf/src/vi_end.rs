//! An end over a provider of Virtual Interfaces.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use csp_vi::shm::ShmProvider;
use csp_vi::tcp::TcpProvider;
use csp_vi::ucx::UcxProvider;
use csp_vi::verbs::VerbsProvider;
use csp_vi::{Armed, Completion, Event, Provider, ViAddress, ViConfig, ViError, ViId, WaitSet};

use crate::address::Kind;
use crate::end::{End, MESSAGE_LEN_MAX, Waiting};

/// Descriptors of each end.
const CONFIG: ViConfig = ViConfig { receive_depth: 64, send_depth: 64, message_len: MESSAGE_LEN_MAX as u32 };

/// Interval at which a blocked end polls, though nothing woke it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// One VI and its provider.
pub struct ViEnd {
    provider: Box<dyn Provider>,
    vi: ViId,
    waiting: Waiting,
    set: WaitSet,
    generation: Option<u64>,
    /// Whether to rest between two polls: a poll of shared memory takes a few instructions, that of a library
    /// many.
    rests: bool,
}

fn open(kind: Kind) -> Result<Box<dyn Provider>> {
    Ok(match kind {
        Kind::Shm => Box::new(ShmProvider::new()?),
        Kind::Tcp => Box::new(TcpProvider::new()?),
        Kind::Ucx => Box::new(UcxProvider::new()?),
        Kind::Verbs => Box::new(VerbsProvider::new()?),
    })
}

/// A provider that listens for one peer.
pub struct ViListener(Box<dyn Provider>);

impl ViListener {
    /// Starts to listen.
    pub fn bind(kind: Kind, address: &ViAddress) -> Result<Self> {
        let mut provider = open(kind)?;
        provider.listen(address).with_context(|| format!("cannot listen at {address}"))?;
        Ok(ViListener(provider))
    }

    /// Waits for the peer.
    pub fn accept(self) -> Result<ViEnd> {
        ViEnd::establish(self.0)
    }
}

impl ViEnd {
    /// Connects to a server.
    pub fn connect(kind: Kind, address: &ViAddress) -> Result<ViEnd> {
        let mut provider = open(kind)?;
        provider.connect(address, CONFIG, b"")?;
        ViEnd::establish(provider).with_context(|| format!("cannot connect to {address}"))
    }

    fn establish(provider: Box<dyn Provider>) -> Result<ViEnd> {
        let (set, rests) = (WaitSet::new()?, provider.name() == "shm");
        let mut end = ViEnd { provider, vi: ViId(0), waiting: Waiting::Block, set, generation: None, rests };
        loop {
            match end.provider.poll_event() {
                Some(Event::Request(request)) => drop(end.provider.accept(request.id, CONFIG, b"")?),
                Some(Event::Established { vi, .. }) => {
                    end.vi = vi;
                    return Ok(end);
                }
                Some(Event::Refused { reason, .. }) => return Err(reason.into()),
                Some(Event::Disconnected { .. }) => bail!("the peer went away at once"),
                None => {
                    end.provider.poll();
                    end.block()?;
                }
            }
        }
    }

    fn block(&mut self) -> Result<()> {
        if self.provider.arm()? == Armed::Busy {
            return Ok(());
        }
        let generation = self.provider.wake_generation();
        if self.generation != Some(generation) {
            let mut wanted = Vec::new();
            self.provider.wake(&mut wanted);
            self.set.update(&wanted);
            self.generation = Some(generation);
        }
        self.set.wait(LOOK_EVERY);
        Ok(())
    }
}

impl End for ViEnd {
    fn send(&mut self, tag: u32, bytes: &[u8]) -> Result<()> {
        loop {
            match self.provider.post_send(self.vi, 0, tag, &[bytes], false) {
                Ok(()) => return Ok(()),
                // Nothing but credits can arrive here: requests and replies alternate.
                Err(ViError::Full) => {
                    if let Some(Event::Disconnected { .. }) = self.provider.poll_event() {
                        bail!("the peer went away");
                    }
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<(usize, u32)>> {
        loop {
            if let Some(Completion::Received { vi, buffer, len, immediate }) = self.provider.poll() {
                let len = self.provider.read(vi, buffer, 0, into)?.min(len as usize);
                self.provider.post_recv(vi, buffer)?;
                return Ok(Some((len, immediate)));
            }
            match self.provider.poll_event() {
                Some(Event::Disconnected { .. }) => return Ok(None),
                None if self.waiting == Waiting::Block => self.block()?,
                _ if self.rests => std::hint::spin_loop(),
                _ => {}
            }
        }
    }

    fn set_waiting(&mut self, waiting: Waiting) -> Result<()> {
        self.waiting = waiting;
        Ok(())
    }
}

impl Drop for ViEnd {
    fn drop(&mut self) {
        let _ = self.provider.disconnect(self.vi);
        // A library that sends through a socket does so while it is polled.
        for _ in 0..10_000 {
            self.provider.poll();
            self.provider.poll_event();
        }
    }
}

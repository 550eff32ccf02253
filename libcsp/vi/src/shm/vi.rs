//! One VI as one end has it: its socket, its mapping, its two rings.

use std::sync::Arc;

use super::layout::{Arena, Lent, Mapping};
use super::ring::{Receiver, Sender, Sending, Violation};
use super::sys;
use crate::{Memory, ViConfig, ViError};

/// How far a VI is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The listener has not answered yet.
    Connecting,
    /// Connected; the caller has not been told.
    Opening,
    /// In use.
    Open,
    /// The caller was told of its end.
    Closed,
}

/// The shared memory and its two directions.
pub(super) struct Rings {
    pub sender: Sender,
    pub receiver: Receiver,
    // Declared last: the rings point into it.
    mapping: Arc<Mapping>,
}

impl Rings {
    pub(super) fn of_listener(mapping: Mapping) -> Self {
        let (incoming, outgoing) = (mapping.to_listener(), mapping.to_connector());
        Receiver::publish_all(&incoming);
        Receiver::publish_all(&outgoing);
        Self::new(mapping, incoming, outgoing)
    }

    pub(super) fn of_connector(mapping: Mapping) -> Self {
        let (incoming, outgoing) = (mapping.to_connector(), mapping.to_listener());
        Self::new(mapping, incoming, outgoing)
    }

    fn new(mapping: Mapping, incoming: Arena, outgoing: Arena) -> Self {
        let (sender, receiver) = (Sender::new(outgoing), Receiver::new(incoming));
        Rings { sender, receiver, mapping: Arc::new(mapping) }
    }

    /// All of it.
    pub(super) fn memory(&self) -> Memory {
        Memory::new(Lent(Arc::clone(&self.mapping)))
    }

    /// Where the payload of a slot of the outgoing direction starts in [`memory`](Rings::memory).
    pub(super) fn outgoing_at(&self, slot: usize) -> usize {
        self.mapping.payload_offset(&self.sender.arena(), slot)
    }

    /// Where the payload of a slot of the incoming direction starts in it.
    pub(super) fn incoming_at(&self, slot: usize) -> usize {
        self.mapping.payload_offset(&self.receiver.arena(), slot)
    }

    /// The memory as the peer sees it: outgoing, incoming.
    #[cfg(test)]
    pub(super) fn arenas(&self) -> (super::layout::Arena, super::layout::Arena) {
        (self.sender.arena(), self.receiver.arena())
    }
}

pub(super) struct Vi {
    pub stage: Stage,
    pub config: ViConfig,
    pub rings: Option<Rings>,
    /// Carries the set-up, then wakes; its hang-up is the peer's end. `None` once it hung up.
    pub socket: Option<sys::Fd>,
    /// The end of this VI is in the event queue: the rings are not looked at any more.
    pub ended: bool,
    /// It ended because the peer wrote nonsense into the memory.
    pub broken: bool,
    /// Signalled sends whose completion the caller has not polled.
    pub signalled: u32,
}

impl Vi {
    pub(super) fn new(stage: Stage, config: ViConfig, rings: Option<Rings>, socket: Option<sys::Fd>) -> Self {
        Vi { stage, config, rings, socket, ended: false, broken: false, signalled: 0 }
    }

    /// The rings, while messages can be sent.
    pub(super) fn sending(&mut self) -> Result<&mut Rings, ViError> {
        match (self.stage, &mut self.rings, &self.socket, self.ended) {
            (Stage::Open, Some(rings), Some(_), false) => Ok(rings),
            _ => Err(ViError::NotConnected),
        }
    }

    /// Has a message of `len` bytes, at most the VI's `message_len`, written into the next slot.
    pub(super) fn send(
        &mut self,
        immediate: u32,
        len: usize,
        signalled: bool,
        write: impl FnOnce(&Arena, usize),
    ) -> Result<Result<Sending, Violation>, ViError> {
        let full = signalled && self.signalled >= self.config.send_depth;
        let Rings { sender, receiver, .. } = self.sending()?;
        if sender.is_lent() {
            return Err(ViError::Unsupported("send on a VI whose slots are lent"));
        }
        Ok(if full { Ok(Sending::Full) } else { sender.send(immediate, len, receiver.progress(), write) })
    }

    /// The receiver, while its messages are to be polled.
    pub(super) fn receiving(&mut self) -> Option<&mut Receiver> {
        let polled = self.stage == Stage::Open && !self.ended;
        self.rings.as_mut().filter(|_| polled).map(|rings| &mut rings.receiver)
    }

    /// The peer is gone, and the caller not told yet.
    pub(super) fn is_hung_up(&self) -> bool {
        self.socket.is_none() && !self.ended && matches!(self.stage, Stage::Opening | Stage::Open)
    }
}

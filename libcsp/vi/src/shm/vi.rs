//! One end of a VI: its socket, its mapping and its two rings.

use std::sync::Arc;

use super::layout::{Arena, Lent, Mapping};
use super::ring::{Receiver, Sender, Sending, Violation};
use super::sys;
use crate::{Memory, ViConfig, ViError};

/// The state of a VI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The listener has not answered yet.
    Connecting,
    /// Connected; `Established` has not been polled.
    Opening,
    /// In use.
    Open,
    /// The caller has polled the end of the VI.
    Closed,
}

/// The shared memory and its two directions.
pub(super) struct Rings {
    pub sender: Sender,
    pub receiver: Receiver,
    // Declared last, hence dropped last: the rings point into it.
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

    /// Returns the memory of both directions.
    pub(super) fn memory(&self) -> Memory {
        Memory::new(Lent(Arc::clone(&self.mapping)))
    }

    /// Returns the offset in [`memory`](Rings::memory) of the payload of a slot of the outgoing direction.
    pub(super) fn outgoing_at(&self, slot: usize) -> usize {
        self.mapping.payload_offset(&self.sender.arena(), slot)
    }

    /// Returns the offset in [`memory`](Rings::memory) of the payload of a slot of the incoming direction.
    pub(super) fn incoming_at(&self, slot: usize) -> usize {
        self.mapping.payload_offset(&self.receiver.arena(), slot)
    }

    /// Returns the memory of both directions: outgoing, incoming.
    #[cfg(test)]
    pub(super) fn arenas(&self) -> (super::layout::Arena, super::layout::Arena) {
        (self.sender.arena(), self.receiver.arena())
    }
}

pub(super) struct Vi {
    pub stage: Stage,
    pub config: ViConfig,
    pub rings: Option<Rings>,
    /// Carries the set-up and then wakes; its hang-up is the peer's end. `None` once it has hung up.
    pub socket: Option<sys::Fd>,
    /// The end of the VI is in the event queue: the rings are no longer polled.
    pub ended: bool,
    /// The VI ended because the peer wrote an invalid value to the memory.
    pub broken: bool,
    /// Signalled sends whose completion the caller has not polled.
    pub signalled: u32,
}

impl Vi {
    pub(super) fn new(stage: Stage, config: ViConfig, rings: Option<Rings>, socket: Option<sys::Fd>) -> Self {
        Vi { stage, config, rings, socket, ended: false, broken: false, signalled: 0 }
    }

    /// Returns the rings if messages can be sent.
    pub(super) fn sending(&mut self) -> Result<&mut Rings, ViError> {
        match (self.stage, &mut self.rings, &self.socket, self.ended) {
            (Stage::Open, Some(rings), Some(_), false) => Ok(rings),
            _ => Err(ViError::NotConnected),
        }
    }

    /// Calls `write` for the next slot and sends the message of `len` bytes, at most the VI's `message_len`.
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

    /// As [`send`](Self::send), unsignalled, with a message that `make` writes and measures.
    pub(super) fn send_made(
        &mut self,
        immediate: u32,
        make: impl FnOnce(&Arena, usize) -> Option<usize>,
    ) -> Result<Result<Option<Sending>, Violation>, ViError> {
        let Rings { sender, receiver, .. } = self.sending()?;
        if sender.is_lent() {
            return Err(ViError::Unsupported("send on a VI whose slots are lent"));
        }
        Ok(sender.send_made(immediate, receiver.progress(), make))
    }

    /// Returns the receiver while messages may be polled.
    pub(super) fn receiving(&mut self) -> Option<&mut Receiver> {
        let polled = self.stage == Stage::Open && !self.ended;
        self.rings.as_mut().filter(|_| polled).map(|rings| &mut rings.receiver)
    }

    /// The peer is gone and its end has not been queued as an event.
    pub(super) fn is_hung_up(&self) -> bool {
        self.socket.is_none() && !self.ended && matches!(self.stage, Stage::Opening | Stage::Open)
    }
}

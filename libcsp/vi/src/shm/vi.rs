//! One VI as one end has it: its socket, its mapping, its two rings.

use super::layout::Mapping;
use super::ring::{Receiver, Sender};
use super::sys;
use crate::ViConfig;

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
    _mapping: Mapping,
}

impl Rings {
    pub(super) fn of_listener(mapping: Mapping) -> Self {
        let (incoming, outgoing) = (mapping.to_listener(), mapping.to_connector());
        Receiver::publish_all(&incoming);
        Receiver::publish_all(&outgoing);
        Rings { sender: Sender::new(outgoing), receiver: Receiver::new(incoming), _mapping: mapping }
    }

    pub(super) fn of_connector(mapping: Mapping) -> Self {
        let (incoming, outgoing) = (mapping.to_connector(), mapping.to_listener());
        Rings { sender: Sender::new(outgoing), receiver: Receiver::new(incoming), _mapping: mapping }
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
    /// Signalled sends whose completion the caller has not polled.
    pub signalled: u32,
}

impl Vi {
    pub(super) fn new(stage: Stage, config: ViConfig, rings: Option<Rings>, socket: Option<sys::Fd>) -> Self {
        Vi { stage, config, rings, socket, ended: false, signalled: 0 }
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

//! Registered memory of the providers that need no device's consent for it.

use crate::slots::{SLOTS_MAX, Slots};
use crate::{Memory, PIECES_MAX, Piece, RegionId, ViConfig, ViError};

/// The regions of one provider.
pub(crate) struct Regions(Slots<Memory>);

/// A receive buffer in registered memory.
pub(crate) struct Place {
    pub memory: Memory,
    pub offset: usize,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Regions(Slots::new(SLOTS_MAX))
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<RegionId, ViError> {
        self.0.insert(memory.clone()).map(RegionId).ok_or(ViError::Exhausted("memory region"))
    }

    pub(crate) fn deregister(&mut self, region: RegionId) -> Result<(), ViError> {
        self.0.remove(region.0).map(drop).ok_or(ViError::Unknown("region"))
    }

    /// The memory that a piece lies in, wholly.
    pub(crate) fn find(&self, piece: &Piece) -> Result<&Memory, ViError> {
        let memory = self.0.get(piece.region.0).ok_or(ViError::Unknown("region"))?;
        memory.at(piece.offset, piece.len).ok_or(ViError::Config("a piece lies outside its region"))?;
        Ok(memory)
    }

    /// Bytes of a message made of `head` and `pieces`, if it can be sent on a VI of this configuration.
    pub(crate) fn message_len(
        &self,
        head: &[u8],
        pieces: &[Piece],
        config: &ViConfig,
    ) -> Result<usize, ViError> {
        if pieces.len() > PIECES_MAX {
            return Err(ViError::Config("a message is gathered from at most 4 pieces"));
        }
        let len = pieces.iter().fold(head.len(), |len, piece| len.saturating_add(piece.len));
        let max = config.message_len as usize;
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        pieces.iter().try_for_each(|piece| self.find(piece).map(drop))?;
        Ok(len)
    }

    /// The pieces as receive buffers of a VI of this configuration.
    pub(crate) fn places(&self, buffers: &[Piece], config: &ViConfig) -> Result<Box<[Place]>, ViError> {
        if buffers.len() != config.receive_depth as usize {
            return Err(ViError::Config("there are as many receive buffers as the receive depth"));
        }
        let place = |piece: &Piece| {
            if piece.len < config.message_len as usize {
                return Err(ViError::Config("a receive buffer is shorter than the message length"));
            }
            Ok(Place { memory: self.find(piece)?.clone(), offset: piece.offset })
        };
        buffers.iter().map(place).collect()
    }
}

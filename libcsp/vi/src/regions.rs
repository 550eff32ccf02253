//! Registered memory of the providers that register it with no device (`shm`, `ucx`, `memory`).

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

    /// Returns the memory that contains the whole piece.
    pub(crate) fn find(&self, piece: &Piece) -> Result<&Memory, ViError> {
        let memory = self.0.get(piece.region.0).ok_or(ViError::Unknown("region"))?;
        memory.at(piece.offset, piece.len).ok_or(ViError::Config("a piece is not within its region"))?;
        Ok(memory)
    }

    /// Returns the length of the message made of `head` and `pieces`, or why it cannot be sent on a VI with
    /// this configuration.
    pub(crate) fn message_len(
        &self,
        head: &[u8],
        pieces: &[Piece],
        config: &ViConfig,
    ) -> Result<usize, ViError> {
        if pieces.len() > PIECES_MAX {
            return Err(ViError::Config("a message has at most 4 pieces"));
        }
        let len = pieces.iter().fold(head.len(), |len, piece| len.saturating_add(piece.len));
        let max = config.message_len as usize;
        if len > max {
            return Err(ViError::TooLong { len, max });
        }
        pieces.iter().try_for_each(|piece| self.find(piece).map(drop))?;
        Ok(len)
    }

    /// Converts the pieces to the receive buffers of a VI with this configuration.
    pub(crate) fn places(&self, buffers: &[Piece], config: &ViConfig) -> Result<Box<[Place]>, ViError> {
        if buffers.len() != config.receive_depth as usize {
            return Err(ViError::Config("the number of receive buffers must equal receive_depth"));
        }
        let place = |piece: &Piece| {
            if piece.len < config.message_len as usize {
                return Err(ViError::Config("a receive buffer is shorter than message_len"));
            }
            Ok(Place { memory: self.find(piece)?.clone(), offset: piece.offset })
        };
        buffers.iter().map(place).collect()
    }
}

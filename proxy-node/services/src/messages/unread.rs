//! Memory of unread answers: the answer to a peer that asks and does not read stays in the proxy.

use std::collections::HashMap;

use super::peer::Peer;
use super::requested::Source;

/// Answers of at most this many bytes are always sent: each connection has at most one.
const SHORT: usize = 4 * 1024;
/// Largest number of bytes of longer answers for one address (for IPv6: for its first 64 bits). A single
/// answer may be longer.
const EACH_MAX: usize = 2 << 20;
/// Largest number of bytes of a worker's longer answers.
const ALL_MAX: usize = 32 << 20;

/// Bytes of long answers that were not read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    all: usize,
    by: HashMap<Source, usize>,
}

impl Unread {
    /// Returns how many there are.
    pub fn bytes(&self) -> usize {
        self.all
    }

    /// Charges a peer with an answer.
    ///
    /// # Errors
    /// The reason for which it is not sent.
    pub fn charge(&mut self, peer: &mut Peer, len: usize) -> Result<(), String> {
        if len <= SHORT {
            return Ok(());
        }
        let source = Source::of(peer.client.ip());
        let its = self.by.get(&source).copied().unwrap_or(0);
        if its > 0 && its + len > EACH_MAX {
            return Err(format!(
                "answers of {its} bytes to the address were not read, this one has {len}, and there may be {EACH_MAX}: read them"
            ));
        }
        if self.all > 0 && self.all + len > ALL_MAX {
            return Err(format!(
                "answers of {} bytes were not read, this one has {len}, and there may be {ALL_MAX}; ask again",
                self.all
            ));
        }
        self.all += len;
        *self.by.entry(source).or_default() += len;
        peer.unread += len;
        Ok(())
    }

    /// Releases the bytes charged for a peer, because everything was sent to it or it has disconnected.
    pub fn release(&mut self, peer: &mut Peer) {
        let len = std::mem::take(&mut peer.unread);
        if len == 0 {
            return;
        }
        self.all -= len;
        let source = Source::of(peer.client.ip());
        if let Some(its) = self.by.get_mut(&source) {
            *its -= len;
            if *its == 0 {
                self.by.remove(&source);
            }
        }
    }
}

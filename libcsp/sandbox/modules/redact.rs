//! Blanks a word in the payload of TCP and UDP packets with `*`, and updates their checksums. The parameter
//! is the word. A word that two segments share is not found; of coalesced packets the whole payload is one.
//!
//! Built as `anonymise.rs` is.
#![no_std]

use csp_guest::Parameters;
use csp_guest::packet::{Filter, Packet, Verdict};

/// Longest word.
const WORD_MAX: usize = 64;

struct Redact {
    word: [u8; WORD_MAX],
    len: usize,
}

impl Default for Redact {
    fn default() -> Self {
        Redact { word: [0; WORD_MAX], len: 0 }
    }
}

impl Filter for Redact {
    fn configure(&mut self, parameters: &Parameters) -> Result<(), &'static str> {
        let mut text = [0; WORD_MAX];
        let word = parameters.read(&mut text).filter(|word| !word.is_empty());
        let word = word.ok_or("the parameter is the word that is blanked, of 1 to 64 bytes")?;
        self.word[..word.len()].copy_from_slice(word.as_bytes());
        self.len = word.len();
        Ok(())
    }

    fn on_packet(&mut self, packet: &mut Packet) -> Verdict {
        let word = &self.word[..self.len];
        let Some(payload) = packet.payload() else { return Verdict::Next(0) };
        let mut at = payload.start;
        while at + word.len() <= payload.end {
            if packet.bytes()[at] == word[0] && &packet.bytes()[at..at + word.len()] == word {
                for _ in word {
                    packet.store(at, b'*');
                    at += 1;
                }
            } else {
                at += 1;
            }
        }
        Verdict::Next(0)
    }
}

csp_guest::export_packet!(Redact, buffer: 65_549, outputs: 1);

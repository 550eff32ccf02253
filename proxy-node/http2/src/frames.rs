//! What the heads of frames say (RFC 9113 §4.1), read as the bytes pass: h2 bounds what it stores, and does
//! not count frames that it answers at once or ignores.
//!
//! ```text
//!  Preface (24 bytes, of clients) ─▶ Head (9 bytes) ─▶ Payload ─▶ Head …
//! ```

use crate::budget::{Budget, Flood};
use crate::limits::FRAMES_A_TURN;
use crate::preface::PREFACE;

const HEAD_LEN: usize = 9;
const PREFACE_LEN: u32 = PREFACE.len() as u32;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

/// The reader of the frames that a peer sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    of_client: bool,
    preface_left: u32,
    head: [u8; HEAD_LEN],
    /// Bytes of `head` that were read.
    head_len: u8,
    payload_left: u32,
    /// The first bytes of a GOAWAY's payload.
    last_stream: [u8; 4],
    last_stream_len: u8,
    /// The least number of a stream that the peer has named in GOAWAY.
    gone_away: Option<u32>,
}

impl Frames {
    /// Creates the reader of a client's frames, which begin with the preface, or of a server's.
    pub(crate) fn new(of_client: bool) -> Self {
        Frames {
            of_client,
            preface_left: if of_client { PREFACE_LEN } else { 0 },
            head: [0; HEAD_LEN],
            head_len: 0,
            payload_left: 0,
            last_stream: [0; 4],
            last_stream_len: 4,
            gone_away: None,
        }
    }

    /// Reads `bytes` up to the end of the last frame that the turn may have. Returns their number. `frames`:
    /// those that were begun in this turn.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        frames: &mut u32,
        budget: &mut Budget,
    ) -> Result<usize, Flood> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.preface_left > 0 {
                let len = rest.len().min(self.preface_left as usize);
                self.preface_left -= len as u32;
                at += len;
            } else if self.payload_left > 0 {
                let len = rest.len().min(self.payload_left as usize);
                self.payload(&rest[..len]);
                at += len;
            } else {
                if self.head_len == 0 && *frames >= FRAMES_A_TURN {
                    break;
                }
                *frames += u32::from(self.head_len == 0);
                let len = rest.len().min(HEAD_LEN - usize::from(self.head_len));
                let start = usize::from(self.head_len);
                self.head[start..start + len].copy_from_slice(&rest[..len]);
                self.head_len += len as u8;
                at += len;
                if usize::from(self.head_len) == HEAD_LEN {
                    self.head_len = 0;
                    self.begin(budget)?;
                }
            }
        }
        Ok(at)
    }

    /// Returns the least number of a stream that the peer has named in GOAWAY: later streams of ours were not
    /// processed.
    pub(crate) fn gone_away(&self) -> Option<u32> {
        self.gone_away
    }

    fn begin(&mut self, budget: &mut Budget) -> Result<(), Flood> {
        let [a, b, c, kind, ..] = self.head;
        self.payload_left = u32::from_be_bytes([0, a, b, c]);
        match kind {
            // h2 counts empty and small ones.
            DATA => {
                budget.earn_bytes(self.payload_left as usize);
                Ok(())
            }
            // h2 counts streams, and frames of a list.
            HEADERS => {
                budget.earn_piece();
                Ok(())
            }
            PUSH_PROMISE | CONTINUATION => Ok(()),
            // A member that resets streams makes no work that its proxy has not asked for.
            RST_STREAM if self.of_client => budget.spend_reset(),
            RST_STREAM => Ok(()),
            GOAWAY => {
                self.last_stream_len = 0;
                budget.spend_control_frame()
            }
            _ => budget.spend_control_frame(),
        }
    }

    fn payload(&mut self, bytes: &[u8]) {
        self.payload_left -= bytes.len() as u32;
        let at = usize::from(self.last_stream_len);
        if self.head[3] != GOAWAY || at >= 4 {
            return;
        }
        let len = bytes.len().min(4 - at);
        self.last_stream[at..at + len].copy_from_slice(&bytes[..len]);
        self.last_stream_len += len as u8;
        if self.last_stream_len == 4 {
            let last = u32::from_be_bytes(self.last_stream) & 0x7fff_ffff;
            self.gone_away = Some(self.gone_away.map_or(last, |before| before.min(last)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn frames_are_found_wherever_the_bytes_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(DATA, &[7; 300]));
        bytes.extend(frame(GOAWAY, &[0x80, 0, 1, 2, 0, 0, 0, 0]));
        bytes.extend(frame(RST_STREAM, &[0; 4]));
        bytes.extend(frame(GOAWAY, &[0, 0, 0, 9, 0, 0, 0, 0, 5, 5]));
        for cut in 0..=bytes.len() {
            let mut reader = Frames::new(true);
            let limits = Limits { resets_max: 1, resets_per_second: 0, ..Limits::default() };
            let (mut budget, mut count) = (Budget::new(&limits), 0);
            for part in [&bytes[..cut], &bytes[cut..]] {
                assert_eq!(reader.read(part, &mut count, &mut budget), Ok(part.len()), "cut at {cut}");
            }
            assert_eq!((count, reader.gone_away()), (4, Some(9)), "cut at {cut}");
            assert_eq!(budget.spend_reset(), Err(Flood::Resets), "cut at {cut}");
        }
    }

    #[test]
    fn a_turn_has_so_many_frames() {
        let bytes: Vec<u8> = (0..FRAMES_A_TURN + 5).flat_map(|_| frame(DATA, b"x")).collect();
        let (mut reader, mut budget) = (Frames::new(false), Budget::new(&Limits::default()));
        let taken = reader.read(&bytes, &mut 0, &mut budget).unwrap();
        assert_eq!(taken, FRAMES_A_TURN as usize * 10);
        assert_eq!(reader.read(&bytes[taken..], &mut 0, &mut budget), Ok(50));
    }
}

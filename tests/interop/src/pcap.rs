//! Packet traces of the device: the first bytes of packets as received and as transmitted, in libpcap's
//! format with nanosecond timestamps, for tcpdump and tshark.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use csp_types::Instant;

/// Bytes stored of a packet: all headers and the start of the payload.
const SNAP_LEN: usize = 128;

/// A trace that is being written.
#[derive(Debug)]
pub struct Trace(BufWriter<File>);

impl Trace {
    /// Creates the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, SNAP_LEN as u32, 1] {
            file.write_all(&word.to_ne_bytes())?;
        }
        Ok(Trace(file))
    }

    /// Adds a packet. Write errors are ignored: a trace is an aid, not a result.
    pub fn record(&mut self, now: Instant, bytes: &[u8]) {
        let (seconds, nanos) = (now.as_nanos() / 1_000_000_000, now.as_nanos() % 1_000_000_000);
        let kept = &bytes[..bytes.len().min(SNAP_LEN)];
        let words = [seconds as u32, nanos as u32, kept.len() as u32, bytes.len() as u32];
        let head: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let _ = self.0.write_all(&head).and_then(|()| self.0.write_all(kept));
    }
}

//! Captures a filtered sample of packets in the pcap format, into memory of fixed size that the operation
//! `take` empties.

use csp_classify::multifield::Match;
use csp_types::Instant;

use super::optional;
use crate::command::Level;
use crate::packet::Packet;
use crate::pcap::{FILE_HEADER_LEN, RECORD_HEADER_LEN, file_header, record_header};
use crate::plugin::{Action, Answer, CallError, Effects, Module, Operation, Plugin, PluginError, Row};
use crate::settings::{Kind, SettingError, Settings};
use crate::text::parse_match;

/// Captures one in `sample` packets that match `filter` (conditions as in rules; empty matches all packets,
/// including those that are not IP): the first `snap_len` bytes of each, until `buffer` bytes are used. All
/// packets go to output 0. `clock_offset_ns` is added to the node's monotonic time, so that time stamps count
/// from 1970.
///
/// Operations: `take` returns the file so far and starts another one; `read` returns the counters.
pub const CAPTURE: Module = Module {
    name: "capture",
    levels: &[Level::Worker, Level::Host],
    outputs: 1,
    parameters: &[
        optional("filter", Kind::Conditions, ""),
        optional("sample", Kind::Number(1, 1_000_000_000), "1"),
        optional("snap_len", Kind::Number(14, 65_535), "65535"),
        optional("buffer", Kind::Number(4096, 1 << 30), "1M"),
        optional("clock_offset_ns", Kind::Number(0, u64::MAX), "0"),
    ],
    operations: &[Operation { name: "take", arguments: &[] }, Operation { name: "read", arguments: &[] }],
    make: |settings, _| {
        let mut capture = Capture {
            filter: None,
            sample: 1,
            snap_len: 0,
            clock_offset_ns: 0,
            file: Vec::with_capacity(settings.number("buffer") as usize),
            capacity: settings.number("buffer") as usize,
            seen: 0,
            captured: 0,
            lost: 0,
        };
        capture.set(settings)?;
        Ok(Box::new(capture))
    },
};

struct Capture {
    /// `None` matches every packet.
    filter: Option<Match>,
    sample: u64,
    snap_len: usize,
    clock_offset_ns: u64,
    /// At most `capacity` bytes, so that it is never reallocated.
    file: Vec<u8>,
    capacity: usize,
    /// Packets that matched the filter.
    seen: u64,
    captured: u64,
    lost: u64,
}

impl Capture {
    fn set(&mut self, settings: &Settings) -> Result<(), PluginError> {
        let filter = settings.text("filter");
        self.filter = match filter {
            "" => None,
            text => {
                let words: Vec<&str> = text.split_whitespace().collect();
                let error = |expected| SettingError::Value { name: "filter", text: text.into(), expected };
                Some(parse_match(&words).map_err(|wrong| error(wrong.to_string()))?)
            }
        };
        self.sample = settings.number("sample").max(1);
        self.snap_len = settings.number("snap_len") as usize;
        self.clock_offset_ns = settings.number("clock_offset_ns");
        // The file header contains the length, so that other settings need another file.
        self.begin();
        Ok(())
    }

    fn begin(&mut self) {
        self.file.clear();
        self.file.extend_from_slice(&file_header(self.snap_len as u32));
    }

    fn record(&mut self, now: Instant, frame: &[u8]) {
        let included = &frame[..frame.len().min(self.snap_len)];
        if self.file.len() + RECORD_HEADER_LEN + included.len() > self.capacity {
            self.lost += 1;
            return;
        }
        let time_ns = now.as_nanos().saturating_add(self.clock_offset_ns);
        self.file.extend_from_slice(&record_header(time_ns, included.len() as u32, frame.len() as u32));
        self.file.extend_from_slice(included);
        self.captured += 1;
    }
}

impl Plugin for Capture {
    fn process(&mut self, now: Instant, packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        let matches = match (&self.filter, packet.fields()) {
            (None, _) => true,
            (Some(filter), Some(fields)) => filter.matches(fields),
            (Some(_), None) => false,
        };
        if matches {
            if self.seen.is_multiple_of(self.sample) {
                self.record(now, packet.bytes());
            }
            self.seen += 1;
        }
        Action::Next(0)
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        if settings.number("buffer") != self.capacity as u64 {
            return Err(PluginError::Fixed("buffer"));
        }
        self.set(settings)
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        match operation {
            "take" => {
                // The pages of the new buffer are not touched until packets are written to them.
                let file = core::mem::replace(&mut self.file, Vec::with_capacity(self.capacity));
                self.begin();
                Ok(Answer::Bytes(file))
            }
            "read" => {
                let numbers = vec![
                    ("matched", self.seen),
                    ("captured", self.captured),
                    ("lost", self.lost),
                    ("bytes", (self.file.len() - FILE_HEADER_LEN) as u64),
                ];
                Ok(Answer::Rows(vec![Row { numbers, ..Row::default() }]))
            }
            other => Err(CallError::NoOperation(other.into())),
        }
    }
}

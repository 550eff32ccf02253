//! Conversion between a script's relative numbers and those on the wire: builds arriving segments, compares
//! sent ones, and formats both in the language of scripts.

use core::time::Duration;

use csp_tcp::MSS_MIN;
use csp_wire::tcp::{Flags, OPTIONS_LEN_MAX, Repr};

use crate::host::Sent;
use crate::parse::flags_text;
use crate::script::{Number, Options, Segment, Stamp};
use crate::stream_byte;

const _: () = assert!(MSS_MIN > OPTIONS_LEN_MAX as u16);

/// The bases of one connection's relative numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bases {
    /// The peer's initial sequence number.
    pub peer: u32,
    /// The engine's initial sequence number once it has sent a SYN; 0 before.
    pub ours: u32,
    /// The engine's initial sequence number of the previous connection with the same addresses.
    pub ours_before: Option<u32>,
    /// The engine's timestamp clock at the start of the script, once it has sent a timestamp.
    pub clock: Option<u32>,
    /// The last timestamp that the engine has sent.
    pub stamp: u32,
}

impl Bases {
    /// Updates the bases from a segment that the engine has sent.
    pub fn record_sent(&mut self, sent: &Sent) {
        if sent.header.flags.syn() && sent.header.seq != self.ours {
            self.ours_before = Some(self.ours).filter(|&isn| isn != 0);
            self.ours = sent.header.seq;
            self.clock = None;
        }
        if let Some(timestamps) = sent.header.options.timestamps {
            let elapsed = crate::host::Host::script_time(sent.at).as_millis() as u32;
            self.clock.get_or_insert(timestamps.value.wrapping_sub(elapsed));
            self.stamp = timestamps.value;
        }
    }
}

fn on_wire(base: u32, number: Number) -> u32 {
    match number {
        Number::Relative(n) => base.wrapping_add(n as u32),
        Number::Absolute(n) => n,
        Number::Any => base,
    }
}

/// Returns the bytes of an arriving segment. The peer's stream starts after the sequence number `syn`.
pub(crate) fn build(
    segment: &Segment,
    ports: (u16, u16),
    bases: &Bases,
    syn: u32,
    elapsed: Duration,
) -> Vec<u8> {
    let seq = on_wire(bases.peer, segment.seq);
    let mut bytes = Vec::new();
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend(seq.to_be_bytes());
    bytes.extend(segment.ack.map_or(0, |ack| on_wire(bases.ours, ack)).to_be_bytes());
    let area = options_area(segment, bases, elapsed);
    bytes.push((((20 + area.len()) / 4) << 4) as u8);
    bytes.push(segment.flags.0);
    bytes.extend(segment.window.unwrap_or(0).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(segment.urgent.unwrap_or(0).to_be_bytes());
    bytes.extend(area);
    let first = u64::from(seq.wrapping_sub(syn).wrapping_sub(1));
    let first = if segment.flags.syn() { 0 } else { first };
    bytes.extend((0..u64::from(segment.len)).map(|n| stream_byte(first + n) ^ u8::from(segment.garbage)));
    bytes
}

/// Returns the options area, padded, and truncated to its largest length.
fn options_area(segment: &Segment, bases: &Bases, elapsed: Duration) -> Vec<u8> {
    let Some(options) = &segment.options else { return Vec::new() };
    let mut area = options.raw.clone();
    if let Some(mss) = options.mss {
        area.extend([2, 4]);
        area.extend(mss.to_be_bytes());
    }
    if options.sack_permitted {
        area.extend([4, 2]);
    }
    if let Some((value, echo)) = options.timestamps {
        let value = match value {
            Stamp::Auto => 1_000 + elapsed.as_millis() as u32,
            Stamp::Number(n) | Stamp::Absolute(n) => n,
        };
        let echo = match echo {
            Stamp::Absolute(n) => n,
            // RFC 7323 §3.2: without ACK the echo is 0.
            _ if !segment.flags.ack() => 0,
            Stamp::Auto => bases.stamp,
            Stamp::Number(n) => bases.clock.unwrap_or(0).wrapping_add(n),
        };
        area.extend([8, 10]);
        area.extend(value.to_be_bytes());
        area.extend(echo.to_be_bytes());
    }
    if let Some(shift) = options.window_scale {
        area.extend([3, 3, shift]);
    }
    if !options.sack.is_empty() {
        area.extend([5, 2 + 8 * options.sack.len() as u8]);
        for &(start, end) in &options.sack {
            area.extend(bases.ours.wrapping_add(start as u32).to_be_bytes());
            area.extend(bases.ours.wrapping_add(end as u32).to_be_bytes());
        }
    }
    area.resize(area.len().next_multiple_of(4).min(OPTIONS_LEN_MAX), 0);
    area
}

/// Returns the differences between `sent` and what was expected. `rest` is the length of the expected range
/// after it.
pub(crate) fn differences(
    expected: &Segment,
    from: u32,
    rest: u32,
    sent: &Sent,
    bases: &Bases,
) -> Vec<String> {
    let mut differ = Vec::new();
    let mut compare = |what: &str, expected: String, found: String| {
        if expected != found {
            differ.push(format!("{what}: expected {expected}, got {found}"));
        }
    };
    let header = &sent.header;
    let mut flags = expected.flags;
    if rest > 0 {
        flags.0 &= !(Flags::FIN | Flags::PSH).0;
    }
    compare("flags", flags_text(flags), flags_text(header.flags));
    if expected.seq != Number::Any {
        let seq = on_wire(bases.ours, expected.seq).wrapping_add(from);
        compare("seq", relative(bases.ours, seq), relative(bases.ours, header.seq));
    }
    if let Some(ack) = expected.ack.filter(|&ack| ack != Number::Any) {
        compare("ack", relative(bases.peer, on_wire(bases.peer, ack)), relative(bases.peer, header.ack));
    }
    if let Some(window) = expected.window {
        compare("win", window.to_string(), header.window.to_string());
    }
    if let Some(size) = expected.segment_size {
        compare("seg", size.to_string(), sent.segment_size.to_string());
    }
    if let Some(ecn) = expected.ecn {
        compare("ecn", ecn_text(ecn).into(), ecn_text(sent.ecn).into());
    }
    if let Some(options) = &expected.options {
        compare("options", expected_options(options, header, bases), options_text(header, bases, true));
    }
    let first = header.seq.wrapping_sub(bases.ours).wrapping_sub(1);
    let right = sent.payload.iter().zip(u64::from(first)..).all(|(&byte, at)| byte == stream_byte(at));
    if !right {
        differ.push("payload: not the bytes written at these sequence numbers".into());
    }
    differ
}

/// Formats a sequence number in the language of scripts.
fn relative(base: u32, number: u32) -> String {
    let distance = number.wrapping_sub(base) as i32;
    if base == 0 { number.to_string() } else { distance.to_string() }
}

/// Formats the expected options, with the values that are not compared taken from the segment sent.
fn expected_options(options: &Options, header: &Repr, bases: &Bases) -> String {
    let mut expected = *header;
    expected.options.mss = options.mss;
    expected.options.window_scale = options.window_scale;
    expected.options.sack_permitted = options.sack_permitted;
    let sent = header.options.timestamps.unwrap_or_default();
    expected.options.timestamps = options.timestamps.map(|(value, echo)| csp_wire::tcp::Timestamps {
        value: match value {
            Stamp::Auto => sent.value,
            Stamp::Absolute(n) => n,
            Stamp::Number(n) => bases.clock.unwrap_or(0).wrapping_add(n),
        },
        echo: match echo {
            Stamp::Auto => sent.echo,
            Stamp::Absolute(n) | Stamp::Number(n) => n,
        },
    });
    expected.options.sack = csp_wire::tcp::SackBlocks::EMPTY;
    for &(start, end) in &options.sack {
        let [start, end] = [start, end].map(|n| bases.peer.wrapping_add(n as u32));
        expected.options.sack.push(csp_wire::tcp::SackBlock { start, end });
    }
    options_text(&expected, bases, true)
}

/// Formats options in the language of scripts. `of_ours`: of a segment that the engine sent.
fn options_text(header: &Repr, bases: &Bases, of_ours: bool) -> String {
    let options = &header.options;
    let mut parts = Vec::new();
    parts.extend(options.mss.map(|n| format!("mss {n}")));
    parts.extend(options.sack_permitted.then(|| "sackOK".to_owned()));
    parts.extend(options.timestamps.map(|t| {
        let clock = bases.clock.unwrap_or(0);
        let (value, echo) = match of_ours {
            true => (t.value.wrapping_sub(clock), t.echo),
            false if header.flags.ack() => (t.value, t.echo.wrapping_sub(clock)),
            false => (t.value, t.echo),
        };
        format!("TS val {value} ecr {echo}")
    }));
    parts.extend(options.window_scale.map(|n| format!("wscale {n}")));
    let blocks = options.sack.as_slice();
    if !blocks.is_empty() {
        let base = if of_ours { bases.peer } else { bases.ours };
        let text = |b: &csp_wire::tcp::SackBlock| {
            format!(" {}:{}", b.start.wrapping_sub(base) as i32, b.end.wrapping_sub(base) as i32)
        };
        parts.push(format!("sack{}", blocks.iter().map(text).collect::<String>()));
    }
    parts.join(",")
}

fn ecn_text(ecn: u8) -> &'static str {
    ["[noecn]", "[ect1]", "[ect0]", "[ce]"].get(usize::from(ecn)).copied().unwrap_or("[?]")
}

/// Formats a header in the language of scripts.
pub(crate) fn segment_text(header: &Repr, len: usize, ecn: u8, bases: &Bases, of_ours: bool) -> String {
    let (own, other) = if of_ours { (bases.ours, bases.peer) } else { (bases.peer, bases.ours) };
    let seq = relative(own, header.seq);
    let end = relative(own, header.seq.wrapping_add(len as u32));
    let ack = header.flags.ack().then(|| format!(" ack {}", relative(other, header.ack)));
    let options = Some(options_text(header, bases, of_ours)).filter(|text| !text.is_empty());
    let options = options.map(|text| format!(" <{text}>"));
    let ecn = Some(ecn).filter(|&ecn| ecn != 0).map(|ecn| format!(" {}", ecn_text(ecn)));
    let [ack, options, ecn] = [ack, options, ecn].map(Option::unwrap_or_default);
    format!("{} {seq}:{end}({len}){ack} win {}{options}{ecn}", flags_text(header.flags), header.window)
}

//! A parsed script, in the script's own relative numbers.

use core::time::Duration;

use csp_tcp::PathError;
use csp_wire::tcp::Flags;

use crate::config::Config;

/// A whole script.
#[derive(Clone, Debug)]
pub struct Script {
    pub(crate) config: Config,
    pub(crate) lines: Vec<Line>,
}

/// One timed line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// Number of the line in the file, from 1.
    pub number: usize,
    pub text: String,
    pub after: When,
    /// The peer, and so the connection, that the line concerns, from 1.
    pub peer: u16,
    pub step: Step,
}

/// The time since the previous line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    Exactly(Duration),
    /// Only for expected segments.
    Between(Duration, Duration),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Step {
    /// `<`: a segment arrives.
    Arrive(Segment),
    /// `>`: a segment is sent.
    Expect(Segment),
    /// `!`: an event was reported.
    Event(Reported),
    /// `?`: a figure is compared.
    Check(Check),
    /// `quiet`: nothing was sent until now.
    Quiet,
    Call(Call),
}

/// A call by the engine's owner.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Call {
    /// `again`: not an error if the port is listened on already.
    Listen {
        again: bool,
    },
    Unlisten,
    /// With the name of the error, if the call must fail.
    Connect(Option<String>),
    /// The number of bytes, and how many the engine must accept.
    Write(usize, usize),
    /// The largest number of bytes (`None` for "all"), and how many must be read.
    Read(usize, Option<usize>),
    Shutdown,
    Close,
    Reset,
    Abort,
    /// `set key=value …`
    Options(Vec<(String, String)>),
    /// An ICMP error about the segment with this sequence number, and whether the engine must act on it.
    PathError(PathError, Number, bool),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reported {
    Established,
    Readable(Option<usize>),
    Writable,
    PeerFinished,
    Closed,
    /// The reason's name in lower case without underscores.
    Broken(String),
    Failed(String),
    Reset,
    /// No event that ends the connection was reported.
    None,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Check {
    pub name: String,
    pub operator: Operator,
    pub value: Value,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// From the value to this number, inclusive.
    Within(i64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// A count, or nanoseconds.
    Number(i64),
    /// A word in lower case without underscores and hyphens.
    Word(String),
}

/// A sequence or acknowledgement number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    /// Relative to the initial sequence number of the bytes' sender.
    Relative(i64),
    /// `=n`: the number on the wire.
    Absolute(u32),
    /// `*`: any number.
    Any,
}

/// The value or echo of a timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stamp {
    /// Expected: any value. Arriving: the value that a correct peer would send.
    Auto,
    /// The peer's clock as on the wire; the engine's clock in milliseconds since the start of the script.
    Number(u32),
    /// `=n`: the number on the wire.
    Absolute(u32),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Segment {
    pub flags: Flags,
    pub seq: Number,
    pub len: u32,
    pub ack: Option<Number>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    /// `None`: arriving without options, or expected with any options.
    pub options: Option<Options>,
    /// The segment size of the tunnel record.
    pub segment_size: Option<u16>,
    /// The IP header's ECN field.
    pub ecn: Option<u8>,
    /// The payload differs from the stream.
    pub garbage: bool,
}

#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Options {
    pub mss: Option<u16>,
    pub window_scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamps: Option<(Stamp, Stamp)>,
    /// Relative to the initial sequence number of the bytes' sender.
    pub sack: Vec<(i64, i64)>,
    /// Arriving segments only: bytes before all other options.
    pub raw: Vec<u8>,
}

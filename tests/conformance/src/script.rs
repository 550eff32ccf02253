//! A script, parsed: what happens when, in the script's own relative numbers.

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
    /// Where in the file, from 1.
    pub number: usize,
    pub text: String,
    pub after: When,
    /// Which peer (and so which connection) it is about, from 1.
    pub peer: u16,
    pub step: Step,
}

/// How long after the line before.
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
    /// `!`: an event was told.
    Event(Reported),
    /// `?`: a figure compares.
    Check(Check),
    /// `quiet`: nothing is sent until now.
    Quiet,
    Call(Call),
}

/// What the engine's owner does.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Call {
    /// `again`: fine where it is listened on already.
    Listen {
        again: bool,
    },
    Unlisten,
    /// With the error's name where it is to fail.
    Connect(Option<String>),
    /// How many bytes, and how many of them are taken.
    Write(usize, usize),
    /// At most how many bytes, and how many there are; `None` for "all".
    Read(usize, Option<usize>),
    Shutdown,
    Close,
    Abort,
    /// `set key=value …`
    Options(Vec<(String, String)>),
    /// An ICMP error about the segment with this sequence number; `bool`: whether it is believed.
    PathError(PathError, Number, bool),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reported {
    Established,
    Readable(Option<usize>),
    Writable,
    PeerFinished,
    Closed,
    /// The reason's name without case and underscores.
    Failed(String),
    /// Nothing that ends the connection was told.
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
    /// Up to and including this.
    Within(i64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// A count, or nanoseconds.
    Number(i64),
    /// A word without case, underscores and hyphens.
    Word(String),
}

/// A sequence or acknowledgement number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    /// From the initial sequence number of whoever sends the bytes.
    Relative(i64),
    /// `=n`: as it stands on the wire.
    Absolute(u32),
    /// `*`
    Any,
}

/// A timestamp's value or echo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stamp {
    /// Expected: any; arriving: the value a well-behaved peer would send.
    Auto,
    /// The peer's clock as it stands; our clock in milliseconds since the script began.
    Number(u32),
    /// `=n`: as it stands on the wire.
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
    /// `None`: arriving without options; expected with whatever options.
    pub options: Option<Options>,
    /// The size of the packets it is cut into.
    pub segment_size: Option<u16>,
    /// The IP header's ECN field.
    pub ecn: Option<u8>,
    /// The payload is not what the stream has there.
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
    /// Only arriving: bytes put before all other options.
    pub raw: Vec<u8>,
}

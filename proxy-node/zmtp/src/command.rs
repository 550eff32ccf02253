//! Commands in clear text (37/ZMTP, "Commands"), and the buffer in which they are gathered.

use csp_types::Duration;

use crate::cursor::Cursor;
use crate::error::ZmtpError;

/// Longest context of a PING in bytes (37/ZMTP, "Connection Heartbeating").
pub const PING_CONTEXT_LEN_MAX: usize = 16;
/// Length in bytes of "SUBSCRIBE" with its length octet, the longer name of the two that carry topics.
pub(crate) const TOPIC_COMMAND_LEN: usize = 10;

/// The context of a PING, which the PONG repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Context {
    bytes: [u8; PING_CONTEXT_LEN_MAX],
    len: u8,
}

impl Context {
    fn new(context: &[u8]) -> Option<Self> {
        let mut bytes = [0; PING_CONTEXT_LEN_MAX];
        bytes.get_mut(..context.len())?.copy_from_slice(context);
        Some(Context { bytes, len: context.len() as u8 })
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

/// A command of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command<'a> {
    /// READY with its metadata.
    Ready(&'a [u8]),
    /// ERROR; the reason has no meaning to the proxy.
    Error,
    /// SUBSCRIBE with its topic.
    Subscribe(&'a [u8]),
    /// CANCEL with its topic.
    Cancel(&'a [u8]),
    /// PING; a `ttl` of zero is none.
    Ping { ttl: Duration, context: Context },
    /// PONG.
    Pong,
    /// HELLO of CURVE, without its name.
    Hello(&'a [u8]),
    /// INITIATE of CURVE, without its name.
    Initiate,
    /// A name that the proxy does not know.
    Other,
}

impl<'a> Command<'a> {
    /// Parses the body of a command, which ends at position `at` of the stream.
    pub fn parse(body: &'a [u8], at: u64) -> Result<Self, ZmtpError> {
        let malformed = |what| ZmtpError::Malformed { what, at };
        let split = body.split_first().and_then(|(len, rest)| rest.split_at_checked((*len).into()));
        let (name, data) = split.filter(|(name, _)| !name.is_empty()).ok_or(malformed("command name"))?;
        Ok(match name {
            b"READY" => Command::Ready(data),
            b"ERROR" => Command::Error,
            b"SUBSCRIBE" => Command::Subscribe(data),
            b"CANCEL" => Command::Cancel(data),
            b"PING" => Self::ping(data).ok_or(malformed("PING"))?,
            b"PONG" => Context::new(data).map(|_| Command::Pong).ok_or(malformed("PONG"))?,
            b"HELLO" => Command::Hello(data),
            b"INITIATE" => Command::Initiate,
            _ => Command::Other,
        })
    }

    fn ping(data: &[u8]) -> Option<Self> {
        let (ttl, context) = data.split_first_chunk::<2>()?;
        // 37/ZMTP, "Connection Heartbeating": tenths of seconds, network byte order.
        let ttl = Duration::from_millis(u64::from(u16::from_be_bytes(*ttl)) * 100);
        Some(Command::Ping { ttl, context: Context::new(context)? })
    }

    /// The name for error messages.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Ready(_) => "READY",
            Command::Error => "ERROR",
            Command::Subscribe(_) => "SUBSCRIBE",
            Command::Cancel(_) => "CANCEL",
            Command::Ping { .. } => "PING",
            Command::Pong => "PONG",
            Command::Hello(_) => "HELLO",
            Command::Initiate => "INITIATE",
            Command::Other => "unknown command",
        }
    }
}

/// A command or topic, gathered from the slices in which it arrived. Its memory is allocated with the
/// connection.
#[derive(Clone, Debug)]
pub(crate) struct CommandBuffer {
    bytes: Vec<u8>,
    have: usize,
    len: usize,
}

impl CommandBuffer {
    pub fn new(len_max: usize) -> Self {
        CommandBuffer { bytes: vec![0; len_max], have: 0, len: 0 }
    }

    /// Most bytes that fit.
    pub fn len_max(&self) -> usize {
        self.bytes.len()
    }

    /// Begins to gather `len` bytes, at most [`len_max`](Self::len_max).
    pub fn begin(&mut self, len: usize) {
        (self.have, self.len) = (0, len.min(self.bytes.len()));
    }

    /// Gathers received bytes; returns whether all are there.
    pub fn fill<'a>(&mut self, input: &mut Cursor<'a, impl Iterator<Item = &'a [u8]>>) -> bool {
        self.have += self.bytes.get_mut(self.have..self.len).map_or(0, |room| input.copy(room));
        self.have == self.len
    }

    /// Bytes that are missing.
    pub fn lacks(&self) -> usize {
        self.len - self.have
    }

    /// Replaces the contents by `bytes`; `false` if they do not fit.
    pub fn store(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(..bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        (self.have, self.len) = (bytes.len(), bytes.len());
        true
    }

    /// What has been gathered.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.have).unwrap_or_default()
    }

    /// The same, to be decrypted in place.
    pub fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.have).unwrap_or_default()
    }
}

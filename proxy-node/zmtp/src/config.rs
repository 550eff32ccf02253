//! Configuration of a listener's connections: what the proxy is to its peers, and every bound on what they
//! send.

use csp_types::Duration;

use crate::socket::LocalType;

/// Default of [`Config::message_len_max`] in bytes.
pub const MESSAGE_LEN_MAX: usize = 4 << 20;
/// Default of [`Config::frames_max`].
pub const FRAMES_MAX: usize = 64;
/// Default of [`Config::command_len_max`] in bytes.
pub const COMMAND_LEN_MAX: usize = 4096;
/// Default of [`Config::topic_len_max`] in bytes.
pub const TOPIC_LEN_MAX: usize = 1024;
/// Default of [`Config::handshake_timeout`]; libzmq's default is as long.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bounds and times of the connections of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// What the proxy is to peers.
    pub local: LocalType,
    /// Most bytes of the bodies of a message, all frames together. Under CURVE a connection allocates as many
    /// for decrypted bodies when its peer is authorised.
    pub message_len_max: usize,
    /// Most frames of a message; room for them is allocated with the connection. A message of more is
    /// refused, see [`LocalType::refuses_alone`].
    pub frames_max: usize,
    /// Most bytes in the body of a command that is not a subscription. Under CURVE, INITIATE alone has 257
    /// bytes and the peer's metadata: less than 1024 would refuse honest peers.
    pub command_len_max: usize,
    /// Most bytes of a subscription's topic.
    pub topic_len_max: usize,
    /// Time from the start of the connection to the end of the handshake.
    pub handshake_timeout: Duration,
    /// Heartbeats to peers that know them (ZMTP 3.1); `None`: the proxy answers PING and sends none.
    pub heartbeat: Option<Heartbeat>,
}

/// Heartbeats (37/ZMTP, "Connection Heartbeating").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Time between two PINGs.
    pub interval: Duration,
    /// Time after a PING in which the peer must send something.
    pub timeout: Duration,
    /// Time after which the peer may end the connection if it receives nothing; zero: as it likes. It is sent
    /// in tenths of a second, at most 6553.5 s.
    pub ttl: Duration,
}

impl Config {
    /// The defaults for a listener of this type, without heartbeats.
    pub const fn new(local: LocalType) -> Self {
        Config {
            local,
            message_len_max: MESSAGE_LEN_MAX,
            frames_max: FRAMES_MAX,
            command_len_max: COMMAND_LEN_MAX,
            topic_len_max: TOPIC_LEN_MAX,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            heartbeat: None,
        }
    }
}

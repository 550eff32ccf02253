//! Framings of messages: ZMTP 3.0 and 3.1 as a server of ZeroMQ peers
//! ([37/ZMTP](https://rfc.zeromq.org/spec/37), [23/ZMTP](https://rfc.zeromq.org/spec/23)) with the mechanisms
//! NULL and CURVE ([25](https://rfc.zeromq.org/spec/25), [26](https://rfc.zeromq.org/spec/26)), and
//! length-prefixed messages (FIX Simple Open Framing Header, or a header that the policy describes).
//!
//! The crate is sans-I/O: the caller passes in received bytes, the time, keys and random bytes; the crate
//! returns items and bytes to send. It owns handshakes, bounds, heartbeats and encryption. It refuses peers
//! before ZMTP 3.0, PLAIN and GSSAPI, and does not know which subscriber gets which message.
//!
//! ```text
//!  received slices ─▶ [Cursor] ─▶ Connection::next ─▶ Item: Authorise, Ready, Subscribe, Cancel, Message
//!                                     │
//!  stream to the peer ◀── Connection::transmit (greeting, handshake, PING, PONG), subscribe, encrypt,
//!                         FrameHeader::message + bodies from the caller's memory (NULL)
//! ```
//!
//! **Copies.** Under NULL the bodies of messages are not touched: a [`Message`] says where its frames lie in
//! the stream, and [`part`] walks that memory. What is copied: greeting, frame headers (into a register-sized
//! buffer), commands, and topics of subscriptions, up to [`Config::command_len_max`] and
//! [`Config::topic_len_max`] bytes into a buffer of the connection. Under CURVE each encrypted body is copied
//! once from the stream to the connection's buffer and decrypted in place there; towards a peer it is copied
//! once to the caller's buffer and encrypted in place there. Length-prefixed messages are copied nowhere, but
//! for their header.
//!
//! **Memory** is allocated with the connection; under CURVE that for decrypted messages when the peer's key
//! is allowed. The handshake allocates the peer's identity. Messages allocate nothing.
//!
//! | what | where |
//! |---|---|
//! | states of a connection, deadlines | `connection`, `timers` |
//! | greeting, metadata, compatibility of socket types | `greeting`, `metadata`, `socket` |
//! | frames in clear text; sealed frames | `frame`, `reader`; `sealed` |
//! | boxes and nonces of CURVE; files with keys | `curve`; `key_file` |
//! | length-prefixed messages | `prefix` |
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod command;
mod config;
mod connection;
mod counters;
mod cursor;
mod curve;
mod error;
mod frame;
mod greeting;
mod key_file;
mod message;
mod metadata;
mod output;
mod prefix;
mod reader;
mod sealed;
mod socket;
mod timers;

pub use command::PING_CONTEXT_LEN_MAX;
pub use config::{
    COMMAND_LEN_MAX, Config, FRAMES_MAX, HANDSHAKE_TIMEOUT, Heartbeat, MESSAGE_LEN_MAX, TOPIC_LEN_MAX,
};
pub use connection::Connection;
pub use counters::Counters;
pub use cursor::{Cursor, part};
pub use curve::{CurveKeys, ENTROPY_LEN, KEY_LEN, sealed_len};
pub use error::{EncodeError, Excess, ZmtpError};
pub use frame::{FRAME_HEADER_LEN_MAX, FrameHeader};
pub use greeting::{GREETING_LEN, Mechanism};
pub use key_file::parse_key_file;
pub use message::{Frame, Item, Message};
pub use metadata::Peer;
pub use output::CONTROL_LEN_MAX;
pub use prefix::{
    BodyTooLong, ByteOrder, Description, DescriptionError, PREFIX_LEN_MAX, Prefix, PrefixError, PrefixReader,
    Prefixed, SOFH_LEN, Width, sofh_encoding, sofh_header,
};
pub use socket::{LocalType, SocketType};

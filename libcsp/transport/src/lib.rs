//! Links, credits and flow multiplexing over Virtual Interfaces.
//!
//! [`Endpoint`] owns one VI provider and runs links over it: HELLO with a signed token and proofs of both
//! sides, descriptor credits, heartbeat, CLOSE. [`Keys`] sign and verify the tokens. [`TunnelBatch`] and
//! [`Channel`] put tunnel records and flow messages into link messages; [`SendCredit`] and [`ReceiveCredit`]
//! keep a flow's byte window.
//!
//! The crate runs in daemons and inside unmodified applications. It starts no thread, reads no clock,
//! performs I/O only through the provider, prints nothing, and does not allocate per message.
#![forbid(unsafe_code)]

mod adjacent;
mod backoff;
mod batch;
mod channel;
mod config;
mod counters;
mod credit;
mod endpoint;
mod event;
mod identity;
pub mod key_file;
pub mod keys;
pub mod proof;
pub mod token;
mod tunnel;

pub use adjacent::{Adjacency, AdjacentInbox, AdjacentWorker};
pub use backoff::{Backoff, BackoffConfig};
pub use batch::PacketBatch;
pub use channel::{Channel, ChannelConfig, ChannelError};
pub use config::{EndpointConfig, Heartbeat, LocalPeers, RECEIVE_DEPTH_MIN};
pub use counters::Counters;
pub use credit::{CreditViolation, ReceiveCredit, SendCredit};
pub use endpoint::{Endpoint, GATHER_MAX, InPlace, LinkInfo};
pub use event::{DeathCause, DownReason, LinkEvent, LinkId, MessageKind, ProtocolError, Received, SendError};
pub use identity::{PeerIdentity, ProcessId, Purpose, RefusalCode};
pub use key_file::KeyFileError;
pub use keys::{ClusterKey, Holder, KeyError, KeyOf, KeySet, Keys, NodeKey, Verified};
pub use token::{TOKEN_LEN_MAX, Token, TokenClaims, TokenError};
pub use tunnel::{Full, TunnelBatch};

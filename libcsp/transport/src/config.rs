//! What an endpoint is made with.

use csp_types::{Duration, limits};

use crate::identity::PeerIdentity;
use crate::token::ClusterKey;

/// Fewest receive descriptors of either side: two stay reserved for control messages, so that credits and heartbeats
/// always get through.
pub const RECEIVE_DEPTH_MIN: u32 = 4;

/// When to send PING and when silence is death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// PING is sent when nothing else was sent for so long.
    pub interval: Duration,
    /// A daemon that sent nothing for so long is dead.
    pub deadline: Duration,
    /// An application sends no PING on a link that carried nothing else for so long, where each death is told by a hang-up
    /// ([`csp_vi::Provider::can_break`]): idle costs no processor time. More than `deadline`.
    pub quiet_after: Duration,
}

impl Default for Heartbeat {
    /// 200 ms and 800 ms: death is known within 1 s. Quiet after 1 s.
    fn default() -> Self {
        let [interval, deadline, quiet_after] = [200, 800, 1_000].map(Duration::from_millis);
        Heartbeat { interval, deadline, quiet_after }
    }
}

/// What an [`Endpoint`](crate::Endpoint) is made with.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Who this side is; worker and pool of outgoing links are given at `connect`.
    pub identity: PeerIdentity,
    /// Receive descriptors that each link posts; 4 to 4096.
    pub receive_depth: u32,
    /// Sends that each link may have outstanding; 4 to 4096.
    pub send_depth: u32,
    /// Largest VI message in bytes, with the 16-byte link header; equal on both sides; 512 to 1 MiB.
    pub message_len: u32,
    /// Liveness.
    pub heartbeat: Heartbeat,
    /// Most links at once, in handshake or up; 1 to 4096.
    pub links_max: u32,
    /// How long a link may take from `connect` (or from the peer's request) until HELLO is answered.
    pub hello_timeout: Duration,
    /// A link whose VI broke goes on over another one while its peer may be silent ([`Heartbeat::deadline`]), and one to a
    /// process, whose silence means nothing, for so long at least; zero: it does not go on. With what a provider needs to
    /// notice, the peer's death must still be known within a second.
    pub resume_deadline: Duration,
    /// What tokens are verified with; `None`: this side accepts no links of the cluster.
    pub verify: Option<ClusterKey>,
    /// Processes of this host whose links for messages are accepted; `None`: none.
    pub local: Option<LocalPeers>,
}

/// Which processes of the same host may open links for messages. Their user is what the provider knows of it (shm); a
/// peer whose user it does not know is none of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalPeers {
    /// Those of this user.
    User(u32),
    /// Those of any user.
    Anyone,
}

impl LocalPeers {
    pub(crate) fn admits(self, uid: Option<u32>) -> bool {
        match (self, uid) {
            (LocalPeers::User(wanted), Some(uid)) => wanted == uid,
            (LocalPeers::Anyone, Some(_)) => true,
            (_, None) => false,
        }
    }
}

impl EndpointConfig {
    /// The configuration for tunnel links: 64 messages of [`limits::TUNNEL_MESSAGE_LEN_MAX`] bytes each way.
    pub fn tunnel(identity: PeerIdentity, verify: Option<ClusterKey>) -> Self {
        EndpointConfig {
            identity,
            receive_depth: 64,
            send_depth: 64,
            message_len: limits::TUNNEL_MESSAGE_LEN_MAX as u32,
            heartbeat: Heartbeat::default(),
            links_max: 64,
            hello_timeout: Duration::from_secs(2),
            resume_deadline: Duration::from_millis(400),
            verify,
            local: None,
        }
    }

    /// The configuration for channel links: 64 messages of [`limits::CHANNEL_MESSAGE_LEN_MAX`] bytes each way.
    pub fn channel(identity: PeerIdentity, verify: Option<ClusterKey>) -> Self {
        EndpointConfig {
            message_len: limits::CHANNEL_MESSAGE_LEN_MAX as u32,
            links_max: 256,
            ..EndpointConfig::tunnel(identity, verify)
        }
    }

    /// The configuration for links between application processes: 64 messages of [`limits::CHANNEL_MESSAGE_LEN_MAX`]
    /// bytes each way; `local` says whose links are accepted.
    pub fn message(identity: PeerIdentity, local: Option<LocalPeers>) -> Self {
        EndpointConfig { local, links_max: 64, ..EndpointConfig::channel(identity, None) }
    }
}

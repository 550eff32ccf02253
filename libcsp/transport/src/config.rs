//! Configuration of an endpoint.

use csp_types::{Duration, limits};
use csp_wire::link::Versions;

use crate::identity::PeerIdentity;
use crate::keys::Keys;

/// Smallest number of receive descriptors of either side. Two are reserved for control messages, so that
/// credits and heartbeats can always be sent.
pub const RECEIVE_DEPTH_MIN: u32 = 4;

/// Heartbeat times: when PING is sent, and how long a daemon may be silent before it counts as dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// PING is sent when no message was sent for this long.
    pub interval: Duration,
    /// A daemon that sent no message for this long counts as dead.
    pub deadline: Duration,
    /// An application sends no PING on a link that carried only heartbeats for this long, if the provider
    /// reports each death by a hang-up ([`csp_vi::Provider::can_break`] is false): an idle process then uses
    /// no processor time. Longer than `deadline`.
    pub quiet_after: Duration,
}

impl Default for Heartbeat {
    /// 200 ms and 800 ms: a death is noticed within 1 s. Quiet after 1 s.
    fn default() -> Self {
        let [interval, deadline, quiet_after] = [200, 800, 1_000].map(Duration::from_millis);
        Heartbeat { interval, deadline, quiet_after }
    }
}

/// Configuration of an [`Endpoint`](crate::Endpoint).
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Identity of this side. Worker and pool of outgoing links are arguments of `connect`.
    pub identity: PeerIdentity,
    /// Receive descriptors that each link posts; 4 to 4096.
    pub receive_depth: u32,
    /// Sends that each link may have outstanding; 4 to 4096.
    pub send_depth: u32,
    /// Largest VI message in bytes, with the 16-byte link header; equal on both sides; 512 to 1 MiB.
    pub message_len: u32,
    /// Liveness.
    pub heartbeat: Heartbeat,
    /// Largest number of links at once, in handshake or up; 1 to 4096.
    pub links_max: u32,
    /// Time limit from `connect` (or from the peer's request) until HELLO is answered.
    pub hello_timeout: Duration,
    /// Time that an interrupted link waits for another VI. A link to a daemon waits as long as the daemon may
    /// be silent ([`Heartbeat::deadline`]). A link to a process, whose silence has no meaning, waits at least
    /// this long. Zero: links are not resumed. The sum with the time that a provider takes to notice a broken
    /// VI must stay below one second, within which the peer's death is to be noticed.
    pub resume_deadline: Duration,
    /// Keys that verify tokens. `None`: this side accepts no links of the cluster.
    pub verify: Option<Keys>,
    /// Processes of this host whose message links are accepted. `None`: none.
    pub local: Option<LocalPeers>,
    /// Protocol versions that this side speaks: [`Versions::SPOKEN`], except in tests.
    pub versions: Versions,
}

/// Processes of the same host that may open message links. The provider determines a process's user (shm); a
/// peer whose user the provider does not know is not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalPeers {
    /// Processes of this user.
    User(u32),
    /// Processes of any user.
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
    pub fn tunnel(identity: PeerIdentity, verify: Option<Keys>) -> Self {
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
            versions: Versions::SPOKEN,
        }
    }

    /// The configuration for channel links: 64 messages of [`limits::CHANNEL_MESSAGE_LEN_MAX`] bytes each
    /// way.
    pub fn channel(identity: PeerIdentity, verify: Option<Keys>) -> Self {
        EndpointConfig {
            message_len: limits::CHANNEL_MESSAGE_LEN_MAX as u32,
            links_max: 256,
            ..EndpointConfig::tunnel(identity, verify)
        }
    }

    /// The configuration for links between application processes: 64 messages of
    /// [`limits::CHANNEL_MESSAGE_LEN_MAX`] bytes each way; `local` selects the processes whose links are
    /// accepted.
    pub fn message(identity: PeerIdentity, local: Option<LocalPeers>) -> Self {
        EndpointConfig { local, links_max: 64, ..EndpointConfig::channel(identity, None) }
    }
}

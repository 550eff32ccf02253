//! Types that links and control thread exchange: proxies to connect to, the identity to prove, events to log,
//! tunnels for the admin endpoint.

use csp_transport::{Keys, ProcessId, Token, TokenClaims};
use csp_types::{NodeId, Role};
use csp_vi::ViAddress;

/// Lifetime of a new link's token, in seconds: the handshake takes milliseconds, but clocks differ.
const TOKEN_LIFETIME_S: u64 = 120;

/// The address of a proxy's worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DialSpec {
    /// The proxy's worker.
    pub worker: u8,
    /// The endpoint that reaches it, by index.
    pub endpoint: usize,
    /// The address at which it listens.
    pub address: ViAddress,
}

/// A proxy, as registered in the membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxySpec {
    /// Its node.
    pub node: NodeId,
    /// Its incarnation, different after every start.
    pub incarnation: u64,
    /// Whether it gets no new flows.
    pub draining: bool,
    /// Whether it may be dialled: its registration is valid. A tunnel that is up stays up after the
    /// registration ended.
    pub dial: bool,
    /// Its workers.
    pub workers: Vec<DialSpec>,
}

/// Issues the tokens that prove this node's identity.
#[derive(Clone, Debug)]
pub struct TokenSource {
    /// This node's keys.
    pub keys: Keys,
    /// This node.
    pub node: NodeId,
    /// The first nonce of the tokens; random.
    pub nonce: u64,
}

impl TokenSource {
    /// Issues a token for a proxy.
    pub(super) fn issue(&mut self, unix_now_s: u64) -> Token {
        let claims = self.claims(unix_now_s);
        self.keys.issue(&claims)
    }

    /// Issues a token for the plug-in host of an application node.
    pub(super) fn issue_for_host(&mut self, unix_now_s: u64, host: NodeId) -> Token {
        let claims = self.claims(unix_now_s);
        self.keys.issue_for_host(&claims, host)
    }

    fn claims(&mut self, unix_now_s: u64) -> TokenClaims {
        self.nonce = self.nonce.wrapping_add(1);
        TokenClaims {
            role: Role::NetworkNode,
            node: self.node,
            process: ProcessId::NONE,
            uid: None,
            grant: csp_types::Grant::NONE,
            not_before: unix_now_s,
            expires: unix_now_s.saturating_add(TOKEN_LIFETIME_S),
            nonce: self.nonce,
        }
    }
}

/// An event for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkNotice {
    /// A tunnel is up.
    Up {
        /// The proxy.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// The address that was dialled.
        address: String,
    },
    /// A tunnel that was up is down.
    Lost {
        /// The proxy.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// The reason.
        reason: String,
    },
    /// No connection is made to a proxy, because
    /// [`CoreConfig::proxies_max`](crate::core::CoreConfig::proxies_max) other proxies are known.
    NoSlot {
        /// The proxy.
        node: NodeId,
    },
    /// A tunnel could not be set up; it will be tried again.
    Failed {
        /// The proxy.
        node: NodeId,
        /// Its worker.
        worker: u8,
        /// The reason.
        reason: String,
    },
    /// The link to a plug-in host is up.
    HostUp {
        /// Its node.
        node: NodeId,
        /// The address that was dialled.
        address: String,
    },
    /// The link to a plug-in host is down.
    HostLost {
        /// Its node.
        node: NodeId,
        /// The reason.
        reason: String,
    },
    /// A plug-in host does not run its instances.
    HostRefused {
        /// Its node.
        node: NodeId,
        /// The reason.
        reason: String,
    },
    /// The link to a plug-in host could not be set up; it will be tried again.
    HostFailed {
        /// Its node.
        node: NodeId,
        /// The reason.
        reason: String,
    },
}

/// A tunnel, as the admin endpoint shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelInfo {
    /// The proxy.
    pub node: NodeId,
    /// Its worker.
    pub worker: u8,
    /// The address that is dialled.
    pub address: String,
    /// Name of the provider that carries it.
    pub provider: &'static str,
    /// Whether it is up.
    pub up: bool,
}

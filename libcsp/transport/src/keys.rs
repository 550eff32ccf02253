//! The cluster's keys, and the keys of nodes derived from them (docs/decisions/0080).
//!
//! ```text
//! cluster key ── HMAC(role, id) ──▶ node key ── HMAC(host) ──▶ link key of a network node and a plug-in host
//! ```
//! Proxies hold cluster keys and derive the others. A network node or application node holds its own node
//! keys, a plug-in host the link keys of its network nodes: from these no other node's key can be computed.

use core::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use csp_types::{NodeId, Role};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroize;

use crate::key_file::KeyFileError;
use crate::token::{self, Token, TokenClaims, TokenError};

/// Bytes of a key.
pub const KEY_LEN: usize = 32;

/// A key. Never printed; overwritten when dropped.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) [u8; KEY_LEN]);

impl Secret {
    /// HMAC-SHA256 over a label and parts that are preceded by their lengths. No token starts with the
    /// label's first byte, so that the result is never a token's signature.
    pub(crate) fn derive(&self, label: &[u8], parts: &[&[u8]]) -> [u8; KEY_LEN] {
        let Some(mut mac) = self.mac() else { return [0; KEY_LEN] };
        mac.update(b"\0");
        mac.update(label);
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    pub(crate) fn mac(&self) -> Option<Hmac<Sha256>> {
        // HMAC takes keys of any length, hence never `None`.
        Hmac::<Sha256>::new_from_slice(&self.0).ok()
    }

    pub(crate) fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn from_hex(text: &str) -> Result<Self, KeyError> {
        let digits = text.as_bytes();
        if digits.len() != 2 * KEY_LEN {
            return Err(KeyError::Length(digits.len()));
        }
        let mut key = Secret([0; KEY_LEN]);
        for (at, &digit) in digits.iter().enumerate() {
            let value = char::from(digit).to_digit(16).ok_or(KeyError::Digit(at))?;
            if let Some(byte) = key.0.get_mut(at / 2) {
                *byte = (*byte << 4) | value as u8;
            }
        }
        Ok(key)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Why a text is not a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// It does not have 64 digits.
    #[error("a key has 64 hexadecimal digits, this one has {0}")]
    Length(usize),
    /// The character at this index, from 0, is not a hexadecimal digit.
    #[error("character {} of the key is not a hexadecimal digit", .0 + 1)]
    Digit(usize),
}

/// A key of the cluster, from which the keys of all nodes are derived: 32 bytes.
#[derive(Clone)]
pub struct ClusterKey(pub(crate) Secret);

impl ClusterKey {
    /// Parses a key of 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        Secret::from_hex(text.trim()).map(ClusterKey)
    }

    /// The key of these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        ClusterKey(Secret(bytes))
    }

    /// The key of a node.
    pub fn node(&self, role: Role, id: NodeId) -> NodeKey {
        NodeKey(Secret(self.0.derive(b"csp node key 1", &[&[role as u8], id.as_str().as_bytes()])))
    }

    /// The key that signs tokens with these claims: that of their node.
    pub fn signing(&self, claims: &TokenClaims) -> NodeKey {
        self.node(signer(claims.role), claims.node)
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// A key of one node, or of a network node's links to one plug-in host.
#[derive(Clone)]
pub struct NodeKey(pub(crate) Secret);

impl NodeKey {
    /// The key of these bytes.
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        NodeKey(Secret(bytes))
    }

    /// The key of this network node's links to the plug-in host of an application node.
    pub fn link(&self, host: NodeId) -> NodeKey {
        NodeKey(Secret(self.0.derive(b"csp link key 1", &[host.as_str().as_bytes()])))
    }

    pub(crate) fn mac(&self) -> Option<Hmac<Sha256>> {
        self.0.mac()
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(..)")
    }
}

/// The role of the node whose key signs tokens of `role`: an application node signs those of its processes.
const fn signer(role: Role) -> Role {
    match role {
        Role::Process => Role::AppNode,
        role => role,
    }
}

/// The use of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeyOf {
    /// All nodes: their keys are derived from it.
    Cluster,
    /// One node.
    Node(Role, NodeId),
    /// The links of a network node to the plug-in host of an application node.
    Link {
        /// The network node.
        network_node: NodeId,
        /// The application node.
        host: NodeId,
    },
}

/// The holder of a key file. It decides which keys the file must contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// A proxy node: cluster keys.
    Proxy,
    /// A network node or application node: its own keys, and no cluster key.
    Node(Role, NodeId),
    /// The plug-in host of an application node: its link keys, and no cluster key.
    Host(NodeId),
}

#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) generation: u32,
    pub(crate) of: KeyOf,
    pub(crate) key: Secret,
}

/// The keys of one key file, those of the newest generation first.
#[derive(Clone, Default)]
pub struct KeySet {
    pub(crate) keys: Vec<Held>,
}

/// A verified token.
#[derive(Clone, Copy, Debug)]
pub struct Verified {
    /// Its claims.
    pub claims: TokenClaims,
    /// Its secret, which its holder proves to have.
    pub secret: [u8; token::SECRET_LEN],
}

impl KeySet {
    /// Checks that the file of `holder` has the keys that it needs, and none that it must not have.
    pub fn check(&self, holder: Holder) -> Result<(), KeyFileError> {
        let has = |of: &dyn Fn(KeyOf) -> bool| self.keys.iter().any(|held| of(held.of));
        let cluster = has(&|of| of == KeyOf::Cluster);
        let own = match holder {
            Holder::Proxy => return if cluster { Ok(()) } else { Err(KeyFileError::NoClusterKey) },
            Holder::Node(role, id) => has(&|of| of == KeyOf::Node(role, id)),
            Holder::Host(id) => has(&|of| matches!(of, KeyOf::Link { host, .. } if host == id)),
        };
        match (cluster, own) {
            (true, _) => Err(KeyFileError::ClusterKey(holder)),
            (false, false) => Err(KeyFileError::NotIts(holder)),
            (false, true) => Ok(()),
        }
    }

    /// The generations, newest first, each once.
    pub fn generations(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.keys.iter().map(|held| held.generation).collect();
        all.dedup();
        all
    }

    /// Signs a token with the newest key that may sign it; `to`: the plug-in host for which it is meant.
    /// Without such a key the token is empty, and every acceptor refuses it.
    pub fn issue(&self, claims: &TokenClaims, to: Option<NodeId>) -> Token {
        let key = self.keys.iter().find_map(|held| node_key(held, claims.role, claims.node));
        let key = key.map(|key| to.map_or_else(|| key.clone(), |host| key.link(host)));
        key.map_or(Token::EMPTY, |key| token::issue(&key, claims))
    }

    /// Verifies a token that a peer presents. `host`: the plug-in host that it is presented to, `None`
    /// elsewhere. A token of any generation is accepted.
    pub fn verify(
        &self,
        token: &[u8],
        now_unix_s: u64,
        host: Option<NodeId>,
    ) -> Result<Verified, TokenError> {
        let (role, node) = token::named(token).ok_or(TokenError::Malformed)?;
        let mut result = Err(TokenError::Signature);
        for held in &self.keys {
            let own = || node_key(held, role, node);
            let key = match (host, held.of) {
                (None, _) => own(),
                (Some(host), KeyOf::Link { network_node, host: of }) => (role == Role::NetworkNode
                    && (network_node, of) == (node, host))
                    .then(|| NodeKey(held.key.clone())),
                (Some(host), KeyOf::Cluster) => own().map(|key| key.link(host)),
                (Some(_), KeyOf::Node(..)) => None,
            };
            let Some(key) = key else { continue };
            result = token::verify(&key, token, now_unix_s);
            if !matches!(result, Err(TokenError::Signature)) {
                break;
            }
        }
        result
    }
}

/// The node key that signs tokens of a role and node, if it is `held` or can be derived from it.
fn node_key(held: &Held, role: Role, node: NodeId) -> Option<NodeKey> {
    match held.of {
        KeyOf::Cluster => Some(ClusterKey(held.key.clone()).node(signer(role), node)),
        KeyOf::Node(of, id) => ((of, id) == (signer(role), node)).then(|| NodeKey(held.key.clone())),
        KeyOf::Link { .. } => None,
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|held| (held.generation, held.of))).finish()
    }
}

impl From<ClusterKey> for KeySet {
    fn from(ClusterKey(key): ClusterKey) -> Self {
        KeySet { keys: vec![Held { generation: 1, of: KeyOf::Cluster, key }] }
    }
}

/// Keys shared by the endpoints of a daemon and the thread that replaces them. They are read when a link
/// opens, never for a message.
#[derive(Clone, Debug)]
pub struct Keys(Arc<RwLock<Arc<KeySet>>>);

impl Keys {
    /// Shares `keys`.
    pub fn new(keys: KeySet) -> Self {
        Keys(Arc::new(RwLock::new(Arc::new(keys))))
    }

    /// Replaces the keys. Links that are up stay up.
    pub fn replace(&self, keys: KeySet) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// The keys in force.
    pub fn current(&self) -> Arc<KeySet> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Signs a token ([`KeySet::issue`]).
    pub fn issue(&self, claims: &TokenClaims) -> Token {
        self.current().issue(claims, None)
    }

    /// Signs a network node's token for a plug-in host ([`KeySet::issue`]).
    pub fn issue_for_host(&self, claims: &TokenClaims, host: NodeId) -> Token {
        self.current().issue(claims, Some(host))
    }
}

impl From<ClusterKey> for Keys {
    fn from(key: ClusterKey) -> Self {
        Keys::new(key.into())
    }
}

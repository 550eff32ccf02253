//! Rights of the peers of a channel with keys (decision 0037), and the random bytes of its handshakes.

use std::collections::HashMap;
use std::sync::Arc;

use csp_zmtp::{CurveKeys, ENTROPY_LEN, KEY_LEN, Peer as PeerInfo, SocketType};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// The rights of the owner of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Connect as PUB, XPUB or PUSH.
    pub publish: bool,
    /// Connect as SUB, XSUB or PULL.
    pub subscribe: bool,
    /// Connect as REQ or DEALER, and ask the channel.
    pub control: bool,
    /// The same, and ask for queries.
    pub query: bool,
    /// As `control`, and bring handlers.
    pub supply: bool,
}

/// The keys of a channel.
#[derive(Clone, Debug)]
pub struct ChannelKeys {
    /// The proxies' own.
    pub server: Arc<CurveKeys>,
    /// Peers without encryption are refused; otherwise they have the rights of `any`.
    pub require: bool,
    /// Rights by public key.
    pub clients: HashMap<[u8; KEY_LEN], Rights>,
    /// Rights of peers whose key is not listed.
    pub any: Rights,
}

impl PartialEq for ChannelKeys {
    fn eq(&self, other: &Self) -> bool {
        self.admits_as(other) && self.clients == other.clients && self.any == other.any
    }
}

impl Eq for ChannelKeys {}

/// Why a peer is refused after its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    UnknownKey,
    NoKey,
    MayNotPublish,
    MayNotSubscribe,
    MayNotControl,
}

impl ChannelKeys {
    /// Returns whether connections accepted under `self` are valid under `other`, apart from the rights of
    /// their keys.
    pub(super) fn admits_as(&self, other: &ChannelKeys) -> bool {
        self.server.public() == other.server.public() && self.require == other.require
    }

    /// Returns the rights of a peer.
    pub(super) fn rights(&self, peer: &PeerInfo) -> Rights {
        peer.key.and_then(|key| self.clients.get(&key)).copied().unwrap_or(self.any)
    }

    /// Checks a peer's key and socket type with one look-up.
    pub(super) fn check(&self, peer: &PeerInfo) -> Result<(), Refusal> {
        let listed = peer.key.and_then(|key| self.clients.get(&key));
        let rights = self.rights(peer);
        let (may, refusal) = match peer.socket_type {
            SocketType::Pub | SocketType::Xpub | SocketType::Push => (rights.publish, Refusal::MayNotPublish),
            SocketType::Req | SocketType::Dealer => {
                (rights.control || rights.query || rights.supply, Refusal::MayNotControl)
            }
            _ => (rights.subscribe, Refusal::MayNotSubscribe),
        };
        match may {
            true => Ok(()),
            false if peer.key.is_none() => Err(Refusal::NoKey),
            false if listed.is_none() && rights == Rights::default() => Err(Refusal::UnknownKey),
            false => Err(refusal),
        }
    }
}

/// Peers refused or disconnected by the broker rather than by their framing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refusals {
    /// The channel does not know the key.
    pub unknown_key: u64,
    /// A peer without encryption, on a channel that does not require it.
    pub no_key: u64,
    /// The key is not for publishing.
    pub may_not_publish: u64,
    /// The key is not for subscribing.
    pub may_not_subscribe: u64,
    /// The key is not for asking.
    pub may_not_control: u64,
    /// The policy has taken a right from a connected peer.
    pub rights_removed: u64,
    /// The worker has as many peers as it may have.
    pub peers_full: u64,
    /// The worker's connections keep as many bytes of incomplete messages as they may.
    pub incomplete: u64,
}

impl Refusals {
    pub(super) fn count(&mut self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::UnknownKey => &mut self.unknown_key,
            Refusal::NoKey => &mut self.no_key,
            Refusal::MayNotPublish => &mut self.may_not_publish,
            Refusal::MayNotSubscribe => &mut self.may_not_subscribe,
            Refusal::MayNotControl => &mut self.may_not_control,
        };
        *counter += 1;
    }
}

/// Random bytes for handshakes. Each draw replaces the generator's key, so that a key found later does not
/// reveal what was drawn before.
pub(super) struct Entropy {
    key: [u8; 32],
}

impl Entropy {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Entropy { key: seed }
    }

    pub(super) fn draw(&mut self) -> [u8; ENTROPY_LEN] {
        let mut generator = ChaCha20Rng::from_seed(self.key);
        let mut out = [0; ENTROPY_LEN];
        generator.fill_bytes(&mut self.key);
        generator.fill_bytes(&mut out);
        out
    }
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Entropy(..)")
    }
}

//! Keys of tickets that several proxies have without a word between them: each derives the same ones from one
//! secret and the time (RFC 5077, RFC 8446 §4.6.1).
//!
//! ```text
//!  secret ─▶ HKDF-Extract ─┬▶ name of epoch n          16 bytes, in the ticket
//!  binding ──────────────▶ └▶ HKDF-Extract ─▶ key of one ticket: epoch, name, salt
//!
//!  ticket:  name │ salt │ session, encrypted and authenticated
//!           16     16     ≤ 16 KiB
//! ```
//! An epoch is six hours of civil time. The present one issues; tickets of the one before and of the one
//! after, which clocks that differ make, are accepted as well. Whatever the *binding* says is part of each
//! key: a ticket for one service, or for one way of verifying clients, is none for another.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, OutboundChunks, OutboundPlainMessage, Tls13AeadAlgorithm,
};
use rustls::crypto::tls13::HkdfExpander;
use rustls::server::ProducesTickets;
use rustls::time_provider::TimeProvider;
use rustls::{CipherSuite, ContentType, ProtocolVersion, SupportedCipherSuite};

/// Seconds of an epoch.
const EPOCH_S: u64 = 6 * 60 * 60;
/// Length of a key's name, and of a ticket's salt.
const NAME_LEN: usize = 16;
const SALT_LEN: usize = 16;
/// Longest session in a ticket, in bytes: those with a client's chain of certificates are the longest.
const SESSION_LEN_MAX: usize = 16 * 1024;
/// Smallest number of bytes of a secret.
pub const TICKET_SECRET_LEN_MIN: usize = 32;

/// The keys of one service's tickets.
pub struct TicketKeys {
    provider: Arc<CryptoProvider>,
    time: Arc<dyn TimeProvider>,
    aead: &'static dyn Tls13AeadAlgorithm,
    /// Of these the names are derived.
    names: Box<dyn HkdfExpander>,
    /// Of these and what the ticket is bound to, the keys.
    keys: Box<dyn HkdfExpander>,
}

impl TicketKeys {
    /// Derives the keys from a secret of at least [`TICKET_SECRET_LEN_MIN`] bytes, which all proxies have.
    /// `binding` says for what sessions may be resumed.
    ///
    /// `None` if the secret is too short, or the provider lacks ChaCha20-Poly1305 of TLS 1.3.
    #[must_use]
    pub fn new(
        (provider, time): (Arc<CryptoProvider>, Arc<dyn TimeProvider>),
        secret: &[u8],
        binding: &[u8],
    ) -> Option<Self> {
        let suite = provider.cipher_suites.iter().find_map(|suite| match suite {
            SupportedCipherSuite::Tls13(suite)
                if suite.common.suite == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 =>
            {
                Some(*suite)
            }
            _ => None,
        })?;
        if secret.len() < TICKET_SECRET_LEN_MIN {
            return None;
        }
        let names = suite.hkdf_provider.extract_from_secret(Some(b"csp tls tickets 1"), secret);
        let salt = names.expand_block(&[b"keys"]);
        let keys = suite.hkdf_provider.extract_from_secret(Some(salt.as_ref()), binding);
        Some(TicketKeys { provider, time, aead: suite.aead_alg, names, keys })
    }

    fn now(&self) -> Option<u64> {
        self.time.current_time().map(|time| time.as_secs())
    }

    fn name(&self, epoch: u64) -> Option<[u8; NAME_LEN]> {
        let mut name = [0; NAME_LEN];
        self.names.expand_slice(&[b"name", &epoch.to_be_bytes()], &mut name).ok()?;
        Some(name)
    }

    /// Returns the key of one ticket.
    fn key(&self, epoch: u64, name: &[u8], salt: &[u8]) -> Option<AeadKey> {
        let mut key = [0; 32];
        let info: [&[u8]; 4] = [b"key", &epoch.to_be_bytes(), name, salt];
        self.keys.expand_slice(&info, &mut key).ok()?;
        Some(key.into())
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        true
    }

    /// Until the next epoch's end.
    fn lifetime(&self) -> u32 {
        let left = self.now().map_or(0, |now| 2 * EPOCH_S - now % EPOCH_S);
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        if plain.len() > SESSION_LEN_MAX {
            return None;
        }
        let epoch = self.now()? / EPOCH_S;
        let (name, mut salt) = (self.name(epoch)?, [0; SALT_LEN]);
        self.provider.secure_random.fill(&mut salt).ok()?;
        // The key is that of one ticket: its nonce needs not be random.
        let mut sealing = self.aead.encrypter(self.key(epoch, &name, &salt)?, Iv::new([0; 12]));
        let message = OutboundPlainMessage {
            typ: ContentType::ApplicationData,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(plain),
        };
        let sealed = sealing.encrypt(message, 0).ok()?;
        Some([&name, &salt, sealed.payload.as_ref()].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > NAME_LEN + SALT_LEN + SESSION_LEN_MAX + 64 {
            return None;
        }
        let (name, rest) = ticket.split_at_checked(NAME_LEN)?;
        let (salt, sealed) = rest.split_at_checked(SALT_LEN)?;
        let now = self.now()? / EPOCH_S;
        let accepted = [now, now.saturating_sub(1), now + 1];
        let epoch = accepted.into_iter().find(|epoch| self.name(*epoch).is_some_and(|own| own == *name))?;
        let mut opening = self.aead.decrypter(self.key(epoch, name, salt)?, Iv::new([0; 12]));
        let mut bytes = sealed.to_vec();
        let message =
            InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, &mut bytes);
        let opened = opening.decrypt(message, 0).ok()?;
        Some(opened.payload.to_vec())
    }
}

impl fmt::Debug for TicketKeys {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").finish_non_exhaustive()
    }
}

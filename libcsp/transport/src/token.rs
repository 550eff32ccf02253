//! Signed tokens: they authorise a role, node and process to open links, for a limited time.
//!
//! A token is signed with the key of its node and travels in HELLO. Its *secret* is derived from the same key
//! and the token, and never travels over the SAN: the signer gives it to the token's holder, and an acceptor
//! that knows the key derives it. Each side proves to the other that it has it ([`crate::proof`]).
//!
//! ```text
//!  0 version | 1 role | 2 flags (1: uid is meant, else it is 0) | 3 reserved 0 | 4 uid (4) | 8 not before (8) | 16 expires (8)
//! 24 nonce (8) | 32 node id (1 + n) | process id (1 + n) | grant | HMAC-SHA256 over all before it (32)
//! ```
//! Integers are little-endian; the grant has the form of [`Grant`]. Application processes receive tokens with
//! their secrets from their host's agent, and never see its key.

use core::fmt;

use csp_types::grant::GRANT_LEN_MAX;
use csp_types::{Grant, NodeId, Role};
use hmac::Mac;

use crate::identity::ProcessId;
use crate::keys::{NodeKey, Verified};

/// Longest token with its secret, in bytes.
pub const TOKEN_LEN_MAX: usize = 576;
/// Bytes of a token's secret.
pub const SECRET_LEN: usize = 32;
/// Largest difference between the clocks of two hosts that both ends of a token's validity tolerate, in
/// seconds. One hour covers a clock that took local time for UTC across a change to summer time; five minutes
/// are added.
pub const CLOCK_SKEW_S: u64 = 3_900;

const VERSION: u8 = 3;
const FLAG_UID: u8 = 1;
const FIXED_LEN: usize = 32;
const MAC_LEN: usize = 32;

/// The claims that a token certifies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenClaims {
    /// The role its bearer may take.
    pub role: Role,
    /// The node it is for.
    pub node: NodeId,
    /// The process it is for; empty for daemons.
    pub process: ProcessId,
    /// The user that the process runs as.
    pub uid: Option<u32>,
    /// The ports and destinations that the process may listen on and connect to.
    pub grant: Grant,
    /// Start of validity, in seconds of Unix time.
    pub not_before: u64,
    /// End of validity (this second excluded), in seconds of Unix time; [`verify`] adds [`CLOCK_SKEW_S`].
    pub expires: u64,
    /// A random number, unique to the token, by which replay is detected.
    pub nonce: u64,
}

/// A signed token with its secret, stored inline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    len: u16,
    bytes: [u8; TOKEN_LEN_MAX],
}

impl Token {
    /// No token: for links within a host, and where no key can sign one.
    pub const EMPTY: Token = Token { len: 0, bytes: [0; TOKEN_LEN_MAX] };

    /// An unverified token with its secret, received from the signer, such as the agent's answer. Returns
    /// `None` if it is too long.
    pub fn from_bytes(token: &[u8]) -> Option<Self> {
        let mut bytes = [0; TOKEN_LEN_MAX];
        bytes.get_mut(..token.len())?.copy_from_slice(token);
        Some(Token { len: u16::try_from(token.len()).ok()?, bytes })
    }

    /// The token with its secret, for its holder.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// The token as it is sent to an acceptor, and its secret; `None` if it is too short for one.
    pub fn split(&self) -> Option<(&[u8], &[u8; SECRET_LEN])> {
        self.as_bytes().split_last_chunk()
    }

    fn put(&mut self, part: &[u8]) {
        let start = usize::from(self.len);
        if let Some(room) = self.bytes.get_mut(start..start + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len() as u16;
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.len)
    }
}

// The longest token there can be fits.
const _: () = assert!(FIXED_LEN + 1 + 63 + 1 + 63 + GRANT_LEN_MAX + MAC_LEN + SECRET_LEN <= TOKEN_LEN_MAX);

/// Why a token is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    /// It is not well-formed, or has another version.
    #[error("the token is ill-formed")]
    Malformed,
    /// It is not signed with a key of its node.
    #[error("the token is not signed with its node's key")]
    Signature,
    /// Its validity has ended.
    #[error("the token has expired")]
    Expired,
    /// Its validity has not begun.
    #[error("the token is not valid yet: check the clocks")]
    NotYetValid,
}

/// Signs `claims` with the key of their node, or of the link that the token is for.
pub fn issue(key: &NodeKey, claims: &TokenClaims) -> Token {
    let mut token = Token::EMPTY;
    let flags = if claims.uid.is_some() { FLAG_UID } else { 0 };
    token.put(&[VERSION, claims.role as u8, flags, 0]);
    token.put(&claims.uid.unwrap_or(0).to_le_bytes());
    token.put(&claims.not_before.to_le_bytes());
    token.put(&claims.expires.to_le_bytes());
    token.put(&claims.nonce.to_le_bytes());
    for id in [claims.node.as_str(), claims.process.as_str()] {
        token.put(&[id.len() as u8]);
        token.put(id.as_bytes());
    }
    claims.grant.write(|part| token.put(part));
    if let Some(mut mac) = key.mac() {
        mac.update(token.as_bytes());
        token.put(&mac.finalize().into_bytes());
    }
    let secret = key.0.derive(b"csp token secret", &[token.as_bytes()]);
    token.put(&secret);
    token
}

/// Checks the signature (in constant time) and the validity of a token received from a peer. No claim is used
/// before the signature is verified, but those that select the key (`named`). `now_unix_s` and the times in
/// the token may differ by [`CLOCK_SKEW_S`].
pub fn verify(key: &NodeKey, token: &[u8], now_unix_s: u64) -> Result<Verified, TokenError> {
    if token.len() > TOKEN_LEN_MAX - SECRET_LEN {
        return Err(TokenError::Malformed);
    }
    let (signed, tag) = token.split_last_chunk::<MAC_LEN>().ok_or(TokenError::Malformed)?;
    let mut mac = key.mac().ok_or(TokenError::Signature)?;
    mac.update(signed);
    mac.verify_slice(tag).map_err(|_| TokenError::Signature)?;
    let claims = parse(signed).ok_or(TokenError::Malformed)?;
    if now_unix_s >= claims.expires.saturating_add(CLOCK_SKEW_S) {
        return Err(TokenError::Expired);
    }
    if now_unix_s.saturating_add(CLOCK_SKEW_S) < claims.not_before {
        return Err(TokenError::NotYetValid);
    }
    Ok(Verified { claims, secret: key.0.derive(b"csp token secret", &[token]) })
}

/// The role and node that an unverified token names: they select the key that must have signed it.
pub(crate) fn named(token: &[u8]) -> Option<(Role, NodeId)> {
    let (signed, _) = token.split_last_chunk::<MAC_LEN>()?;
    parse(signed).map(|claims| (claims.role, claims.node))
}

fn parse(signed: &[u8]) -> Option<TokenClaims> {
    let (&[version, role, flags, reserved], rest) = signed.split_first_chunk::<4>()?;
    let (uid, rest) = rest.split_first_chunk::<4>()?;
    let (not_before, rest) = rest.split_first_chunk::<8>()?;
    let (expires, rest) = rest.split_first_chunk::<8>()?;
    let (nonce, rest) = rest.split_first_chunk::<8>()?;
    let (node, rest) = short_bytes(rest)?;
    let (process, rest) = short_bytes(rest)?;
    let (grant, rest) = Grant::parse(rest)?;
    if version != VERSION || flags & !FLAG_UID != 0 || reserved != 0 || !rest.is_empty() {
        return None;
    }
    let (uid, has_uid) = (u32::from_le_bytes(*uid), flags & FLAG_UID != 0);
    if uid != 0 && !has_uid {
        return None;
    }
    Some(TokenClaims {
        role: Role::from_u8(role)?,
        node: NodeId::parse(node).ok()?,
        process: ProcessId::parse(process)?,
        uid: has_uid.then_some(uid),
        grant,
        not_before: u64::from_le_bytes(*not_before),
        expires: u64::from_le_bytes(*expires),
        nonce: u64::from_le_bytes(*nonce),
    })
}

/// Splits off a string preceded by its length in one byte. Returns the string and the rest.
fn short_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(len))
}

#[cfg(test)]
mod tests {
    use csp_types::grant::Held;

    use super::*;

    fn key(byte: u8) -> NodeKey {
        NodeKey::from_bytes([byte; 32])
    }

    fn verified(key: &NodeKey, token: &Token, now: u64) -> Result<TokenClaims, TokenError> {
        let (signed, secret) = token.split().unwrap();
        verify(key, signed, now).map(|verified| {
            assert_eq!(verified.secret, *secret);
            verified.claims
        })
    }

    fn claims() -> TokenClaims {
        TokenClaims {
            role: Role::Process,
            node: "an-1".parse().unwrap(),
            process: ProcessId::parse(b"nginx.17").unwrap(),
            uid: Some(33),
            grant: Grant::all().holding([Held { port: 80, uid: 0 }]),
            not_before: 10_000,
            expires: 13_600,
            nonce: 0x0123_4567_89ab_cdef,
        }
    }

    #[test]
    fn a_token_yields_its_claims_during_its_validity_only() {
        let token = issue(&key(1), &claims());
        let (begins, ends) = (claims().not_before, claims().expires);
        assert_eq!(verified(&key(1), &token, ends - 1 + CLOCK_SKEW_S), Ok(claims()));
        assert_eq!(verified(&key(1), &token, begins - CLOCK_SKEW_S), Ok(claims()));
        assert_eq!(verified(&key(1), &token, ends + CLOCK_SKEW_S), Err(TokenError::Expired));
        let early = begins - 1 - CLOCK_SKEW_S;
        assert_eq!(verified(&key(1), &token, early), Err(TokenError::NotYetValid));
        assert_eq!(verified(&key(2), &token, begins), Err(TokenError::Signature));
    }

    #[test]
    fn the_longest_ids_fit() {
        let long = "n".repeat(63);
        let claims = TokenClaims {
            node: long.parse().unwrap(),
            process: ProcessId::parse(long.as_bytes()).unwrap(),
            uid: None,
            ..claims()
        };
        let token = issue(&key(1), &claims);
        assert_eq!(verified(&key(1), &token, 10_000), Ok(claims));
    }

    #[test]
    fn a_user_that_is_not_meant_is_no_second_form_of_a_token() {
        let token = issue(&key(1), &TokenClaims { uid: None, ..claims() });
        let (good, _) = token.split().unwrap();
        let mut bad = good.to_vec();
        bad[4] = 33;
        let signed = bad.len() - MAC_LEN;
        let mut mac = key(1).mac().unwrap();
        mac.update(&bad[..signed]);
        bad.splice(signed.., mac.finalize().into_bytes());
        assert!(verify(&key(1), good, 10_000).is_ok());
        assert_eq!(verify(&key(1), &bad, 10_000).err(), Some(TokenError::Malformed));
    }

    #[test]
    fn no_changed_bit_and_no_other_length_passes() {
        let token = issue(&key(1), &claims());
        let (good, _) = token.split().unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let result = verify(&key(1), &bad, 10_000).map(|verified| verified.claims);
            assert_eq!(result, Err(TokenError::Signature), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(verify(&key(1), &good[..len], 10_000).is_err(), "length {len}");
        }
        let longer = [good, &[0]].concat();
        assert!(verify(&key(1), &longer, 10_000).is_err());
    }
}

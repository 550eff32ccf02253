//! Proofs in the handshake of a link: each end proves that it holds the secret of the connector's token.
//!
//! ```text
//! connector                                                       acceptor
//!   HELLO, HMAC(secret, "hello", HELLO) ───────────────────────────▶ derives the secret from the token
//!   ◀────────────── HELLO_ACK, HMAC(secret, "ack", HELLO, HELLO_ACK)
//!   CONFIRM: HMAC(secret, "confirm", HELLO, HELLO_ACK) ────────────▶ the link is up
//! ```
//! Each proof covers the versions, identities and nonces of both bodies so far, under a label of its own:
//! none can be replayed in another handshake, reflected, or moved to another message. A nonce need not be
//! random: each end's is unique for the secret, and nothing is proved to a peer that does not know the
//! secret.

use csp_wire::link::{NONCE_LEN, PROOF_LEN, SESSION_LEN};
use sha2::{Digest, Sha256};

use crate::keys::Secret;
use crate::token::SECRET_LEN;

/// A handshake after HELLO.
#[derive(Clone)]
pub struct Handshake {
    secret: Secret,
    hello: [u8; 32],
}

impl Handshake {
    /// Writes the proof into the last bytes of a HELLO body.
    pub fn sign_hello(secret: &[u8; SECRET_LEN], body: &mut [u8]) -> Option<Handshake> {
        let secret = Secret(*secret);
        let (fields, proof) = body.split_last_chunk_mut::<PROOF_LEN>()?;
        *proof = secret.derive(b"csp hello", &[fields]);
        Some(Handshake { secret, hello: Sha256::digest(body).into() })
    }

    /// Verifies the proof at the end of a HELLO body.
    pub fn check_hello(secret: &[u8; SECRET_LEN], body: &[u8]) -> Option<Handshake> {
        let secret = Secret(*secret);
        let (fields, proof) = body.split_last_chunk::<PROOF_LEN>()?;
        let good = same(proof, &secret.derive(b"csp hello", &[fields]));
        good.then(|| Handshake { hello: Sha256::digest(body).into(), secret })
    }

    /// Writes the proof into the last bytes of a HELLO_ACK body. Returns the CONFIRM that has to follow.
    pub fn sign_ack(&self, body: &mut [u8]) -> Option<[u8; PROOF_LEN]> {
        let (fields, proof) = body.split_last_chunk_mut::<PROOF_LEN>()?;
        *proof = self.secret.derive(b"csp ack", &[&self.hello, fields]);
        Some(self.confirm(body))
    }

    /// Verifies the proof at the end of a HELLO_ACK body. Returns the CONFIRM that answers it.
    pub fn check_ack(&self, body: &[u8]) -> Option<[u8; PROOF_LEN]> {
        let (fields, proof) = body.split_last_chunk::<PROOF_LEN>()?;
        same(proof, &self.secret.derive(b"csp ack", &[&self.hello, fields])).then(|| self.confirm(body))
    }

    fn confirm(&self, ack: &[u8]) -> [u8; PROOF_LEN] {
        self.secret.derive(b"csp confirm", &[&self.hello, ack])
    }

    /// The secret of a HELLO's token.
    pub(crate) fn secret(&self) -> &[u8; SECRET_LEN] {
        &self.secret.0
    }

    /// Derives the secret that identifies the link when its VI is lost. `nonce`: the acceptor's.
    pub(crate) fn session(&self, nonce: &[u8; NONCE_LEN]) -> [u8; SESSION_LEN] {
        let derived = self.secret.derive(b"csp session", &[&self.hello, nonce]);
        derived.first_chunk().copied().unwrap_or_default()
    }
}

impl core::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Handshake(..)")
    }
}

/// Compares secrets in constant time.
pub(crate) fn same<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    core::hint::black_box(a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proof_depends_on_the_secret_on_every_bit_before_it_and_on_its_place() {
        let (secret, other) = ([7; SECRET_LEN], [8; SECRET_LEN]);
        let mut hello = [b"hello".to_vec(), vec![0; PROOF_LEN]].concat();
        let connector = Handshake::sign_hello(&secret, &mut hello).unwrap();
        let acceptor = Handshake::check_hello(&secret, &hello).unwrap();
        assert!(Handshake::check_hello(&other, &hello).is_none());
        let mut ack = [b"ack".to_vec(), vec![0; PROOF_LEN]].concat();
        let confirm = acceptor.sign_ack(&mut ack).unwrap();
        assert_eq!(connector.check_ack(&ack), Some(confirm));
        for bit in 0..hello.len() * 8 {
            let mut bad = hello.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Handshake::check_hello(&secret, &bad).is_none(), "bit {bit}");
        }
        for bit in 0..ack.len() * 8 {
            let mut bad = ack.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(connector.check_ack(&bad), None, "bit {bit}");
        }
        // The answer to another HELLO; a HELLO as its own answer; an answer as a HELLO.
        let mut second = [b"hellO".to_vec(), vec![0; PROOF_LEN]].concat();
        let second = Handshake::sign_hello(&secret, &mut second).unwrap();
        assert_eq!((second.check_ack(&ack), connector.check_ack(&hello)), (None, None));
        assert!(Handshake::check_hello(&secret, &ack).is_none());
        assert!(
            confirm[..] != ack[ack.len() - PROOF_LEN..] && confirm[..] != hello[hello.len() - PROOF_LEN..]
        );
        assert!(Handshake::check_hello(&secret, &[0; PROOF_LEN - 1]).is_none());
    }
}

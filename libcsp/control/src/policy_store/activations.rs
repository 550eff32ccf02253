//! Which generation a node takes for the one in force: the signed activation in etcd, and the one that it
//! followed last.
//!
//! ```text
//!  /csp/v1/policy/active          7                               what every version reads
//!  /csp/v1/policy/active-signed   {"generation": 7, "hash": …}    what a node with an identity believes
//! ```
//! A node without an identity follows the number alone.

use std::time::Duration;

use crate::signatures::{Activation, PolicySignature, Verifier, now};

/// The activations known to a node.
pub(super) struct Activations {
    verifier: Verifier,
    /// The activation in etcd.
    found: Option<Found>,
    /// The newest activation that this node has followed, also before the daemon was started.
    followed: Option<Activation>,
}

/// The signed activation in etcd.
struct Found {
    /// `None` if the value cannot be parsed.
    activation: Option<Box<Activation>>,
    /// Result of the signature check.
    verified: Result<(), String>,
}

impl Found {
    /// Returns the activation if its signature is valid.
    fn right(&self) -> Result<&Activation, String> {
        self.verified.clone()?;
        self.activation.as_deref().ok_or_else(String::new)
    }
}

impl Activations {
    /// `followed` is the activation that the node stored before it was restarted.
    pub(super) fn new(verifier: Verifier, followed: Option<Activation>) -> Activations {
        Activations { verifier, found: None, followed }
    }

    /// Returns the newest activation that this node has followed.
    pub(super) fn followed(&self) -> Option<&Activation> {
        self.followed.as_ref()
    }

    /// Clears the activation in etcd.
    pub(super) fn clear(&mut self) {
        self.found = None;
    }

    /// Sets the activation in etcd.
    pub(super) fn put(&mut self, text: &str) {
        self.found = Some(match Activation::from_json(text) {
            Ok(activation) => {
                let verified = self.verifier.activation(&activation, now());
                Found { activation: Some(Box::new(activation)), verified }
            }
            Err(problem) => Found { activation: None, verified: Err(problem) },
        });
    }

    /// Verifies the activation in etcd again, since authorities, revocations or the time have changed.
    /// Returns whether the result differs.
    pub(super) fn verify_again(&mut self) -> bool {
        let Some(Found { activation: Some(activation), verified }) = &mut self.found else { return false };
        let again = self.verifier.activation(activation, now());
        let differs = again != *verified;
        *verified = again;
        differs
    }

    /// Returns whether a management node has signed this generation or its activation. A generation that was
    /// published before signatures existed, or whose signer's certificate has expired, has only the latter.
    pub(super) fn vouch(
        &self,
        (number, created_unix_ms, hash): (u64, u64, &str),
        signature: Option<&PolicySignature>,
    ) -> Result<(), String> {
        let signed = self.verifier.generation((number, created_unix_ms, hash), signature, now());
        match self.found.as_ref().map(Found::right) {
            Some(Ok(activation)) if activation.is_of(number, hash) => Ok(()),
            _ => signed,
        }
    }

    /// Checks that the generation which etcd names as active is in force. The error is the reason why it is
    /// not.
    pub(super) fn confirm(&self, number: u64, hash: &str) -> Result<(), String> {
        if !self.verifier.is_needed() {
            return Ok(());
        }
        let found = self.found.as_ref().ok_or_else(|| "no management node has signed that".to_owned())?;
        let activation = found.right()?;
        if activation.generation != number {
            let signed = activation.generation;
            return Err(format!("a management node has signed that generation {signed} is"));
        }
        if activation.hash != hash {
            return Err(format!("it has the hash {hash}, and what was signed has {}", activation.hash));
        }
        match &self.followed {
            Some(followed) if followed.sequence > activation.sequence => Err(older(activation, followed)),
            Some(followed) if followed.sequence == activation.sequence && !followed.is_of(number, hash) => {
                Err(older(activation, followed))
            }
            _ => Ok(()),
        }
    }

    /// Records that this node follows the activation in etcd. Returns whether it differs from the former one.
    pub(super) fn follow(&mut self) -> bool {
        let Some(Ok(activation)) = self.found.as_ref().map(Found::right) else { return false };
        if !self.verifier.is_needed() || self.followed.as_ref() == Some(activation) {
            return false;
        }
        self.followed = Some(activation.clone());
        true
    }
}

fn older(activation: &Activation, followed: &Activation) -> String {
    let ago = Duration::from_millis(followed.sequence.saturating_sub(activation.sequence)).as_secs();
    format!(
        "its activation (sequence {}) is {ago} s older than the one of generation {} that this node has followed \
         (sequence {}): an old one was put back, or etcd was restored from a backup",
        activation.sequence, followed.generation, followed.sequence
    )
}

//! Signatures of policy: what management nodes sign, and what nodes verify (decision 0081).
//!
//! ```text
//!  generation: number, time, hash            signed when it is published    stands in the generation's record
//!  activation: number, hash, sequence        signed when it is activated    stands at /csp/v1/policy/active-signed
//! ```
//! Whoever can write etcd can put both anywhere and at any time, so each names what it is for. The sequence
//! of activations rises: nodes remember the highest that they have followed, and follow no lower one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use csp_identity::{Credentials, IdentityRole, Peer, SignError, Signature};
use serde::{Deserialize, Serialize};

use crate::policy_store::{GenerationRecord, is_hash};

/// Largest activation that is parsed, in bytes of JSON.
const ACTIVATION_LEN_MAX: usize = 32 << 10;

/// A signature in JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicySignature {
    /// The signer's certificate: DER in base64.
    pub certificate: String,
    /// The algorithm: a SignatureScheme of TLS (RFC 8446 §4.2.3).
    pub scheme: u16,
    /// The signature in base64.
    pub signature: String,
}

impl PolicySignature {
    fn of(signature: &Signature) -> PolicySignature {
        PolicySignature {
            certificate: BASE64.encode(&signature.certificate),
            scheme: signature.scheme,
            signature: BASE64.encode(&signature.bytes),
        }
    }

    fn decode(&self) -> Result<Signature, String> {
        let bytes = |text: &str| BASE64.decode(text).map_err(|_| "its signature is no base64".to_owned());
        Ok(Signature {
            certificate: bytes(&self.certificate)?,
            scheme: self.scheme,
            bytes: bytes(&self.signature)?,
        })
    }
}

/// A signed activation: the value of [`keys::ACTIVE_SIGNED`](crate::keys::ACTIVE_SIGNED).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Activation {
    /// The generation.
    pub generation: u64,
    /// Its policy's hash.
    pub hash: String,
    /// Greater than that of every former activation: the time of signing in milliseconds since the Unix
    /// epoch, or the former sequence plus one if that is greater.
    pub sequence: u64,
    /// A management node's signature.
    pub signature: PolicySignature,
}

impl Activation {
    /// Parses an activation. The error says what is wrong with it.
    pub(crate) fn from_json(text: &str) -> Result<Activation, String> {
        if text.len() > ACTIVATION_LEN_MAX {
            return Err(format!("the signed activation is longer than {ACTIVATION_LEN_MAX} bytes"));
        }
        serde_json::from_str(text).map_err(|error| format!("the signed activation is malformed: {error}"))
    }

    /// Returns whether it activates this generation with this content.
    pub(crate) fn is_of(&self, generation: u64, hash: &str) -> bool {
        self.generation == generation && self.hash == hash
    }
}

/// A statement that a management node signs.
#[derive(Clone, Copy, Debug)]
enum Statement<'a> {
    Generation { number: u64, created_unix_ms: u64, hash: &'a str },
    Activation { number: u64, sequence: u64, hash: &'a str },
}

impl Statement<'_> {
    /// Returns the text that is signed. Its lines are unambiguous: neither a cluster's name nor a hash
    /// contains a line break.
    fn text(self, credentials: &Credentials) -> Result<String, String> {
        let cluster = credentials.current().holder.identity.cluster;
        let (what, number, at, hash) = match self {
            Statement::Generation { number, created_unix_ms, hash } => {
                ("generation", number, created_unix_ms, hash)
            }
            Statement::Activation { number, sequence, hash } => ("activation", number, sequence, hash),
        };
        if !is_hash(hash) {
            return Err(format!("{what} {number}: its hash is none"));
        }
        Ok(format!("policy {what}\ncluster {cluster}\ngeneration {number}\nat {at}\nhash {hash}\n"))
    }

    fn name(self) -> String {
        match self {
            Statement::Generation { number, .. } => format!("generation {number}"),
            Statement::Activation { number, .. } => format!("the activation of generation {number}"),
        }
    }
}

/// Signs a statement with the credentials of a management node.
fn sign(credentials: &Credentials, statement: Statement<'_>) -> Result<PolicySignature, SignError> {
    // The hash was computed by this program.
    let text = statement.text(credentials).map_err(|_| SignError::Kind)?;
    Ok(PolicySignature::of(&credentials.current().sign(&text)?))
}

/// Signs a generation that is to be published.
pub(crate) fn sign_generation(
    credentials: &Credentials,
    record: &GenerationRecord,
) -> Result<PolicySignature, SignError> {
    let GenerationRecord { generation, created_unix_ms, ref hash, .. } = *record;
    sign(credentials, Statement::Generation { number: generation, created_unix_ms, hash })
}

/// Signs that a generation is in force from now on.
pub(crate) fn sign_activation(
    credentials: &Credentials,
    (generation, hash): (u64, &str),
    sequence: u64,
) -> Result<Activation, SignError> {
    let signature = sign(credentials, Statement::Activation { number: generation, sequence, hash })?;
    Ok(Activation { generation, hash: hash.to_owned(), sequence, signature })
}

/// Verifies signatures by this node's identity folder: its authorities, its revocation lists and its cluster.
/// A node without an identity verifies nothing.
#[derive(Clone, Debug)]
pub(crate) struct Verifier {
    credentials: Option<Credentials>,
}

impl Verifier {
    pub(crate) fn new(credentials: Option<Credentials>) -> Verifier {
        Verifier { credentials }
    }

    /// Returns whether signatures are required.
    pub(crate) fn is_needed(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns this node's credentials.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Verifies a generation's signature as of the time `at`.
    pub(crate) fn generation(
        &self,
        (number, created_unix_ms, hash): (u64, u64, &str),
        signature: Option<&PolicySignature>,
        at: Duration,
    ) -> Result<(), String> {
        let statement = Statement::Generation { number, created_unix_ms, hash };
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let Some(signature) = signature else {
            return Err(format!(
                "generation {number} is not signed, and this node takes only what a management node of its cluster has \
                 signed; if management nodes are older than this node, upgrade them first, then publish again"
            ));
        };
        verify(credentials, statement, signature, at)
    }

    /// Verifies an activation's signature as of the time `at`.
    pub(crate) fn activation(&self, activation: &Activation, at: Duration) -> Result<(), String> {
        let Activation { generation: number, sequence, ref hash, ref signature } = *activation;
        let Some(credentials) = &self.credentials else { return Ok(()) };
        verify(credentials, Statement::Activation { number, sequence, hash }, signature, at)
    }
}

fn verify(
    credentials: &Credentials,
    statement: Statement<'_>,
    signature: &PolicySignature,
    at: Duration,
) -> Result<(), String> {
    let refused = |reason: String| format!("{}: {reason}", statement.name());
    let signature = signature.decode().map_err(refused)?;
    let text = statement.text(credentials)?;
    let verified = credentials.current().verify(&text, &signature, at);
    let Peer { identity, .. } = verified.map_err(|error| refused(error.to_string()))?;
    if identity.role != IdentityRole::MgmtNode {
        return Err(refused(format!("its signer {identity} is no management node")));
    }
    Ok(())
}

/// Returns the present time since the Unix epoch.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

//! TLS (RFC 8446, RFC 5246) of clients' connections, by rustls' unbuffered interface; sans-I/O.
//!
//! ```text
//!   TCP engine                     Session                          service
//!    ciphertext ── take_record ─▶ ┌─────────┐ ── plaintext ───────▶ relay, broker …
//!               ◀── encrypt ───── └─────────┘ ◀─ write, close ─────
//!                                      │
//!                                 ServerTls: versions, ALPN, certificates by server name
//! ```
//! A [`Session`] holds at most one decrypted record, and what was written and is not encrypted yet.
//! Ciphertext stays with the caller until a whole record is there; plaintext is encrypted only as far as the
//! caller has room. So the windows of both ends count plaintext, and neither end makes a session grow.
//!
//! The provider of cryptography is its user's. 0-RTT data is not accepted: it can be replayed.

mod certificates;
mod server;
mod session;

pub use certificates::{Certificate, CertificateError};
pub use server::{ConfigError, ServerTls, TlsVersion};
pub use session::{Failure, Session};

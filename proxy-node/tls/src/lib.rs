//! TLS (RFC 8446, RFC 5246) of clients' connections, and of those to servers, by rustls' unbuffered
//! interface; sans-I/O.
//!
//! ```text
//!   TCP engine                     Session                          service
//!    ciphertext ── take_record ─▶ ┌─────────┐ ── plaintext ───────▶ relay, broker …
//!               ◀── encrypt ───── └─────────┘ ◀─ write, close ─────
//!                                      │
//!                                 ServerTls: versions, ALPN, certificates by server name
//!                                 ClientTls: versions, ALPN, authorities, names of servers
//! ```
//! A [`Session`] holds at most one decrypted record, and what was written and is not encrypted yet.
//! Ciphertext stays with the caller until a whole record is there; plaintext is encrypted only as far as the
//! caller has room. So the windows of both ends count plaintext, and neither end makes a session grow.
//!
//! The provider of cryptography is its user's. 0-RTT data is not accepted: it can be replayed.

mod certificates;
mod challenge;
mod client;
mod clients;
mod elsewhere;
mod engine;
mod failure;
mod hello;
mod server;
mod server_names;
mod session;
mod tickets;

pub use certificates::{Certificate, CertificateError};
pub use challenge::{ACME_TLS, TlsChallenges};
pub use client::{ClientError, ClientOptions, ClientTls, Trust};
pub use clients::{ClientIdentity, ClientVerifier, ClientsError};
pub use failure::{Failure, FailureClass};
pub use hello::{CLIENT_HELLO_LEN_MAX, Hello, HelloReader, MalformedHello, server_name};
pub use server::{ConfigError, ServerTls, TlsVersion};
pub use server_names::ServerNames;
pub use session::Session;
pub use tickets::{TICKET_SECRET_LEN_MIN, TicketKeys};

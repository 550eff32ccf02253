//! Properties that must hold for any input, each with bounds of memory and time, as targets of libFuzzer
//! (`libfuzzer`) and as tests of 1,000 seeded inputs each (`tests/seeded.rs`). Both run the same functions,
//! so that what one of them finds the other replays.
//!
//! Parsers of csp-wire: they return, an error names a field and an offset within the bytes, and a value that
//! was parsed, emitted and parsed again is the same.
//!
//! The TCP engine, for any segments and calls: it terminates, stays within its bounds and releases all
//! resources.
//!
//! The VI providers: no bytes or memory contents of a peer cause an out-of-bounds access.
//!
//! The framings of messages: one outcome for any slices, within the bounds.
//!
//! The ClientHello of TLS: one outcome for any slices and records.
//!
//! HTTP/1.1: one outcome for any slices; what is forwarded means the same to the next program.
//!
//! Filters of HTTP: an origin that is allowed is a whole one; `Accept` means the same with empty elements.
//!
//! HTTP/2: each accepted head is one head of HTTP/1.1; every stream and connection ends, within the bounds.
//!
//! Formats: what is read from a message does not depend on its slices, and is written and read again alike,
//! also as JSON.
//!
//! Queries: a plan is within its bounds, and its programs yield what it yields; a pattern is matched in as
//! many steps as it may take.
//!
//! What programs, peers and administrators supply: requests, policies, rules, texts about plug-ins, tokens
//! and grants, declarations of modules, eBPF objects, captured packets. What is accepted is written and read
//! again alike; errors have a place and a bounded length.
#![forbid(unsafe_code)]

mod context;
mod declarations;
mod filters;
mod formats;
mod hello;
mod http;
mod http2;
mod lan;
mod objects;
mod packets;
mod pcap;
mod policy;
mod queries;
mod remote;
mod requests;
mod ring;
mod rules;
mod san;
pub mod seeded;
mod stack;
mod target;
mod tokens;
mod vi;
mod zmtp;

pub use context::CONTEXT;
pub use declarations::DECLARATIONS;
pub use filters::HTTP_FILTERS;
pub use formats::{FORMATS_JSON, FORMATS_MESSAGE, FORMATS_SCHEMA};
pub use hello::CLIENT_HELLO;
pub use http::{HTTP_BODY, HTTP_EXCHANGE, HTTP_HEAD, HTTP_ROUTE};
pub use http2::{HTTP2_CLIENT, HTTP2_MEMBER};
pub use lan::{ARP, ETHERNET, ICMP, IPV4, IPV6, PROXY_PROTOCOL, TCP};
pub use objects::OBJECTS;
pub use packets::PACKETS;
pub use pcap::PCAP_MERGE;
pub use policy::POLICY;
pub use queries::{QUERIES_LIKE, QUERIES_SQL};
pub use remote::REMOTE;
pub use requests::REQUESTS;
pub use ring::SHM_RING;
pub use rules::RULES;
pub use san::{AGENT, CHANNEL, ELECTION, LINK, TUNNEL};
pub use stack::{TCP_OPTIONS, TCP_STACK};
pub use target::{Bounds, Check, Outcome, Target, report_own_panics_only};
pub use tokens::{GRANTS, TOKENS};
pub use vi::{SHM_RENDEZVOUS, TCP_STREAM, UCX_FRAME, VERBS_FRAME};
pub use zmtp::ZMTP;

use csp_wire::WireError;

/// Checks the error of a parser for `bytes`.
fn check_error(error: WireError, bytes: &[u8]) {
    assert!(!error.what().is_empty());
    assert!(error.offset() <= bytes.len(), "{error:?} points behind {} bytes", bytes.len());
    assert!(
        !matches!(error, WireError::NoSpace { .. } | WireError::TooLarge { .. }),
        "{error:?} from a parser"
    );
}

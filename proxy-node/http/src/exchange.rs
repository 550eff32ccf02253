//! Connections: one request and its response after another, as states with events in and actions out
//! (RFC 9112 §9).
//!
//! ```text
//!  client's connection (ClientSide)                            member's connection (MemberSide)
//!
//!  request:  Head ─accept─▶ Body ─RequestEnd─▶ Complete         Idle ─begin─▶ Head ─accept─▶ Body
//!             ▲               │ response ended      │            ▲    1xx ──┘  │              │ End
//!             │               ▼                     │            │             │ 101          ▼
//!             │◀── within ── Drain ─ beyond ─▶ Linger            └── release ──┼───────── Complete
//!             │    bound                            ▲ no keep                  ▼
//!             └──────────── response ended, keep ───┴─── Complete            Tunnel
//!  response: None ─accept─▶ Awaited ─respond─▶ Body ─response_end─▶ None
//!                              └─ switched ─▶ Tunnel
//! ```
//! A client's connection has one exchange at a time: bytes of a further request stay unread, so that the
//! window of TCP bounds them. The caller joins one of each kind for an exchange, moves payload between them,
//! and keeps time.

mod client;
mod member;

pub use client::{After, ClientSide, Connection, FromClient, Plan};
pub use member::{FromMember, Loss, MemberSide};

/// Whether further bytes of a stream follow the readable ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StreamEnd {
    /// They may.
    #[default]
    Open,
    /// The peer has finished its stream.
    Finished,
    /// The connection was reset or lost: bytes may be missing.
    Lost,
}

impl StreamEnd {
    /// Returns whether no bytes follow.
    pub(crate) fn is_end(self) -> bool {
        self != StreamEnd::Open
    }
}

/// Returns the number of bytes in `slices`.
fn readable(slices: &[&[u8]]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

//! Which of several network nodes answers for a group of addresses. Network nodes have no links to each
//! other, so the proxies vote: a vote is a lease (Gray and Cheriton, SOSP 1989), and the node that has the
//! votes of a majority holds the group.
//!
//! ```text
//!  network node: Candidate                    proxy, worker 0: Voter            every proxy worker: Claims
//!     beat: asks, epoch 5       ──────────▶   nobody has the vote: grants it
//!     counts the votes          ◀──────────   ballot: nn-1 has it, epoch 5
//!     a majority: it holds      ──beat: holds, epoch 5───────────────────────▶  the group is at nn-1
//!     asks again every 200 ms   ──────────▶   the vote lasts 900 ms from here
//! ```
//! - **One holder at a time.** A voter keeps a vote for [`GRANTED_FOR`] from *receiving* a beat; the node
//!   counts [`HELD_FOR`] from *sending* it, each on its own clock. A node asks with a majority's votes. It
//!   keeps the group while it has so many that nobody else can have a majority: with two voters one is enough
//!   to keep, two are needed to take.
//! - **A voter that starts anew** has forgotten its votes, and gives none for [`GRANTED_FOR`].
//! - **Epochs** order the holders of a group: each attempt has a higher one than its voters have seen.
//! - **Death is faster than time.** When all links of a node have hung up, its process is dead and its votes
//!   are free at once; a node that yields names its successor.
//! - **Order among those who would take a group**: able before not able, not draining before draining, then
//!   as the policy prefers, then by a hash of node and group, so that groups spread. Each waits for its
//!   betters.
//! - **Back again.** A holder yields to a better node that has been well for the group's time, so that a node
//!   that fails again and again does not move addresses each time.
//!
//! Sans-I/O: time is an argument, messages are [`csp_wire::election`]'s. Time is the owner's CLOCK_BOOTTIME,
//! which goes on while the host sleeps.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod candidate;
mod claims;
mod held;
mod order;
mod view;
mod voter;

#[cfg(test)]
mod tests;

use csp_types::{Duration, NodeId};

pub use candidate::{Candidate, Change, GroupState, LostBy};
pub use claims::Claims;
pub use csp_wire::election::{GROUPS_MAX, NODES_MAX};
pub use held::Held;
pub use voter::Voter;

/// How often a network node sends its beat.
pub const BEAT_EVERY: Duration = Duration::from_millis(200);
/// How long a network node holds a group after it sent the beat by which it got the votes.
pub const HELD_FOR: Duration = Duration::from_millis(600);
/// How long a voter keeps its vote after it received a beat.
pub const GRANTED_FOR: Duration = Duration::from_millis(900);

/// A group of addresses, by the hash of its name ([`GroupId::of`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);

impl GroupId {
    /// Returns the id of a name (FNV-1a).
    pub fn of(name: &str) -> Self {
        GroupId(hash(name.as_bytes(), FNV_OFFSET))
    }
}

/// A group as a candidate knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its id.
    pub id: GroupId,
    /// The nodes that it is to be at, the best first; all others come after them.
    pub prefer: Vec<NodeId>,
    /// How long a better node must have been well before it gets the group back; `None`: never.
    pub failback: Option<Duration>,
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

fn hash(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

//! Classification over several fields: source and destination prefix, port ranges, protocol, interface,
//! direction, TCP flags and DSCP, of IPv4 and IPv6 packets. The result is a rule and the plug-in instance
//! that it is bound to.
//!
//! **Order:** the rule with the lowest priority number that matches decides, as in tc(8); of rules with equal
//! priority the one that was inserted first.
//!
//! ```text
//!   control thread                                       worker
//!   Owner ── insert, remove, replace ──▶ Arc<Table> ──▶ Worker: flow cache, hit counters
//!     │            (two tables, decision 0051)             │
//!     └─────────────── Totals ◀── counters ────────────────┘
//! ```
//!
//! Look-ups do not allocate, lock or wait. A table is immutable while workers have it: the owner changes
//! another one and publishes it as a whole. The rules of a table lie in hash tables by masks over their
//! fields (`space`, after TupleMerge: Daly, Bruschi, Linguaglossa, Pontarelli, Rossi, Tollet, Torng,
//! Yourtchenko, IEEE/ACM Transactions on Networking 2019).

mod analysis;
mod fields;
mod layout;
mod linear;
mod owner;
mod parse;
mod space;
mod table;
mod tuple;
mod words;
mod worker;

pub use analysis::{Covered, covered_rules};
pub use fields::{
    Direction, Fields, InstanceId, Match, PORTS_ANY, PRIORITY_MAX, PortRange, Rule, RuleError, TcpFlags,
    has_ports,
};
pub use layout::{EncodedRule, EncodedTuple};
pub use linear::Linear;
pub use owner::{Owner, OwnerError, Published};
pub use parse::{
    EXTENSION_HEADERS_MAX, Fragment, Malformed, NoFields, Parsed, VLAN_TAGS_MAX, parse_ethernet, parse_ip,
};
pub use table::{Hit, RuleHandle, Table, TableStats};
pub use worker::{Counters, HitCount, Worker};

//! Merges the answers of level 1 and level 2 to an operation.

use std::str::FromStr as _;

use csp_plugins::{Answer, Row};
use csp_types::Prefix;

/// Adds the driver's counts to the answer of the workers. Both have the same tables: numbers of packets and
/// bytes are added, all others are taken from the workers.
#[must_use]
pub fn merge(workers: Answer, driver: Answer) -> Answer {
    let (Answer::Rows(_), Answer::Rows(_)) = (&workers, &driver) else { return workers };
    let merged = workers.merge_where(driver, |name| name.ends_with("packets") || name.ends_with("bytes"));
    let Answer::Rows(mut rows) = merged else { return merged };
    rows.sort_by_key(place);
    Answer::Rows(rows)
}

/// Sort key: networks by address and length, then all other rows.
fn place(row: &Row) -> (bool, Option<(core::net::IpAddr, u8)>) {
    let prefix = Prefix::from_str(&row.key).ok();
    (prefix.is_none(), prefix.map(|prefix| (prefix.address(), prefix.length())))
}

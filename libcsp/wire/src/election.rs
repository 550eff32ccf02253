//! How network nodes and proxies agree on who answers for a group of addresses: beats of network nodes, and
//! ballots of proxies. Payloads of [`RecordKind::Election`](crate::tunnel::RecordKind).
//!
//! ```text
//! beat, of a network node to every worker of every proxy
//!  0 type: 1 (1) | 1 flags: 1 able, 2 draining (1) | 2 groups (1) | 3 zero (1) | 4 well for, ms (4) | 8 sent (8)
//!    each group: group (8) | epoch (8) | stage (1) | length of the successor's id (1) | zero (2) | id
//!
//! ballot, of a proxy's worker 0 to a network node
//!  0 type: 2 (1) | 1 nodes (1) | 2 groups (1) | 3 zero (1) | 4 zero (4) | 8 the beat's `sent` that it answers, or 0 (8)
//!    each node:  flags, as above (1) | length of the id (1) | zero (2) | well for, ms (4) | id
//!    each group: group (8) | epoch (8) | holder (1) | successor (1) | candidates (2)
//! ```
//! Integers are little-endian. `sent` is on the network node's clock and means nothing to the proxy. Holder
//! and successor are positions among the ballot's nodes, 255 for nobody; the candidates are a bit each.

use csp_types::NodeId;

use crate::WireError;
use crate::bytes::{Writer, array_at, slice_at};

/// Most groups of a beat or ballot.
pub const GROUPS_MAX: usize = 64;
/// Most network nodes of a ballot.
pub const NODES_MAX: usize = 16;
/// Longest beat or ballot, in bytes.
pub const LEN_MAX: usize = HEADER_LEN
    + max(
        GROUPS_MAX * (GROUP_LEN + ID_LEN_MAX),
        NODES_MAX * (NODE_LEN + ID_LEN_MAX) + GROUPS_MAX * GROUP_LEN,
    );

const HEADER_LEN: usize = 16;
const GROUP_LEN: usize = 20;
const NODE_LEN: usize = 8;
const ID_LEN_MAX: usize = 63;
const BEAT: u8 = 1;
const BALLOT: u8 = 2;
const ABLE: u8 = 1;
const DRAINING: u8 = 2;
const NOBODY: u8 = u8::MAX;

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// How a network node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Condition {
    /// Its LAN ports can transmit.
    pub able: bool,
    /// It gives its groups to others.
    pub draining: bool,
    /// How long it has been able and not draining, in milliseconds, saturating.
    pub well_ms: u32,
}

impl Condition {
    fn flags(self) -> u8 {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        flag(self.able, ABLE) | flag(self.draining, DRAINING)
    }

    fn parse(flags: u8, well_ms: [u8; 4], offset: usize) -> Result<Self, WireError> {
        if flags & !(ABLE | DRAINING) != 0 {
            return Err(WireError::Reserved { what: "election flags", offset });
        }
        let (able, draining) = (flags & ABLE != 0, flags & DRAINING != 0);
        Ok(Condition { able, draining, well_ms: u32::from_le_bytes(well_ms) })
    }
}

/// What a network node does about a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stage {
    /// It would take the group.
    Stands = 1,
    /// It asks for votes.
    Asks = 2,
    /// It answers for the group, and asks for the votes again.
    Holds = 3,
    /// It answered for the group, and gives it up.
    Yields = 4,
}

/// One group of a beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupBeat {
    /// The group.
    pub group: u64,
    /// The epoch in which it is asked for, held or yielded; the last known one for a node that stands.
    pub epoch: u64,
    /// What the node does.
    pub stage: Stage,
    /// The node to which a yielding node gives the group.
    pub successor: Option<NodeId>,
}

/// One group of a ballot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupBallot {
    /// The group.
    pub group: u64,
    /// The highest epoch in which the voter has voted.
    pub epoch: u64,
    /// Position of the node that has the vote.
    pub holder: Option<u8>,
    /// Position of the node for which the vote is reserved.
    pub successor: Option<u8>,
    /// The nodes that would take it, a bit each.
    pub candidates: u16,
}

/// A message of the election.
#[derive(Clone, Copy, Debug)]
pub enum Election<'a> {
    /// A network node's.
    Beat(Beat<'a>),
    /// A proxy's.
    Ballot(Ballot<'a>),
}

/// A checked beat.
#[derive(Clone, Copy, Debug)]
pub struct Beat<'a> {
    /// How its sender is.
    pub condition: Condition,
    /// When it was sent, in nanoseconds on its sender's clock.
    pub sent: u64,
    groups: &'a [u8],
}

/// A checked ballot.
#[derive(Clone, Copy, Debug)]
pub struct Ballot<'a> {
    /// [`Beat::sent`] of the beat that it answers; 0 if it answers none.
    pub answers: u64,
    nodes: &'a [u8],
    groups: &'a [u8],
}

impl<'a> Election<'a> {
    /// Parses a message: every part of it is checked here.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = array_at::<HEADER_LEN>(bytes, 0, "election message")?;
        let [kind, second, groups, zero, well @ .., _, _, _, _, _, _, _, _] = *header;
        let number = u64::from_le_bytes(*array_at::<8>(bytes, 8, "election time")?);
        check_zero(&[zero], 3)?;
        check_count(groups, GROUPS_MAX, "election groups", 2)?;
        let rest = &bytes[HEADER_LEN..];
        let message = match kind {
            BEAT => {
                let condition = Condition::parse(second, well, 1)?;
                check_end(rest, walk(rest, groups, |at| group_beat(rest, at).map(|(_, end)| end))?)?;
                Election::Beat(Beat { condition, sent: number, groups: rest })
            }
            BALLOT => {
                check_zero(&well, 4)?;
                check_count(second, NODES_MAX, "election nodes", 1)?;
                let end = walk(rest, second, |at| node(rest, at).map(|(_, end)| end))?;
                let (nodes, groups_of) = rest.split_at(end);
                let one = |at| group_ballot(groups_of, at, second).map(|(_, end)| end);
                check_end(groups_of, walk(groups_of, groups, one)?)?;
                Election::Ballot(Ballot { answers: number, nodes, groups: groups_of })
            }
            _ => {
                return Err(WireError::Kind { what: "election message type", offset: 0, found: kind.into() });
            }
        };
        Ok(message)
    }
}

impl<'a> Beat<'a> {
    /// Returns its groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupBeat> + use<'a> {
        let (bytes, mut at) = (self.groups, 0);
        core::iter::from_fn(move || {
            let (group, end) = group_beat(bytes, at).ok()?;
            at = end;
            Some(group)
        })
    }

    /// Writes a beat; returns its length.
    ///
    /// # Errors
    /// `out` is shorter than [`LEN_MAX`], or there are more than [`GROUPS_MAX`] groups.
    pub fn emit(
        condition: Condition,
        sent: u64,
        groups: impl ExactSizeIterator<Item = GroupBeat>,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let mut writer = Writer::new(out);
        let counts = [BEAT, condition.flags(), count(groups.len(), GROUPS_MAX)?, 0];
        header(&mut writer, counts, condition.well_ms, sent)?;
        for GroupBeat { group, epoch, stage, successor } in groups {
            let id = successor.as_ref().map_or("", NodeId::as_str).as_bytes();
            numbers(&mut writer, group, epoch)?;
            writer.put(&[stage as u8, id.len() as u8, 0, 0], "election group")?;
            writer.put(id, "election successor")?;
        }
        Ok(writer.len())
    }
}

impl<'a> Ballot<'a> {
    /// Returns the nodes that its groups name, in their order.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Condition)> + use<'a> {
        let (bytes, mut at) = (self.nodes, 0);
        core::iter::from_fn(move || {
            let (found, end) = node(bytes, at).ok()?;
            at = end;
            Some(found)
        })
    }

    /// Returns its groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupBallot> + use<'a> {
        let (bytes, mut at) = (self.groups, 0);
        core::iter::from_fn(move || {
            let (group, end) = group_ballot(bytes, at, NODES_MAX as u8).ok()?;
            at = end;
            Some(group)
        })
    }

    /// Writes a ballot; returns its length.
    ///
    /// # Errors
    /// `out` is shorter than [`LEN_MAX`], or there are more than [`NODES_MAX`] nodes or [`GROUPS_MAX`]
    /// groups.
    pub fn emit(
        answers: u64,
        nodes: impl ExactSizeIterator<Item = (NodeId, Condition)>,
        groups: impl ExactSizeIterator<Item = GroupBallot>,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let mut writer = Writer::new(out);
        let counts = [BALLOT, count(nodes.len(), NODES_MAX)?, count(groups.len(), GROUPS_MAX)?, 0];
        header(&mut writer, counts, 0, answers)?;
        for (node, condition) in nodes {
            let id = node.as_str().as_bytes();
            writer.put(&[condition.flags(), id.len() as u8, 0, 0], "election node")?;
            writer.put(&condition.well_ms.to_le_bytes(), "election node")?;
            writer.put(id, "election node")?;
        }
        for GroupBallot { group, epoch, holder, successor, candidates } in groups {
            numbers(&mut writer, group, epoch)?;
            let [low, high] = candidates.to_le_bytes();
            let named = [holder.unwrap_or(NOBODY), successor.unwrap_or(NOBODY), low, high];
            writer.put(&named, "election group")?;
        }
        Ok(writer.len())
    }
}

fn header(writer: &mut Writer<'_>, counts: [u8; 4], well: u32, number: u64) -> Result<(), WireError> {
    writer.put(&counts, "election message")?;
    writer.put(&well.to_le_bytes(), "election message")?;
    writer.put(&number.to_le_bytes(), "election message")
}

fn numbers(writer: &mut Writer<'_>, group: u64, epoch: u64) -> Result<(), WireError> {
    writer.put(&group.to_le_bytes(), "election group")?;
    writer.put(&epoch.to_le_bytes(), "election epoch")
}

fn count(len: usize, most: usize) -> Result<u8, WireError> {
    let too_large = WireError::TooLarge { what: "election message" };
    u8::try_from(len).ok().filter(|len| usize::from(*len) <= most).ok_or(too_large)
}

fn check_count(found: u8, most: usize, what: &'static str, offset: usize) -> Result<(), WireError> {
    match usize::from(found) <= most {
        true => Ok(()),
        false => Err(WireError::Length { what, offset, found: found.into() }),
    }
}

fn check_zero(bytes: &[u8], offset: usize) -> Result<(), WireError> {
    crate::bytes::check_padding(bytes, offset, "election message")
}

fn check_end(bytes: &[u8], end: usize) -> Result<(), WireError> {
    match bytes.len() == end {
        true => Ok(()),
        false => Err(WireError::Length { what: "election message", offset: HEADER_LEN, found: bytes.len() }),
    }
}

/// Returns the end of `count` parts, of which `part` returns the end.
fn walk(
    bytes: &[u8],
    count: u8,
    part: impl Fn(usize) -> Result<usize, WireError>,
) -> Result<usize, WireError> {
    let end = (0..count).try_fold(0, |at, _| part(at).map_err(|error| error.shifted(HEADER_LEN)))?;
    debug_assert!(end <= bytes.len());
    Ok(end)
}

fn group_beat(bytes: &[u8], at: usize) -> Result<(GroupBeat, usize), WireError> {
    let fixed = array_at::<GROUP_LEN>(bytes, at, "election group")?;
    let [stage, len, zeros @ ..] = *array_at::<4>(bytes, at + 16, "election group")?;
    check_zero(&zeros, at + 18)?;
    let stage = match stage {
        1 => Stage::Stands,
        2 => Stage::Asks,
        3 => Stage::Holds,
        4 => Stage::Yields,
        found => {
            return Err(WireError::Kind { what: "election stage", offset: at + 16, found: found.into() });
        }
    };
    let id = slice_at(bytes, at + GROUP_LEN, len.into(), "election successor")?;
    let successor = match len {
        0 => None,
        _ => Some(node_id(id, at + GROUP_LEN)?),
    };
    let (group, epoch) = both(fixed);
    Ok((GroupBeat { group, epoch, stage, successor }, at + GROUP_LEN + id.len()))
}

fn node(bytes: &[u8], at: usize) -> Result<((NodeId, Condition), usize), WireError> {
    let [flags, len, zero, zero_too, well @ ..] = *array_at::<NODE_LEN>(bytes, at, "election node")?;
    check_zero(&[zero, zero_too], at + 2)?;
    let condition = Condition::parse(flags, well, at)?;
    let id = slice_at(bytes, at + NODE_LEN, len.into(), "election node")?;
    Ok(((node_id(id, at + NODE_LEN)?, condition), at + NODE_LEN + id.len()))
}

fn group_ballot(bytes: &[u8], at: usize, nodes: u8) -> Result<(GroupBallot, usize), WireError> {
    let fixed = array_at::<GROUP_LEN>(bytes, at, "election group")?;
    let [holder, successor, candidates @ ..] = *array_at::<4>(bytes, at + 16, "election group")?;
    let (group, epoch) = both(fixed);
    let candidates = u16::from_le_bytes(candidates);
    let known = |node: u8| node == NOBODY || node < nodes;
    if !known(holder) || !known(successor) || u32::from(candidates) >> nodes != 0 {
        return Err(WireError::Value { what: "election node", offset: at + 16 });
    }
    let named = |node: u8| (node != NOBODY).then_some(node);
    let ballot = GroupBallot { group, epoch, holder: named(holder), successor: named(successor), candidates };
    Ok((ballot, at + GROUP_LEN))
}

fn both(fixed: &[u8; GROUP_LEN]) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = *fixed;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p]))
}

fn node_id(bytes: &[u8], offset: usize) -> Result<NodeId, WireError> {
    NodeId::parse(bytes).map_err(|_| WireError::Value { what: "election node", offset })
}

#[cfg(test)]
mod tests;

//! A list of networks whose packets are dropped, for a limited time or permanently, each with a note of its
//! origin. Through it the verdict of an application or of a higher layer becomes a drop here.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use csp_types::{Instant, Prefix};

use super::prefix_set::PrefixMap;
use super::{optional, required};
use crate::command::Level;
use crate::packet::Packet;
use crate::plugin::{
    Action, Answer, CallError, Effects, Module, Operation, Plugin, PluginError, ROWS_MAX, Row,
};
use crate::settings::{FOREVER, Kind, Settings, Value};

/// Drops packets whose `field` is in a listed network; passes others to output 0.
///
/// Operations: `add` a network for a `time` (`forever`: until it is removed) with `from`, a note; `remove`
/// it; `list` the first [`ROWS_MAX`] networks, and one more if there are more; `dump` all networks, during
/// which packets wait; `find` the longest listed network that contains an address; `read` the counters.
pub const BLOCK_LIST: Module = Module {
    name: "block-list",
    levels: &[Level::Driver, Level::Worker, Level::Host],
    outputs: 1,
    parameters: &[
        optional("field", Kind::Choice(&["source", "destination"]), "source"),
        optional("prefixes_max", Kind::Number(1, 1 << 20), "131072"),
    ],
    operations: &[
        Operation {
            name: "add",
            arguments: &[
                required("prefix", Kind::Prefix),
                optional("time", Kind::Duration, "forever"),
                optional("from", Kind::Text, "operator"),
            ],
        },
        Operation { name: "remove", arguments: &[required("prefix", Kind::Prefix)] },
        Operation { name: "find", arguments: &[required("address", Kind::Prefix)] },
        Operation { name: "list", arguments: &[] },
        Operation { name: "dump", arguments: &[] },
        Operation { name: "read", arguments: &[] },
    ],
    make: |settings, key| {
        let capacity = settings.number("prefixes_max") as usize;
        Ok(Box::new(BlockList {
            blocks: PrefixMap::new(capacity, key),
            expiries: BinaryHeap::with_capacity(2 * capacity),
            by_destination: settings.text("field") == "destination",
            plugin: "plug-in".into(),
            dropped: (0, 0),
            expired: 0,
            refused: 0,
        }))
    },
};

/// Largest number of expired networks that one packet or operation removes. Expired ones that remain in the
/// table do not match.
const EXPIRED_MAX: usize = 4;

struct Block {
    /// Time of expiry; [`Instant::FAR_FUTURE`] for an entry that does not expire.
    until: Instant,
    from: Arc<str>,
    hits: u64,
}

/// An expiry, ordered by time. Address and length stand for the network, since networks have no order.
type Expiry = Reverse<(Instant, core::net::IpAddr, u8)>;

struct BlockList {
    blocks: PrefixMap<Block>,
    /// Also contains outdated entries, for networks that were removed or added again with another time. They
    /// are skipped.
    expiries: BinaryHeap<Expiry>,
    by_destination: bool,
    /// The note of entries that other plug-ins add.
    plugin: Arc<str>,
    /// Packets and bytes dropped.
    dropped: (u64, u64),
    expired: u64,
    refused: u64,
}

impl BlockList {
    /// Removes some of the expired networks.
    fn expire(&mut self, now: Instant) {
        for _ in 0..EXPIRED_MAX {
            let Some(&Reverse((until, address, length))) = self.expiries.peek() else { return };
            if until > now {
                return;
            }
            self.expiries.pop();
            if let Ok(prefix) = Prefix::new(address, length)
                && self.blocks.get(&prefix).is_some_and(|block| block.until == until)
            {
                self.blocks.remove(&prefix);
                self.expired += 1;
            }
        }
    }

    fn add(&mut self, now: Instant, arguments: &Settings) -> Result<Answer, CallError> {
        let Some(prefix) = arguments.prefix("prefix") else { return Ok(Answer::Done) };
        let time = arguments.duration("time");
        let until = if time == FOREVER { Instant::FAR_FUTURE } else { now + time };
        let from = match arguments.value("from") {
            Some(Value::Text(text)) => text.clone(),
            _ => self.plugin.clone(),
        };
        let present = self.blocks.get(&prefix);
        // A network that is added again keeps its hits, and an equal expiry is not queued twice.
        let (hits, noted) = present.map_or((0, false), |block| (block.hits, block.until == until));
        if self.blocks.insert(prefix, Block { until, from, hits }).is_err() {
            self.refused += 1;
            return Err(CallError::Full { capacity: self.blocks.capacity() });
        }
        if until != Instant::FAR_FUTURE && !noted {
            if self.expiries.len() >= 2 * self.blocks.capacity() {
                self.compact();
            } else {
                self.expiries.push(Reverse((until, prefix.address(), prefix.length())));
            }
        }
        Ok(Answer::Done)
    }

    /// Rebuilds the queue of expiries from the list, without the outdated entries.
    fn compact(&mut self) {
        self.expiries.clear();
        let timed = self.blocks.iter().filter(|(_, block)| block.until != Instant::FAR_FUTURE);
        self.expiries
            .extend(timed.map(|(prefix, block)| Reverse((block.until, prefix.address(), prefix.length()))));
    }

    fn rows<'a>(now: Instant, blocks: impl IntoIterator<Item = (Prefix, &'a Block)>) -> Answer {
        let row = |(prefix, block): (Prefix, &'a Block)| {
            let left = if block.until == Instant::FAR_FUTURE {
                0
            } else {
                block.until.saturating_since(now).as_secs().max(1)
            };
            Row {
                key: prefix.to_string(),
                note: block.from.clone(),
                numbers: vec![("seconds_left", left), ("packets", block.hits)],
            }
        };
        Answer::Rows(blocks.into_iter().map(row).collect())
    }

    fn counters(&self) -> Answer {
        let numbers = vec![
            ("prefixes", self.blocks.len() as u64),
            ("dropped_packets", self.dropped.0),
            ("dropped_bytes", self.dropped.1),
            ("expired", self.expired),
            ("refused", self.refused),
        ];
        Answer::Rows(vec![Row { numbers, ..Row::default() }])
    }
}

impl Plugin for BlockList {
    fn process(&mut self, now: Instant, packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        self.expire(now);
        let Some(fields) = packet.fields() else { return Action::Next(0) };
        let address = if self.by_destination { fields.destination } else { fields.source };
        let Some((prefix, _)) = self.blocks.find(address, |block| block.until > now) else {
            return Action::Next(0);
        };
        if let Some(block) = self.blocks.get_mut(&prefix) {
            block.hits += 1;
        }
        self.dropped = (self.dropped.0 + 1, self.dropped.1 + packet.bytes().len() as u64);
        Action::Drop
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        if settings.number("prefixes_max") != self.blocks.capacity() as u64 {
            return Err(PluginError::Fixed("prefixes_max"));
        }
        self.by_destination = settings.text("field") == "destination";
        Ok(())
    }

    fn call(&mut self, now: Instant, operation: &str, arguments: &Settings) -> Result<Answer, CallError> {
        self.expire(now);
        match operation {
            "add" => self.add(now, arguments),
            "remove" => {
                let prefix = arguments.prefix("prefix");
                let removed = prefix.and_then(|prefix| self.blocks.remove(&prefix));
                let name = prefix.map_or(String::new(), |prefix| prefix.to_string());
                removed.map(|_| Answer::Done).ok_or(CallError::NotFound(name))
            }
            "find" => {
                let address = arguments.prefix("address").map(|prefix| prefix.address());
                let found = address.and_then(|address| self.blocks.find(address, |block| block.until > now));
                Ok(Self::rows(now, found))
            }
            "list" => Ok(Self::rows(now, self.blocks.first(ROWS_MAX + 1, |block| block.until > now))),
            "dump" => Ok(Self::rows(now, self.blocks.iter().filter(|(_, block)| block.until > now))),
            "read" => Ok(self.counters()),
            other => Err(CallError::NoOperation(other.into())),
        }
    }
}

//! Counts packets and bytes by the network of their source or destination.

use csp_types::Instant;

use super::optional;
use super::prefix_set::{PrefixMap, network_of};
use crate::command::Level;
use crate::packet::Packet;
use crate::plugin::{
    Action, Answer, CallError, Effects, Module, Operation, Plugin, PluginError, ROWS_MAX, Row,
};
use crate::settings::{Kind, Settings};

/// Counts by the network of `field` with a prefix of `length_v4` or `length_v6` bits. Packets of networks
/// beyond `prefixes_max`, and packets that are not IP, are counted together as `other`.
pub const COUNTER: Module = Module {
    name: "counter",
    levels: &[Level::Driver, Level::Worker, Level::Host],
    outputs: 1,
    parameters: &[
        optional("field", Kind::Choice(&["source", "destination"]), "source"),
        optional("length_v4", Kind::Number(0, 32), "24"),
        optional("length_v6", Kind::Number(0, 128), "64"),
        optional("prefixes_max", Kind::Number(1, 1 << 20), "65536"),
    ],
    operations: &[Operation { name: "read", arguments: &[] }, Operation { name: "reset", arguments: &[] }],
    make: |settings, key| {
        let counts = PrefixMap::new(settings.number("prefixes_max") as usize, key);
        let mut counter =
            Counter { counts, other: (0, 0), by_destination: false, length_v4: 0, length_v6: 0 };
        counter.set(settings);
        Ok(Box::new(counter))
    },
};

struct Counter {
    counts: PrefixMap<(u64, u64)>,
    other: (u64, u64),
    by_destination: bool,
    length_v4: u8,
    length_v6: u8,
}

impl Counter {
    fn set(&mut self, settings: &Settings) {
        self.by_destination = settings.text("field") == "destination";
        self.length_v4 = settings.number("length_v4") as u8;
        self.length_v6 = settings.number("length_v6") as u8;
    }

    fn reset(&mut self) {
        self.counts.clear();
        self.other = (0, 0);
    }
}

fn row(key: String, (packets, bytes): (u64, u64)) -> Row {
    Row { key, numbers: vec![("packets", packets), ("bytes", bytes)], ..Row::default() }
}

impl Plugin for Counter {
    fn process(&mut self, _now: Instant, packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        let bytes = packet.bytes().len() as u64;
        let packets = u64::from(packet.metadata.coalesced);
        let prefix = packet.fields().and_then(|fields| {
            let address = if self.by_destination { fields.destination } else { fields.source };
            network_of(address, if address.is_ipv4() { self.length_v4 } else { self.length_v6 })
        });
        let count = match prefix {
            Some(prefix) if self.counts.get(&prefix).is_some() || !self.counts.is_full() => {
                if self.counts.get(&prefix).is_none() {
                    // There is room, so this cannot fail.
                    let _ = self.counts.insert(prefix, (0, 0));
                }
                self.counts.get_mut(&prefix)
            }
            _ => None,
        };
        let count = count.unwrap_or(&mut self.other);
        *count = (count.0 + packets, count.1 + bytes);
        Action::Next(0)
    }

    /// Applies settings. If they select other networks, all counters restart from zero.
    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        if settings.number("prefixes_max") != self.counts.capacity() as u64 {
            return Err(PluginError::Fixed("prefixes_max"));
        }
        let before = (self.by_destination, self.length_v4, self.length_v6);
        self.set(settings);
        if before != (self.by_destination, self.length_v4, self.length_v6) {
            self.reset();
        }
        Ok(())
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        match operation {
            "read" => {
                let counts = self.counts.first(ROWS_MAX + 1, |_| true).into_iter();
                let mut rows: Vec<Row> =
                    counts.map(|(prefix, count)| row(prefix.to_string(), *count)).collect();
                if self.other.0 > 0 {
                    rows.push(row("other".into(), self.other));
                }
                Ok(Answer::Rows(rows))
            }
            "reset" => {
                self.reset();
                Ok(Answer::Done)
            }
            other => Err(CallError::NoOperation(other.into())),
        }
    }
}

//! A token bucket (as in RFC 2697, with one rate and one burst). Packets beyond the rate are dropped or sent
//! to another output, and their senders can be added to a block list.

use csp_classify::multifield::InstanceId;
use csp_types::{Duration, Instant, Prefix};

use super::{optional, required};
use crate::command::Level;
use crate::packet::Packet;
use crate::plugin::{Action, Answer, Call, CallError, Effects, Module, Operation, Plugin, PluginError, Row};
use crate::settings::{Kind, Settings, Value};

/// Passes `rate` bits of frames per second, with bursts of up to `burst` bytes. Excess packets are dropped,
/// or go to output 1 (`exceed=next`). A frame that the port has coalesced counts as its original frames, each
/// with its headers. It cannot be dropped in part: a frame longer than the burst passes if the bucket is
/// full, and the missing tokens become a debt. With `block`, the source address of excess packets is added to
/// that block list for `block_time`.
pub const POLICER: Module = Module {
    name: "policer",
    levels: &[Level::Driver, Level::Worker, Level::Host],
    outputs: 2,
    parameters: &[
        required("rate", Kind::Number(1, 1_000_000_000_000)),
        optional("burst", Kind::Number(64, 1_000_000_000), "256k"),
        optional("exceed", Kind::Choice(&["drop", "next"]), "drop"),
        optional("block", Kind::Instance, ""),
        optional("block_time", Kind::Duration, "60s"),
    ],
    operations: &[Operation { name: "read", arguments: &[] }],
    make: |settings, _| {
        let mut policer = Policer {
            rate: 0,
            burst: 0,
            tokens: 0,
            filled: None,
            exceed_next: false,
            block: None,
            block_time: Duration::ZERO,
            conforming: (0, 0),
            exceeding: (0, 0),
        };
        policer.set(settings);
        policer.tokens = policer.burst;
        Ok(Box::new(policer))
    },
};

/// Token units per byte. At r bits per second, r units are added per nanosecond.
const BYTE: u64 = 8 * 1_000_000_000;
/// Position of the header length in a TCP header: only TCP is coalesced.
const TCP_DATA_OFFSET_AT: usize = 12;

struct Policer {
    /// Bits per second, which equals units per nanosecond.
    rate: u64,
    /// Size of the bucket in units: at most 10⁹ bytes, which is below 2⁶³ units.
    burst: i64,
    /// Units in the bucket; a negative value is a debt.
    tokens: i64,
    filled: Option<Instant>,
    exceed_next: bool,
    block: Option<InstanceId>,
    block_time: Duration,
    /// Packets and bytes.
    conforming: (u64, u64),
    exceeding: (u64, u64),
}

impl Policer {
    fn set(&mut self, settings: &Settings) {
        self.rate = settings.number("rate");
        self.burst = units(settings.number("burst"));
        self.tokens = self.tokens.min(self.burst);
        self.exceed_next = settings.text("exceed") == "next";
        self.block = settings.instance("block");
        self.block_time = settings.duration("block_time");
    }

    fn fill(&mut self, now: Instant) {
        let since = self.filled.map_or(Duration::ZERO, |filled| now.saturating_since(filled));
        let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let added = i64::try_from(nanos.saturating_mul(self.rate)).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(added).min(self.burst);
        self.filled = Some(self.filled.map_or(now, |filled| filled.max(now)));
    }
}

/// Converts bytes to token units.
fn units(bytes: u64) -> i64 {
    i64::try_from(bytes.saturating_mul(BYTE)).unwrap_or(i64::MAX)
}

/// Returns the total length of the original frames, in bytes.
fn wire_len(packet: &Packet<'_>) -> u64 {
    let (bytes, repeated) = (packet.bytes(), u64::from(packet.metadata.coalesced.saturating_sub(1)));
    let headers = packet.parsed().map_or(0, |parsed| {
        let tcp =
            bytes.get(parsed.transport + TCP_DATA_OFFSET_AT).map_or(0, |byte| usize::from(byte >> 4) * 4);
        parsed.transport + tcp
    });
    bytes.len() as u64 + repeated * headers as u64
}

impl Plugin for Policer {
    fn process(&mut self, now: Instant, packet: &mut Packet<'_>, effects: &mut dyn Effects) -> Action {
        self.fill(now);
        let len = wire_len(packet);
        let cost = units(len);
        let needed = if packet.metadata.coalesced > 1 { cost.min(self.burst) } else { cost };
        if needed <= self.tokens {
            self.tokens = self.tokens.saturating_sub(cost);
            self.conforming = (self.conforming.0 + 1, self.conforming.1 + len);
            return Action::Next(0);
        }
        self.exceeding = (self.exceeding.0 + 1, self.exceeding.1 + len);
        if let (Some(instance), Some(fields)) = (self.block, packet.fields()) {
            let bits = if fields.source.is_ipv4() { 32 } else { 128 };
            if let Ok(prefix) = Prefix::new(fields.source, bits) {
                let mut arguments = Settings::default();
                arguments.put("prefix", Value::Prefix(prefix));
                arguments.put("time", Value::Duration(self.block_time));
                effects.call(Call { instance, operation: "add", arguments });
            }
        }
        if self.exceed_next { Action::Next(1) } else { Action::Drop }
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        self.set(settings);
        Ok(())
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        if operation != "read" {
            return Err(CallError::NoOperation(operation.into()));
        }
        let numbers = vec![
            ("conforming_packets", self.conforming.0),
            ("conforming_bytes", self.conforming.1),
            ("exceeding_packets", self.exceeding.0),
            ("exceeding_bytes", self.exceeding.1),
        ];
        Ok(Answer::Rows(vec![Row { numbers, ..Row::default() }]))
    }
}

//! Sets the differentiated services codepoint and keeps the ECN bits. The IPv4 header checksum is updated
//! incrementally (RFC 1624), so that a wrong checksum stays wrong. No transport checksum covers the field.

use csp_types::Instant;
use csp_wire::checksum::update;

use super::required;
use crate::command::Level;
use crate::packet::Packet;
use crate::plugin::{Action, Answer, CallError, Effects, Module, Plugin, PluginError};
use crate::settings::{Kind, Settings};

/// Sets the field to `dscp`. Packets that are not IP pass unchanged.
pub const DSCP: Module = Module {
    name: "dscp",
    levels: &[Level::Driver, Level::Worker, Level::Host],
    outputs: 1,
    parameters: &[required("dscp", Kind::Number(0, 63))],
    operations: &[],
    make: |settings, _| Ok(Box::new(Dscp(settings.number("dscp") as u8))),
};

struct Dscp(u8);

impl Plugin for Dscp {
    fn process(&mut self, _now: Instant, packet: &mut Packet<'_>, _effects: &mut dyn Effects) -> Action {
        let dscp = self.0;
        packet.change_ip_header(|header| match header {
            [first, traffic_class, rest @ ..] if *first >> 4 == 4 && rest.len() >= 18 => {
                let old = u16::from_be_bytes([*first, *traffic_class]);
                *traffic_class = dscp << 2 | *traffic_class & 3;
                let new = u16::from_be_bytes([*first, *traffic_class]);
                let sum = update(u16::from_be_bytes([rest[8], rest[9]]), old, new);
                rest[8..10].copy_from_slice(&sum.to_be_bytes());
            }
            // RFC 8200 §3: version 4 bits, traffic class 8 bits, flow label 20 bits.
            [first, second, ..] => {
                let traffic_class = dscp << 2 | *second >> 4 & 3;
                *first = 6 << 4 | traffic_class >> 4;
                *second = traffic_class << 4 | *second & 0xf;
            }
            _ => {}
        });
        Action::Next(0)
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        self.0 = settings.number("dscp") as u8;
        Ok(())
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        Err(CallError::NoOperation(operation.into()))
    }
}

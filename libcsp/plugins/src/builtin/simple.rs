//! Plug-ins without state: no-op, drop, redirect, mirror.

use csp_types::Instant;

use super::required;
use crate::command::Level;
use crate::packet::Packet;
use crate::plugin::{Action, Answer, CallError, Effects, Make, Module, Plugin, PluginError};
use crate::settings::{Kind, Parameter, Settings};

const INTERFACE: &[Parameter] = &[required("interface", Kind::Number(0, 65535))];

const fn module(name: &'static str, outputs: u8, parameters: &'static [Parameter], make: Make) -> Module {
    Module {
        name,
        levels: &[Level::Driver, Level::Worker, Level::Host],
        outputs,
        parameters,
        operations: &[],
        make,
    }
}

/// Passes each packet to output 0.
pub const NO_OP: Module = module("no-op", 1, &[], |_, _| Ok(Box::new(Simple::NoOp)));
/// Drops each packet.
pub const DROP: Module = module("drop", 0, &[], |_, _| Ok(Box::new(Simple::Drop)));
/// Transmits each packet unchanged on `interface`.
pub const REDIRECT: Module = module("redirect", 0, INTERFACE, |settings, _| {
    Ok(Box::new(Simple::Redirect(settings.number("interface") as u16)))
});
/// Transmits a copy of each packet on `interface`, and passes the packet to output 0.
///
/// Not available in the driver, where a program cannot copy a packet.
pub const MIRROR: Module = Module {
    levels: &[Level::Worker, Level::Host],
    ..module("mirror", 1, INTERFACE, |settings, _| {
        Ok(Box::new(Simple::Mirror(settings.number("interface") as u16)))
    })
};

enum Simple {
    NoOp,
    Drop,
    Redirect(u16),
    Mirror(u16),
}

impl Plugin for Simple {
    fn process(&mut self, _now: Instant, packet: &mut Packet<'_>, effects: &mut dyn Effects) -> Action {
        match *self {
            Simple::NoOp => Action::Next(0),
            Simple::Drop => Action::Drop,
            Simple::Redirect(interface) => Action::Transmit(interface),
            Simple::Mirror(interface) => {
                effects.copy(interface, packet.bytes());
                Action::Next(0)
            }
        }
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PluginError> {
        if let Simple::Redirect(interface) | Simple::Mirror(interface) = self {
            *interface = settings.number("interface") as u16;
        }
        Ok(())
    }

    fn call(&mut self, _now: Instant, operation: &str, _arguments: &Settings) -> Result<Answer, CallError> {
        Err(CallError::NoOperation(operation.into()))
    }
}

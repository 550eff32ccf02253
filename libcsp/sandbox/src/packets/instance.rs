//! One instance of a module for packets: its store, its functions, and the bounds of each call.

use std::sync::Arc;

use csp_plugins::Packet;
use csp_types::Instant;
use wasmtime::{Store, TypedFunc};

use super::{FUEL_PER_BYTE, HEAD_LEN, PacketDeclaration, PacketModule, Wanted, head, verdict};
use crate::engine::Limits;
use crate::fields::NoFields;
use crate::guest::{Facts, Guest};
use crate::instance::{prepare, why};
use crate::stopped::{Reason, Stopped};

/// An instance of a module. One that was stopped is thrown away.
pub(super) struct Instance {
    store: Store<Guest>,
    instance: wasmtime::Instance,
    memory: wasmtime::Memory,
    limits: Limits,
    declared: PacketDeclaration,
    on_packet: TypedFunc<(), i32>,
    configure: Option<TypedFunc<(u32,), i32>>,
}

impl Instance {
    /// Starts an instance. The caller has reserved room for it.
    pub fn start(module: &PacketModule) -> Result<Self, Stopped> {
        let shared = module.engine.shared();
        let limits = shared.limits;
        let mut store = Store::new(&shared.wasmtime, Guest::new(&limits, Arc::new(NoFields)));
        store.limiter(|guest| guest);
        prepare(&mut store, limits.fuel_start, &limits, Facts::default());
        let started = module.pre.instantiate(&mut store);
        let instance = started.map_err(|error| Stopped { reason: why(&store, &error), function: "start" })?;
        // The module was checked for these, with their types.
        let lacks = Stopped { reason: Reason::Abi, function: "start" };
        let memory = instance.get_memory(&mut store, "memory").ok_or(lacks)?;
        store.data_mut().memory = Some(memory);
        let on_packet = instance.get_typed_func(&mut store, "on_packet").map_err(|_| lacks)?;
        let configure = match module.configures {
            true => Some(instance.get_typed_func(&mut store, "configure").map_err(|_| lacks)?),
            false => None,
        };
        Ok(Instance { store, instance, memory, limits, declared: module.declared, on_packet, configure })
    }

    /// Calls a function without parameters that returns a number.
    pub fn number(&mut self, function: &'static str) -> Result<i32, Stopped> {
        let typed: TypedFunc<(), i32> = self
            .instance
            .get_typed_func(&mut self.store, function)
            .map_err(|_| Stopped { reason: Reason::Abi, function })?;
        prepare(&mut self.store, self.limits.fuel_start, &self.limits, Facts::default());
        let called = typed.call(&mut self.store, ());
        called.map_err(|error| Stopped { reason: why(&self.store, &error), function })
    }

    /// Returns the instance's memory.
    pub fn memory(&self) -> &[u8] {
        self.memory.data(&self.store)
    }

    /// Sets parameters. `Ok(Err(why))`: it refuses them.
    pub fn configure(&mut self, parameters: &Arc<str>) -> Result<Result<(), String>, Stopped> {
        let Some(function) = &self.configure else {
            return Ok(match &**parameters {
                "" => Ok(()),
                _ => Err(format!("the module has no parameters, and got `{parameters}`")),
            });
        };
        let guest = self.store.data_mut();
        guest.refusal.clear();
        let former = std::mem::replace(&mut guest.parameters, parameters.clone());
        prepare(&mut self.store, self.limits.fuel_start, &self.limits, Facts::default());
        let called = function.call(&mut self.store, (parameters.len() as u32,));
        let code =
            called.map_err(|error| Stopped { reason: why(&self.store, &error), function: "configure" })?;
        if code == 0 {
            return Ok(Ok(()));
        }
        let guest = self.store.data_mut();
        guest.parameters = former;
        Ok(Err(guest.why_refused(code)))
    }

    /// Processes a packet: copies it into the buffer, calls the module, and copies back what it has changed.
    /// Returns what it wants done, and the fuel of the call. A packet on which it is stopped is as it was.
    #[inline]
    pub fn process(&mut self, now: Instant, packet: &mut Packet<'_>) -> Result<(Wanted, u64), Stopped> {
        let (at, buffer_len) = self.declared.buffer;
        let capacity = buffer_len as usize - HEAD_LEN;
        let len = packet.bytes().len();
        let captured = len.min(capacity);
        let room = if captured == len { packet.room().min(capacity) } else { len };
        let fuel = self.limits.fuel + FUEL_PER_BYTE * captured as u64;
        // The declaration was checked against the memory at its start, and memory never shrinks.
        let stop = |reason| Stopped { reason, function: "on_packet" };
        let place = at as usize..(at + buffer_len) as usize;
        prepare(&mut self.store, fuel, &self.limits, Facts::default());
        let buffer = self.memory.data_mut(&mut self.store).get_mut(place.clone());
        let (front, frame) = buffer.ok_or(stop(Reason::Abi))?.split_at_mut(HEAD_LEN);
        front.copy_from_slice(&head(now, packet, captured, room));
        frame[..captured].copy_from_slice(&packet.bytes()[..captured]);
        let called = self.on_packet.call(&mut self.store, ());
        let code = called.map_err(|error| stop(why(&self.store, &error)))?;
        let left = self.store.get_fuel().unwrap_or(0);
        let (wanted, changed) = verdict(code).ok_or(stop(Reason::Abi))?;
        if matches!(wanted, Wanted::Next(output) if output >= self.declared.outputs) {
            return Err(stop(Reason::Output));
        }
        if changed {
            let buffer = self.memory.data(&self.store).get(place).ok_or(stop(Reason::Abi))?;
            let (front, frame) = buffer.split_at(HEAD_LEN);
            let wished = u32::from_le_bytes([front[0], front[1], front[2], front[3]]) as usize;
            // Another length is possible only of a frame that is in the buffer as a whole.
            let resized = captured == len && wished <= room;
            let start = if wished == len { captured } else { wished };
            let start = frame.get(..start).filter(|_| wished == len || resized);
            if !start.is_some_and(|start| packet.rewrite(start, wished)) {
                return Err(stop(Reason::Output));
            }
        }
        Ok((wanted, fuel.saturating_sub(left)))
    }
}

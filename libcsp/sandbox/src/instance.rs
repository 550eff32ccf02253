//! One instance: its store, its functions, and the bounds of each call.

use std::ops::Range;
use std::sync::Arc;

use csp_handlers::FormatId;
use wasmtime::{Store, Trap, TypedFunc, WasmParams, WasmResults};

use crate::bridge::{Bridge, lend};
use crate::engine::Limits;
use crate::fields::Fields;
use crate::guest::{Facts, Guest};
use crate::module::Module;
use crate::stopped::{Reason, Stopped};

/// Bytes of a page of the kernel, or a part of one.
const PAGE: usize = 4096;

type Get<R> = TypedFunc<(), R>;

/// An instance of a module. One that was stopped is thrown away.
pub(crate) struct Instance {
    store: Store<Guest>,
    memory: wasmtime::Memory,
    limits: Limits,
    buffer: (u32, u32),
    on_message: TypedFunc<(u32, u32, u32), i32>,
    on_timer: Option<Get<i32>>,
    configure: Option<TypedFunc<(u32,), i32>>,
    accepts: Option<TypedFunc<(u32,), i32>>,
    yields: Option<TypedFunc<(u32, u32), u32>>,
    export: Option<Get<u64>>,
    import: Option<TypedFunc<(u32, u32), u32>>,
    version: Get<i32>,
    declaration: Option<Get<u32>>,
}

/// What a guest returned from a call, and what the call has used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Returned {
    pub code: i32,
    pub fuel: u64,
}

impl Instance {
    /// Starts an instance. The caller has reserved room for it.
    pub fn start(module: &Module, fields: Arc<dyn Fields>, bridge: &mut dyn Bridge) -> Result<Self, Stopped> {
        let shared = module.engine.shared();
        let limits = shared.limits;
        let mut store = Store::new(&shared.wasmtime, Guest::new(&limits, fields));
        store.limiter(|guest| guest);
        store.data_mut().reserve(module.declaration());
        prepare(&mut store, limits.fuel_start, &limits, Facts::default());
        let started = lend(bridge, || module.pre.instantiate(&mut store));
        let instance = started.map_err(|error| Stopped { reason: why(&store, &error), function: "start" })?;
        // The module was checked for these, with their types.
        let lacks = Stopped { reason: Reason::Abi, function: "start" };
        let memory = instance.get_memory(&mut store, "memory").ok_or(lacks)?;
        store.data_mut().memory = Some(memory);
        let optional = module.optional;
        let on_message = instance.get_typed_func(&mut store, "on_message").map_err(|_| lacks)?;
        let version = instance.get_typed_func(&mut store, "csp_abi").map_err(|_| lacks)?;
        Ok(Instance {
            memory,
            limits,
            buffer: module.declaration().buffer,
            on_message,
            version,
            on_timer: find(&instance, &mut store, "on_timer", optional.on_timer),
            configure: find(&instance, &mut store, "configure", optional.configure),
            accepts: find(&instance, &mut store, "csp_accepts", optional.accepts),
            yields: find(&instance, &mut store, "csp_yields", optional.yields),
            export: find(&instance, &mut store, "csp_state_export", optional.hands_over),
            import: find(&instance, &mut store, "csp_state_import", optional.hands_over),
            declaration: find(&instance, &mut store, "csp_declaration", true),
            store,
        })
    }

    /// Changes the fuel of a call with a message or for the timer.
    pub fn set_fuel(&mut self, fuel: u64) {
        self.limits.fuel = fuel;
    }

    /// Returns the version of the ABI that it follows.
    pub fn version(&mut self, bridge: &mut dyn Bridge) -> Result<i32, Stopped> {
        let function = self.version.clone();
        self.quiet(bridge, "csp_abi", &function, ())
    }

    /// Returns the address of its declaration.
    pub fn declaration(&mut self, bridge: &mut dyn Bridge) -> Result<u32, Stopped> {
        match self.declaration.clone() {
            Some(function) => self.quiet(bridge, "csp_declaration", &function, ()),
            None => Err(Stopped { reason: Reason::Abi, function: "csp_declaration" }),
        }
    }

    /// Returns whether it processes a format.
    pub fn accepts(&mut self, bridge: &mut dyn Bridge, format: FormatId) -> Result<bool, Stopped> {
        match self.accepts.clone() {
            Some(function) => Ok(self.quiet(bridge, "csp_accepts", &function, (format.0,))? != 0),
            None => Ok(true),
        }
    }

    /// Returns the format of what it emits to an output.
    pub fn yields(
        &mut self,
        bridge: &mut dyn Bridge,
        output: u8,
        format: FormatId,
    ) -> Result<FormatId, Stopped> {
        match self.yields.clone() {
            Some(function) => {
                self.quiet(bridge, "csp_yields", &function, (u32::from(output), format.0)).map(FormatId)
            }
            None => Ok(format),
        }
    }

    /// Sets parameters. `Ok(Err(why))`: it refuses them.
    pub fn configure(
        &mut self,
        bridge: &mut dyn Bridge,
        parameters: Arc<str>,
    ) -> Result<Result<(), String>, Stopped> {
        let Some(function) = self.configure.clone() else {
            return Ok(match &*parameters {
                "" => Ok(()),
                _ => Err(format!("the module has no parameters, and got `{parameters}`")),
            });
        };
        let guest = self.store.data_mut();
        guest.refusal.clear();
        let len = parameters.len() as u32;
        let former = std::mem::replace(&mut guest.parameters, parameters);
        let code = self.quiet(bridge, "configure", &function, (len,))?;
        if code == 0 {
            return Ok(Ok(()));
        }
        self.undo(bridge);
        let guest = self.store.data_mut();
        guest.parameters = former;
        Ok(Err(guest.why_refused(code)))
    }

    /// Processes a message. A message that fits the guest's buffer is copied there.
    #[inline]
    pub fn on_message(
        &mut self,
        bridge: &mut dyn Bridge,
        facts: Facts,
        args: (u32, u32, u32),
    ) -> Result<Returned, Stopped> {
        prepare(&mut self.store, self.limits.fuel, &self.limits, facts);
        let (at, room) = self.buffer;
        if facts.len <= room {
            let memory = self.memory.data_mut(&mut self.store);
            // The declaration was checked against the memory at its start, and memory never shrinks.
            if let Some(into) = memory.get_mut(at as usize..).and_then(|it| it.get_mut(..facts.len as usize))
            {
                bridge.copy(0, into);
            }
        }
        let called = lend(bridge, || self.on_message.call(&mut self.store, args));
        self.finish(bridge, "on_message", called)
    }

    /// Processes the end of a period.
    pub fn on_timer(&mut self, bridge: &mut dyn Bridge, facts: Facts) -> Result<Returned, Stopped> {
        prepare(&mut self.store, self.limits.fuel, &self.limits, facts);
        let called = match &self.on_timer {
            Some(function) => lend(bridge, || function.call(&mut self.store, ())),
            None => Ok(0),
        };
        self.finish(bridge, "on_timer", called)
    }

    /// Returns whether an output had no room in the last call.
    pub fn was_full(&self) -> bool {
        self.store.data().full
    }

    /// Undoes what the last call has changed of the state block.
    pub fn undo(&mut self, bridge: &mut dyn Bridge) {
        let guest = self.store.data_mut();
        if std::mem::take(&mut guest.has_written) {
            let block = bridge.state().block();
            if block.len() == guest.undo.len() {
                block.copy_from_slice(&guest.undo);
            }
        }
    }

    /// Returns the instance's memory.
    pub fn memory(&self) -> &[u8] {
        self.memory.data(&self.store)
    }

    /// Has the kernel provide all pages of the instance's memory, so that state which is handed over is
    /// copied without page faults.
    pub fn touch(&mut self) {
        for page in self.memory.data_mut(&mut self.store).chunks_mut(PAGE) {
            page[0] = std::hint::black_box(page[0]);
        }
    }

    /// Returns where in its memory the state lies that it hands over.
    pub fn export(&mut self, bridge: &mut dyn Bridge) -> Result<Range<usize>, Stopped> {
        let wrong = Stopped { reason: Reason::Pointer, function: "csp_state_export" };
        let Some(function) = self.export.clone() else { return Err(wrong) };
        let packed = self.bounded(bridge, "csp_state_export", &function, (), self.limits.fuel)?;
        let (at, len) = ((packed >> 32) as usize, (packed & u64::from(u32::MAX)) as usize);
        match at.checked_add(len) {
            Some(end) if end <= self.memory().len() => Ok(at..end),
            _ => Err(wrong),
        }
    }

    /// Takes state over: the guest names an address for so many bytes, and finds them there. `Ok(false)`: it
    /// refuses them.
    pub fn import(&mut self, bridge: &mut dyn Bridge, layout: u32, state: &[u8]) -> Result<bool, Stopped> {
        let wrong = Stopped { reason: Reason::Pointer, function: "csp_state_import" };
        let Some(function) = self.import.clone() else { return Err(wrong) };
        let len = u32::try_from(state.len()).map_err(|_| wrong)?;
        let at = self.bounded(bridge, "csp_state_import", &function, (layout, len), self.limits.fuel)?;
        if at == 0 {
            return Ok(false);
        }
        let memory = self.memory.data_mut(&mut self.store);
        let into = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..state.len()));
        into.ok_or(wrong)?.copy_from_slice(state);
        Ok(true)
    }

    /// Calls a function with the fuel of a start. What hands state over has that of a message: it runs
    /// between two.
    fn quiet<P: WasmParams, R: WasmResults>(
        &mut self,
        bridge: &mut dyn Bridge,
        function: &'static str,
        typed: &TypedFunc<P, R>,
        args: P,
    ) -> Result<R, Stopped> {
        self.bounded(bridge, function, typed, args, self.limits.fuel_start)
    }

    fn bounded<P: WasmParams, R: WasmResults>(
        &mut self,
        bridge: &mut dyn Bridge,
        function: &'static str,
        typed: &TypedFunc<P, R>,
        args: P,
        fuel: u64,
    ) -> Result<R, Stopped> {
        prepare(&mut self.store, fuel, &self.limits, Facts::default());
        let called = lend(bridge, || typed.call(&mut self.store, args));
        called.map_err(|error| self.stop(bridge, function, &error))
    }

    #[inline]
    fn finish(
        &mut self,
        bridge: &mut dyn Bridge,
        function: &'static str,
        called: wasmtime::Result<i32>,
    ) -> Result<Returned, Stopped> {
        match called {
            Ok(code) => {
                let left = self.store.get_fuel().unwrap_or(0);
                Ok(Returned { code, fuel: self.limits.fuel.saturating_sub(left) })
            }
            Err(error) => Err(self.stop(bridge, function, &error)),
        }
    }

    #[cold]
    fn stop(&mut self, bridge: &mut dyn Bridge, function: &'static str, error: &wasmtime::Error) -> Stopped {
        self.undo(bridge);
        Stopped { reason: why(&self.store, error), function }
    }
}

fn find<P: WasmParams, R: WasmResults>(
    instance: &wasmtime::Instance,
    store: &mut Store<Guest>,
    name: &str,
    has: bool,
) -> Option<TypedFunc<P, R>> {
    if has { instance.get_typed_func(store, name).ok() } else { None }
}

/// Gives a store what a call may use.
#[inline]
pub(crate) fn prepare(store: &mut Store<Guest>, fuel: u64, limits: &Limits, facts: Facts) {
    // Only an engine without fuel refuses it, and ours has some.
    _ = store.set_fuel(fuel);
    store.set_epoch_deadline(limits.epochs_max);
    store.data_mut().begin(limits, facts);
}

/// Returns why a call was stopped.
#[cold]
pub(crate) fn why(store: &Store<Guest>, error: &wasmtime::Error) -> Reason {
    if let Some(reason) = store.data().stopped {
        return reason;
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Reason::Fuel,
        Some(Trap::Interrupt) => Reason::Epoch,
        Some(Trap::StackOverflow) => Reason::Stack,
        _ => Reason::Trap,
    }
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("memory", &self.memory().len()).finish_non_exhaustive()
    }
}

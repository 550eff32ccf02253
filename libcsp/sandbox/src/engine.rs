//! The engine of a process: its bounds, how code is made and stopped, and the memory that modules may have
//! together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use wasmtime::{Config, InstanceAllocationStrategy, Linker, OptLevel, PoolingAllocationConfig};

use crate::guest::Guest;
use crate::module::{ModuleError, one_line};

/// Compiles a module of an engine's [kind](Limits::kind) where a failure of the compiler harms nobody, in a
/// process of its own, and reports why the module must not be compiled here. An engine with one compiles
/// nothing that it has not tried.
pub type Trial = dyn Fn(&str, &[u8]) -> Result<(), String> + Send + Sync;

/// What keeps the code of modules in their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Confinement {
    /// Comparisons in the code. No signal handler is installed. A processor that mispredicts a comparison
    /// reads beyond the memory, and leaves traces of what it read in its caches (Spectre, variant 1).
    #[default]
    Compared,
    /// Pages: every address that an access can name lies in address space that is the instance's alone, and
    /// faults where its memory ends; indices of tables are masked. Installs handlers for SIGSEGV, SIGBUS,
    /// SIGILL and SIGFPE, which pass on what is not a fault of a module's code to the handlers before them.
    Guarded,
}

/// Bounds of modules and their instances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a module. Longer ones are refused unread.
    pub module_len_max: usize,
    /// Instances at a time, of all modules. A hot swap needs one more than run.
    pub instances_max: u32,
    /// Bytes of memory of an instance.
    pub memory_max: u64,
    /// Bytes of memory of all instances.
    pub memory_total_max: u64,
    /// Elements of an instance's tables.
    pub table_max: u32,
    /// Bytes of stack of a call.
    pub stack_max: usize,
    /// Bytes of the state block of a handler.
    pub state_max: u32,
    /// Length in bytes of the longest message that a handler may make.
    pub new_len_max: u32,
    /// Fuel of a call with a message, of the timer, and of each half of handing state over: about an
    /// instruction each.
    pub fuel: u64,
    /// Fuel of the start of an instance, and of its configuration. A restart happens between two messages, so
    /// that this is short too.
    pub fuel_start: u64,
    /// Messages that a call may emit.
    pub emits_max: u32,
    /// Bytes that imports copy for a call. An import counts for at least 256.
    pub copied_max: u64,
    /// Epochs that a call may take: at each of [`Engine::tick`]'s calls one ends. Fuel ends a call within a
    /// millisecond of the processor; this is for what fuel does not see, and far longer than a thread may
    /// wait for its processor.
    pub epochs_max: u64,
    /// What keeps their code in their memory.
    pub confinement: Confinement,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            module_len_max: 1 << 20,
            instances_max: 64,
            memory_max: 4 << 20,
            memory_total_max: 128 << 20,
            table_max: 4096,
            stack_max: 64 << 10,
            state_max: 64 << 10,
            new_len_max: 1 << 20,
            fuel: 200_000,
            fuel_start: 1_000_000,
            emits_max: 256,
            copied_max: 4 << 20,
            epochs_max: 200,
            confinement: Confinement::Compared,
        }
    }
}

impl Limits {
    /// Returns what decides about the code of a module, for [`compiles`].
    #[must_use]
    pub fn kind(&self) -> String {
        let confinement = match self.confinement {
            Confinement::Compared => "compared",
            Confinement::Guarded => "guarded",
        };
        format!("{confinement} {} {} {}", self.memory_max, self.table_max, self.stack_max)
    }

    fn of_kind(kind: &str) -> Option<Self> {
        let mut words = kind.split(' ');
        let confinement = match words.next()? {
            "compared" => Confinement::Compared,
            "guarded" => Confinement::Guarded,
            _ => return None,
        };
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Limits {
            confinement,
            memory_max: number()?,
            table_max: number()?.try_into().ok()?,
            stack_max: number()?.try_into().ok()?,
            instances_max: 1,
            ..Limits::default()
        })
    }
}

/// Compiles a module as engines of this [kind](Limits::kind) do, and drops the code. Whatever the compiler
/// does with the module happens here first: called in the process of a [`Trial`].
///
/// # Errors
/// The module is not valid, or the kind is unknown; contains how.
pub fn compiles(kind: &str, bytes: &[u8]) -> Result<(), String> {
    let limits = Limits::of_kind(kind).ok_or_else(|| format!("`{kind}` is no kind of engine"))?;
    let engine = wasmtime::Engine::new(&config(&limits));
    let engine = engine.map_err(|error| ModuleError::Engine(one_line(&error)).to_string())?;
    let code = engine.precompile_module(bytes);
    code.map(drop).map_err(|error| ModuleError::Invalid(one_line(&error)).to_string())
}

/// What instances of an engine use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Instances.
    pub instances: u64,
    /// Bytes of memory reserved for them.
    pub memory: u64,
}

/// Why an instance is not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AdmissionError {
    /// There are as many as there may be.
    #[error("there are {0} instances, as many as there may be")]
    Instances(u64),
    /// Together they would have more memory than they may.
    #[error("it needs {needed} bytes of memory, and {left} are left for modules")]
    Memory {
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
}

pub(crate) struct Shared {
    pub wasmtime: wasmtime::Engine,
    pub linker: Linker<Guest>,
    pub limits: Limits,
    trial: Option<Arc<Trial>>,
    instances: AtomicU64,
    memory: AtomicU64,
}

/// The engine of a process. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Makes an engine that compiles modules untried: for tests, and for modules of the caller's own.
    ///
    /// # Errors
    /// As [`with_trial`](Self::with_trial).
    pub fn new(limits: Limits) -> Result<Self, ModuleError> {
        Self::with_trial(limits, None)
    }

    /// Makes the engine. It reserves address space for all instances, and uses memory as they do.
    ///
    /// Unless memory is [guarded](Confinement::Guarded), it installs no signal handlers (decisions 0049,
    /// 0063).
    ///
    /// # Errors
    /// When the machine has no room for the address space, or cannot run compiled code.
    pub fn with_trial(limits: Limits, trial: Option<Arc<Trial>>) -> Result<Self, ModuleError> {
        let setup = |error: wasmtime::Error| ModuleError::Engine(format!("{error:#}"));
        let wasmtime = wasmtime::Engine::new(&config(&limits)).map_err(setup)?;
        let mut linker = Linker::new(&wasmtime);
        crate::guest::define(&mut linker).map_err(setup)?;
        let (instances, memory) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Engine { shared: Arc::new(Shared { wasmtime, linker, limits, trial, instances, memory }) })
    }

    /// Returns the bounds.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Ends an epoch: calls that have run through [`Limits::epochs_max`] of them are stopped. A thread of the
    /// embedder calls this at a steady pace, such as every 10 ms. Fuel alone bounds every call already;
    /// epochs bound its time on a machine that is slower than the fuel was chosen for.
    pub fn tick(&self) {
        self.shared.wasmtime.increment_epoch();
    }

    /// Returns what instances use.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            instances: self.shared.instances.load(Ordering::Relaxed),
            memory: self.shared.memory.load(Ordering::Relaxed),
        }
    }

    /// Tries a module, if the engine has a trial.
    pub(crate) fn try_compile(&self, bytes: &[u8]) -> Result<(), ModuleError> {
        let tried = self.shared.trial.as_ref().map(|trial| trial(&self.shared.limits.kind(), bytes));
        tried.unwrap_or(Ok(())).map_err(ModuleError::Trial)
    }

    /// Reserves an instance with its memory.
    pub(crate) fn admit(&self, needed: u64) -> Result<Reservation, AdmissionError> {
        let Limits { instances_max, memory_total_max, .. } = self.shared.limits;
        let most = u64::from(instances_max);
        let add = |by: u64, most: u64| move |used: u64| used.checked_add(by).filter(|sum| *sum <= most);
        let relaxed = Ordering::Relaxed;
        let taken = self.shared.instances.fetch_update(relaxed, relaxed, add(1, most));
        taken.map_err(AdmissionError::Instances)?;
        let taken = self.shared.memory.fetch_update(relaxed, relaxed, add(needed, memory_total_max));
        if let Err(used) = taken {
            self.shared.instances.fetch_sub(1, relaxed);
            return Err(AdmissionError::Memory { needed, left: memory_total_max.saturating_sub(used) });
        }
        Ok(Reservation { shared: self.shared.clone(), memory: needed })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// Room for an instance.
pub(crate) struct Reservation {
    shared: Arc<Shared>,
    memory: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shared.instances.fetch_sub(1, Ordering::Relaxed);
        self.shared.memory.fetch_sub(self.memory, Ordering::Relaxed);
    }
}

fn config(limits: &Limits) -> Config {
    let mut config = Config::new();
    config.consume_fuel(true).epoch_interruption(true);
    config.max_wasm_stack(limits.stack_max);
    config.wasm_backtrace_max_frames(None);
    config.cranelift_opt_level(OptLevel::Speed);
    // The same message gives the same result on every machine, in simulation too.
    config.cranelift_nan_canonicalization(true).wasm_relaxed_simd(false);
    config.wasm_memory64(false).wasm_multi_memory(false).wasm_tail_call(false);
    match limits.confinement {
        Confinement::Compared => {
            config.signals_based_traps(false);
            // Without pages that fault, a memory needs no more address space than it may have bytes.
            config.memory_reservation(limits.memory_max).memory_guard_size(0);
        }
        Confinement::Guarded => {
            config.signals_based_traps(true);
            config.memory_reservation(ADDRESSES).memory_guard_size(GUARD);
            config.guard_before_linear_memory(true);
        }
    }
    config.memory_reservation_for_growth(0);
    config.memory_may_move(false);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(limits.instances_max)
        .total_memories(limits.instances_max)
        .total_tables(limits.instances_max.saturating_mul(TABLES_MAX))
        .max_memories_per_module(1)
        .max_tables_per_module(TABLES_MAX)
        .table_elements(limits.table_max as usize)
        .max_memory_size(usize::try_from(limits.memory_max).unwrap_or(usize::MAX))
        .max_core_instance_size(INSTANCE_LEN_MAX);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// What a 32-bit address can name, in bytes.
const ADDRESSES: u64 = 1 << 32;
/// Bytes behind it that fault: constant offsets of accesses are added to the address. An access with a longer
/// one is compared, and its address is masked.
const GUARD: u64 = 32 << 20;
/// Tables of a module.
pub(crate) const TABLES_MAX: u32 = 2;
/// Bytes of an instance beside its memory and tables: its globals and functions. Modules that need more are
/// refused.
const INSTANCE_LEN_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_compiles_nothing_that_its_trial_refuses() {
        let trial = |kind: &str, bytes: &[u8]| {
            compiles(kind, bytes)?;
            if bytes.len() > 8 { Err("too long for the trial".to_owned()) } else { Ok(()) }
        };
        for confinement in [Confinement::Compared, Confinement::Guarded] {
            let limits = Limits { confinement, instances_max: 2, ..Limits::default() };
            assert_eq!(Limits::of_kind(&limits.kind()).map(|kind| kind.kind()), Some(limits.kind()));
            let engine = Engine::with_trial(limits, Some(Arc::new(trial))).unwrap();
            let refused = |bytes: &[u8]| crate::Module::compile(&engine, bytes).unwrap_err();
            let error = refused(b"\0asm\x01\0\0\0\0\x02\x01a");
            assert_eq!(error, ModuleError::Trial("too long for the trial".to_owned()));
            assert_eq!(
                refused(b"\0asm\x01\0\0\0"),
                ModuleError::Missing("csp_abi"),
                "compiled after its trial"
            );
            assert!(refused(b"\0asm").to_string().starts_with("the module is not valid: "));
        }
        assert!(compiles("compared", b"").unwrap_err().ends_with("is no kind of engine"));
    }

    #[test]
    fn an_engine_admits_up_to_its_bounds_and_room_comes_back() {
        let limits = Limits { instances_max: 2, memory_total_max: 10 << 20, ..Limits::default() };
        let engine = Engine::new(limits).unwrap();
        let first = engine.admit(6 << 20).unwrap();
        let short = AdmissionError::Memory { needed: 6 << 20, left: 4 << 20 };
        assert_eq!(engine.admit(6 << 20).err(), Some(short));
        let second = engine.admit(4 << 20).unwrap();
        assert_eq!(engine.admit(0).err(), Some(AdmissionError::Instances(2)));
        assert_eq!(engine.usage(), Usage { instances: 2, memory: 10 << 20 });
        drop((first, second));
        assert_eq!(engine.usage(), Usage::default());
    }
}

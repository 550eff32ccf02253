//! A specialised module that runs: one instance with one page of memory, used by one operator.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csp_operators::{Program, Verdict};
use wasmtime::{Config, Engine, Instance, Memory, Module, OptLevel, Store, TypedFunc};

use crate::{ACCEPTED, DONE, HALF, REFUSED, Specialised};

/// A program of WebAssembly.
pub struct Row {
    store: Store<()>,
    memory: Memory,
    row: TypedFunc<(), i32>,
    reads: Box<[(usize, usize)]>,
    writes: Option<usize>,
    /// What counts the programs that there are.
    count: Arc<AtomicUsize>,
}

/// The engine for modules that the host has made itself: they have no loops, so that neither fuel nor epochs
/// are needed. It installs no signal handlers (decision 0049); bounds are checked when the code is compiled,
/// since all addresses are constant.
pub(super) fn engine() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config.signals_based_traps(false).consume_fuel(false).epoch_interruption(false);
    config.cranelift_opt_level(OptLevel::Speed).wasm_backtrace_max_frames(None);
    config.memory_reservation(1 << 16).memory_guard_size(0).memory_reservation_for_growth(0);
    config.memory_may_move(false);
    Engine::new(&config)
}

impl Row {
    /// Starts an instance of a module.
    pub(super) fn new(
        module: &Module,
        made: &Specialised,
        count: Arc<AtomicUsize>,
    ) -> wasmtime::Result<Self> {
        count.fetch_add(1, Ordering::Relaxed);
        let mut counted = Counted(Some(count));
        let mut store = Store::new(module.engine(), ());
        let instance = Instance::new(&mut store, module, &[])?;
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or_else(|| wasmtime::Error::msg("the module has no memory"))?;
        let row = instance.get_typed_func(&mut store, "row")?;
        let (reads, writes) = (made.reads.clone().into(), made.writes);
        let count = counted.0.take().unwrap_or_default();
        Ok(Row { store, memory, row, reads, writes, count })
    }
}

/// One more program, until it is given to that.
struct Counted(Option<Arc<AtomicUsize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Program for Row {
    #[inline]
    fn run(&mut self, row: &[u8], out: Option<&mut [u8]>) -> Verdict {
        let memory = self.memory.data_mut(&mut self.store);
        for &(begin, end) in &self.reads {
            let (Some(to), Some(from)) = (memory.get_mut(begin..end), row.get(begin..end)) else {
                return Verdict::Unsaid;
            };
            to.copy_from_slice(from);
        }
        match self.row.call(&mut self.store, ()) {
            Ok(REFUSED) => Verdict::Refused,
            Ok(ACCEPTED) => Verdict::Accepted,
            Ok(DONE) => {
                let (Some(len), Some(out)) = (self.writes, out) else { return Verdict::Accepted };
                let written = self.memory.data(&self.store).get(HALF..HALF + len);
                let (Some(written), Some(out)) = (written, out.get_mut(..len)) else {
                    return Verdict::Accepted;
                };
                out.copy_from_slice(written);
                Verdict::Written(len)
            }
            // It cannot trap; if it did, the plan would have the row.
            Ok(_) | Err(_) => Verdict::Unsaid,
        }
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row")
            .field("reads", &self.reads)
            .field("writes", &self.writes)
            .finish_non_exhaustive()
    }
}

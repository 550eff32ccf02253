//! Clocks and processors.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the processor time that this process has used, all threads, user and system, in nanoseconds.
pub fn processor_time() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// Returns monotonic time in nanoseconds.
pub fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Binds this process to one processor, if one is given. To be called before threads are started.
pub fn stay_on(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    anyhow::ensure!(cpu < CpuSet::MAX_CPU, "there is no processor {cpu}");
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot stay on processor {cpu}"))
}

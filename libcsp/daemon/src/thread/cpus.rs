//! On which processors data threads run.

use std::sync::Arc;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::DaemonError;

/// The processors of data threads: thread n runs on the n-th, beginning again after the last. None: wherever
/// the scheduler puts it.
#[derive(Clone, Debug, Default)]
pub struct Cpus(Arc<[u16]>);

impl Cpus {
    /// Takes the processors of the setting `cpus`.
    ///
    /// # Errors
    /// One of them is not among those on which this process may run.
    pub fn new(numbers: &[u16]) -> Result<Self, DaemonError> {
        let allowed = sched_getaffinity(None).map_err(std::io::Error::from)?;
        let is_allowed = |number: u16| usize::from(number) < CpuSet::MAX_CPU && allowed.is_set(number.into());
        match numbers.iter().find(|number| !is_allowed(**number)) {
            None => Ok(Cpus(numbers.into())),
            Some(number) => {
                let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number)).collect();
                Err(DaemonError::Unavailable(format!(
                    "cpus: this process may not run on processor {number}; allowed are {all:?}"
                )))
            }
        }
    }

    /// Returns the processor of thread `number`.
    pub(super) fn of(&self, number: u8) -> Option<u16> {
        self.0.get(usize::from(number) % self.0.len().max(1)).copied()
    }
}

/// Has the calling thread run on one processor. If that is refused, it runs where the scheduler puts it, and
/// the log says so.
pub(super) fn pin(cpu: u16) {
    let mut set = CpuSet::new();
    set.set(cpu.into());
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a data thread is not kept to its processor");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_processors_in_turn() {
        let cpus = Cpus([4, 6].into());
        assert_eq!([0, 1, 2, 3].map(|number| cpus.of(number)), [Some(4), Some(6), Some(4), Some(6)]);
        assert_eq!(Cpus::default().of(3), None);
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused() {
        let refused = |number: u16| Cpus::new(&[number]).unwrap_err().to_string();
        assert!(refused(1023).starts_with("cpus: this process may not run on processor 1023; allowed are ["));
        assert!(refused(u16::MAX).contains("65535"));
        assert!(Cpus::new(&[]).is_ok());
    }

    #[test]
    fn a_thread_runs_where_it_was_put() {
        let allowed = sched_getaffinity(None).unwrap();
        let last = (0..CpuSet::MAX_CPU).rfind(|number| allowed.is_set(*number)).unwrap();
        let pinned = std::thread::spawn(move || {
            pin(last as u16);
            sched_getaffinity(None).unwrap()
        });
        let pinned = pinned.join().unwrap();
        assert_eq!((pinned.count(), pinned.is_set(last)), (1, true));
    }
}

//! Threads that workers of several daemons of one process share: worker n of each runs in thread n.
//!
//! Between two workers of one thread nothing sleeps: what one has sent, the other finds in the same turn of
//! the thread, without a wake-up and without another processor.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use csp_types::spin::SpinSetting;

use super::seat::Seated;
use super::{Cpus, DataThread, DataWorker, spawn};

/// In which threads a daemon's workers run.
#[derive(Clone, Debug)]
pub enum Threads {
    /// Each in one of its own.
    Own(Cpus),
    /// Each in one that it shares with the workers of the same number of other daemons.
    Shared(SharedThreads),
}

impl Threads {
    /// Starts worker `number`; as [`DataThread::start`]. In a shared thread it takes its first turn when the
    /// last of those that share the thread is started.
    pub fn start<W>(
        &self,
        (name, number): (&str, u8),
        worker: W,
        questions_max: usize,
        spin: SpinSetting,
    ) -> io::Result<DataThread<W::Question, W::Published>>
    where
        W: DataWorker + Send + 'static,
    {
        match self {
            Threads::Own(cpus) => {
                let (mut handle, seat) = DataThread::seat(worker, questions_max)?;
                let name = format!("{name}-{number}");
                handle.thread = Some(spawn(name, cpus.of(number), vec![seat], spin)?);
                Ok(handle)
            }
            Threads::Shared(shared) => {
                let (handle, seat) = DataThread::seat(worker, questions_max)?;
                shared.add(number, seat, (name, spin))?;
                Ok(handle)
            }
        }
    }
}

/// The threads of a process in which several daemons run.
#[derive(Clone, Debug)]
pub struct SharedThreads {
    /// The number of workers of each daemon.
    workers: Arc<[u8]>,
    cpus: Cpus,
    waiting: Arc<Mutex<Waiting>>,
}

/// Workers whose thread is not complete, by number.
#[derive(Default)]
struct Waiting(Vec<(u8, Vec<Box<dyn Seated>>)>);

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(number, seats)| (number, seats.len()))).finish()
    }
}

impl SharedThreads {
    /// Threads for daemons with these numbers of workers.
    pub fn new(workers: &[u8], cpus: Cpus) -> Self {
        SharedThreads { workers: workers.into(), cpus, waiting: Arc::default() }
    }

    fn add(&self, number: u8, seat: Box<dyn Seated>, (name, spin): (&str, SpinSetting)) -> io::Result<()> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let at = waiting.0.iter().position(|(of, _)| *of == number).unwrap_or_else(|| {
            waiting.0.push((number, Vec::new()));
            waiting.0.len() - 1
        });
        let Some((_, seats)) = waiting.0.get_mut(at) else { return Ok(()) };
        seats.push(seat);
        let sharing = self.workers.iter().filter(|workers| **workers > number).count();
        if seats.len() >= sharing {
            let (_, seats) = waiting.0.swap_remove(at);
            // The workers end one by one; the thread ends with the last.
            drop(spawn(format!("{name}-{number}"), self.cpus.of(number), seats, spin)?);
        }
        Ok(())
    }
}

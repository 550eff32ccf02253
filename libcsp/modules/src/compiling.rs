//! Compiling in the background: after the data workers, and one module or operator at a time in a process, so
//! that the owner of the code gets no more than what the workers leave of one processor.

use std::sync::{Mutex, PoisonError};

use csp_daemon::background::lower_priority;

/// Held while something is compiled. Control threads do not take it: a thread of low priority would keep them
/// waiting.
pub static ALONE: Mutex<()> = Mutex::new(());

/// Runs `work` while nothing else is compiled. The calling thread has a low priority.
pub fn alone<T>(work: impl FnOnce() -> T) -> T {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    work()
}

/// Runs `work` [`alone`] on a thread of low priority, and waits for it.
///
/// # Errors
/// There is no thread, or `work` has panicked.
pub fn in_background<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let run = || {
            lower_priority();
            alone(work)
        };
        let thread = std::thread::Builder::new().name("compiler".to_owned()).spawn_scoped(scope, run);
        let thread = thread.map_err(|error| format!("there is no thread to compile in: {error}"))?;
        thread.join().map_err(|_| "the compiler ended".to_owned())
    })
}

//! The threads that make the steps of TLS handshakes that take long, of all workers, in the order in which
//! they come.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::Receiver;
use csp_daemon::background::give_way_to_workers;
use csp_telemetry::{MailboxSender, without_abort};

use super::data_thread::Question;
use crate::Signers;
use crate::core::HandshakeStep;

/// Largest number of threads that are chosen when the configuration names none.
const CHOSEN_MAX: usize = 8;

type Steps = Receiver<(u8, HandshakeStep)>;

/// Returns the number of threads: what the configuration says, or one for each processor that no data worker
/// needs, and one at least.
#[must_use]
pub fn threads(configured: Option<u8>, workers: u8) -> usize {
    let left = || {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.saturating_sub(workers.into()).clamp(1, CHOSEN_MAX)
    };
    configured.map_or_else(left, usize::from)
}

/// Returns where steps are to be sent, and where the threads take them from.
#[must_use]
pub fn queue() -> (Signers, Steps) {
    crossbeam_channel::unbounded() // no worker has more than its bound on the way
}

/// Starts the threads. They end when the workers do.
///
/// # Errors
/// Those of starting a thread.
pub fn serve(threads: usize, steps: &Steps, workers: &[MailboxSender<Question>]) -> std::io::Result<()> {
    for number in 0..threads {
        let (steps, workers) = (steps.clone(), workers.to_vec());
        let run = move || {
            give_way_to_workers();
            for (worker, step) in steps {
                if let Some(mailbox) = workers.get(usize::from(worker)) {
                    make(step, mailbox);
                }
            }
        };
        std::thread::Builder::new().name(format!("handshakes-{number}")).spawn(run)?;
    }
    Ok(())
}

/// Makes a step, and gives it back.
fn make(mut step: HandshakeStep, mailbox: &MailboxSender<Question>) {
    let made = without_abort(|| catch_unwind(AssertUnwindSafe(|| step.run())));
    if made.is_err() {
        step.fail();
    }
    let _ = mailbox.send_when_room(Question::HandshakeStep(Box::new(step))); // or the worker has ended
}

//! The thread that plans what clients ask for, of all workers, one request after the other: queries,
//! translations, formats.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use csp_daemon::background::{lower_priority, thread_time};
use csp_services::PlanJob;
use csp_telemetry::{MailboxError, MailboxSender, without_abort};

use super::data_thread::Question;

/// Between two tries to give a worker its plan while its mailbox is full, and how many there are. A worker
/// that has no room for so long answers its askers itself.
const PAUSE: Duration = Duration::from_millis(5);
const TRIES: usize = 1_000;

/// Starts the thread. It ends when the workers do.
///
/// # Errors
/// Those of starting a thread.
pub fn serve(jobs: Receiver<(u8, PlanJob)>, workers: Vec<MailboxSender<Question>>) -> std::io::Result<()> {
    let run = move || {
        lower_priority();
        for (worker, job) in jobs {
            if let Some(mailbox) = workers.get(usize::from(worker)) {
                plan(&job, mailbox);
            }
        }
    };
    std::thread::Builder::new().name("planner".to_owned()).spawn(run).map(drop)
}

fn plan(job: &PlanJob, mailbox: &MailboxSender<Question>) {
    let begun = thread_time();
    let planned = if job.is_wanted() {
        // A planner keeps nothing that a panic leaves half-way: it reads the policy's catalogue.
        let planned = without_abort(|| catch_unwind(AssertUnwindSafe(|| job.run())));
        planned.unwrap_or_else(|_| job.failed("the planner failed on the request"))
    } else {
        job.failed("its askers have gone")
    };
    let planned = planned.took(thread_time().saturating_sub(begun));
    for _ in 0..TRIES {
        match mailbox.send(Question::Planned(Box::new(planned.clone()))) {
            Err(MailboxError::Full) => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

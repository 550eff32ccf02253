//! Handlers that clients bring: an engine of their own, so that operators' handlers have theirs whatever
//! clients do, the modules that run, and the thread that makes handlers of them.
//!
//! A module is known by its SHA-256 for as long as a handler of it lives; nothing is written to the disk.
//! Bytes that are no module of a client's may be one that an operator has brought.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use csp_daemon::background::lower_priority;
use csp_daemon::trial::Trial;
use csp_messages::StageMaker;
use csp_modules::{Bounds, Epochs, Keep, Setup};
use csp_sandbox::{Confinement, Limits, Module, Sha256, Supplied};
use csp_services::{HandlerJob, MadeHandler};
use csp_telemetry::{MailboxError, MailboxSender, without_abort};

use super::running::Placed;
use super::{Modules, fields};
use crate::daemon::data_thread::Question;

/// Bounds of clients' modules. Their handlers keep them.
const RUNNING: Bounds = Bounds { modules_max: 128, bytes_max: 16 << 20, keep: Keep::Used };
/// Between two tries to give a worker its handler while its mailbox is full, and how many there are.
const PAUSE: Duration = Duration::from_millis(5);
const TRIES: usize = 1_000;

/// Most instances of clients' modules at a time: twice as many as a policy has places, because another
/// version starts while the former one runs.
const INSTANCES_MAX: u32 = 128;

/// What clients' modules run with.
pub(super) fn setup(limits: Limits, trial: Option<Trial>, epochs: Arc<Epochs>) -> Setup {
    // Channels' keys lie in this process.
    let limits = Limits { instances_max: INSTANCES_MAX, confinement: Confinement::Guarded, ..limits };
    Setup { limits, trial, epochs, bounds: RUNNING, folder: None }
}

impl Modules {
    /// Makes the handler that a client has brought: checks and compiles its module, starts it, and sets its
    /// parameters. Takes up to seconds.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    pub fn make_for_client(&self, job: &HandlerJob) -> Result<MadeHandler, String> {
        let module = self.client_module(job)?;
        let (reserved, most) = (module.memory_reserved(), job.bounds.memory_max);
        if reserved > most {
            return Err(format!(
                "the module may grow to {reserved} bytes of memory, and may have {most}: declare a maximum for its memory"
            ));
        }
        let made =
            Supplied::new(&module, fields(job.bounds.formats.as_ref()), job.bounds.on_stop, &job.parameters);
        let made = made.map_err(|error| error.to_string())?.with_fuel(job.bounds.fuel_max);
        let hash = module.sha256().to_string();
        let (made, shown) = Placed::new(made, self.over()?, [&job.channel, &job.name, &hash]);
        self.show(shown.brought(&job.by, &job.of, job.lease.as_secs()));
        // No two have the same key: each takes the place of the one before.
        let maker = StageMaker::once(&format!("{hash} {}", job.ticket), Box::new(made));
        Ok(MadeHandler { maker, module: hash })
    }

    fn client_module(&self, job: &HandlerJob) -> Result<Arc<Module>, String> {
        let hash = match (&job.module, &job.hash) {
            (Some(bytes), named) => {
                let found = Sha256::of(bytes).to_string();
                if named.as_ref().is_some_and(|named| *named != found) {
                    return Err(format!("the bytes have the SHA-256 {found}, not that of `module`"));
                }
                found
            }
            (None, Some(hash)) => hash.clone(),
            (None, None) => return Err("the request has no module".to_owned()),
        };
        let check = |len: usize| match job.bounds.module_len_max {
            most if len > most => Err(format!("the module has {len} bytes, and may have {most}")),
            _ => Ok(()),
        };
        if let Some(module) = self.clients.cached(&hash) {
            return check(module.len()).map(|()| module);
        }
        let bytes = match &job.module {
            Some(bytes) => Cow::Borrowed(&bytes[..]),
            None => Cow::Owned(self.bytes(&hash).ok_or_else(|| {
                format!("module {hash} is not here: bring its bytes, as a frame behind the request")
            })?),
        };
        check(bytes.len())?;
        self.clients.compile(&hash, &bytes)
    }

    /// Starts the thread that makes clients' handlers, one after the other and in the background of all
    /// workers. It ends when these do.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn serve_clients(
        self: &Arc<Self>,
        jobs: Receiver<(u8, HandlerJob)>,
        workers: Vec<MailboxSender<Question>>,
    ) -> std::io::Result<()> {
        let modules = self.clone();
        let run = move || {
            lower_priority();
            for (worker, job) in jobs {
                if !job.is_wanted() {
                    continue;
                }
                // A module that makes the compiler panic fails in its trial. This is for what differs here in
                // spite of it.
                let make = || catch_unwind(AssertUnwindSafe(|| modules.make_for_client(&job)));
                let made = without_abort(make).unwrap_or_else(|_| Err("the compiler ended".to_owned()));
                if let Some(mailbox) = workers.get(usize::from(worker)).filter(|_| job.is_wanted()) {
                    answer(mailbox, job.ticket, &made);
                }
            }
        };
        std::thread::Builder::new().name("handler-maker".to_owned()).spawn(run).map(drop)
    }
}

/// Gives a worker what was made for it. A worker that has no room for so long answers its asker itself.
fn answer(mailbox: &MailboxSender<Question>, ticket: u64, made: &Result<MadeHandler, String>) {
    for _ in 0..TRIES {
        match mailbox.send(Question::Made(ticket, made.clone())) {
            Err(MailboxError::Full) => std::thread::sleep(PAUSE),
            _ => return,
        }
    }
}

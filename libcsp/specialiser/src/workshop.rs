//! Where operators ask for code, and what makes it on a thread of the embedder.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use csp_operators::{Program, Request, Specialiser, StandingRef};
use csp_queries::Plan;
use wasmtime::{Engine, Module};

use crate::{NoEngine, Row, generate};

/// Programs of a process at a time. Each has a page of memory of 64 KiB.
pub const PROGRAMS_MAX: usize = 256;
/// Requests that wait to be compiled.
pub const WAITING_MAX: usize = 64;

/// Modules that are kept compiled.
const COMPILED_MAX: usize = 32;

/// Takes requests. Any thread asks; [`Work`] answers.
#[derive(Debug)]
pub struct Workshop {
    queue: SyncSender<Request>,
    standings: Mutex<Vec<(String, StandingRef)>>,
    nanos: fn() -> u64,
}

/// How an operator stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Standing {
    /// Of what it is: the name of [`Workshop::named`] and the message.
    pub name: String,
    /// Which version runs, and why.
    pub text: String,
    /// Messages that the specialised version has processed, but those of trials.
    pub specialised_total: u64,
}

/// Asks in a name, so that lists show whose operator it is.
#[derive(Debug)]
struct Named {
    name: String,
    workshop: Arc<Workshop>,
}

/// Makes programs.
pub struct Work {
    queue: Receiver<Request>,
    engine: Engine,
    programs: Arc<AtomicUsize>,
    /// Modules that were compiled last: each worker of a proxy asks for the same ones.
    compiled: RefCell<VecDeque<(Vec<u8>, Module)>>,
}

impl Workshop {
    /// Makes both ends. `nanos` is the embedder's monotonic clock.
    ///
    /// # Errors
    /// When compiled code cannot run here.
    pub fn new(nanos: fn() -> u64) -> Result<(Arc<Self>, Work), NoEngine> {
        let engine = crate::row::engine().map_err(|error| NoEngine(format!("{error:#}")))?;
        let (queue, requests) = sync_channel(WAITING_MAX);
        let workshop = Workshop { queue, standings: Mutex::default(), nanos };
        Ok((
            Arc::new(workshop),
            Work { queue: requests, engine, programs: Arc::default(), compiled: RefCell::default() },
        ))
    }

    /// Returns what asks in a name, such as that of a channel.
    #[must_use]
    pub fn named(self: &Arc<Self>, name: &str) -> Arc<dyn Specialiser> {
        Arc::new(Named { name: name.to_owned(), workshop: self.clone() })
    }

    /// Returns how each operator stands that has asked and is still there.
    #[must_use]
    pub fn standings(&self) -> Vec<Standing> {
        let mut all = self.standings.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, standing)| standing.text().is_some());
        let standing = |(name, standing): &(String, StandingRef)| {
            let (text, specialised_total) = (standing.text()?, standing.specialised()?);
            Some(Standing { name: name.clone(), text, specialised_total })
        };
        all.iter().filter_map(standing).collect()
    }

    fn take(&self, name: String, request: Request) {
        let mut standings = self.standings.lock().unwrap_or_else(PoisonError::into_inner);
        if standings.len() >= 2 * PROGRAMS_MAX {
            standings.retain(|(_, standing)| standing.text().is_some());
        }
        standings.push((name, request.standing()));
        drop(standings);
        if let Err(TrySendError::Full(request) | TrySendError::Disconnected(request)) =
            self.queue.try_send(request)
        {
            request
                .answer(Err(format!("{WAITING_MAX} operators wait for their specialised versions already")));
        }
    }
}

impl Specialiser for Named {
    fn ask(&self, request: Request) {
        let message = request.plan.sources.first().map_or("", |source| &*source.message);
        let what = if request.condition_only { "condition" } else { "row" };
        self.workshop.take(format!("{}: {message}, {what}", self.name), request);
    }

    fn nanos(&self) -> u64 {
        (self.workshop.nanos)()
    }
}

impl Work {
    /// Makes programs until nobody can ask any more, each while it holds `alone`. The calling thread does
    /// nothing else.
    pub fn run(self, alone: &Mutex<()>) {
        while let Ok(request) = self.queue.recv() {
            let _alone = alone.lock().unwrap_or_else(PoisonError::into_inner);
            self.make(request);
        }
    }

    /// Makes what is asked for at present.
    pub fn run_pending(&self) {
        while let Ok(request) = self.queue.try_recv() {
            self.make(request);
        }
    }

    fn make(&self, request: Request) {
        // Operators that were made to check a policy are gone by now.
        if request.is_wanted() {
            // Plans come from clients' queries, too. Neither the compiler nor the plan keeps anything that a
            // panic leaves half-way.
            let make = AssertUnwindSafe(|| self.program(&request.plan, request.condition_only));
            let answer = catch_unwind(make).unwrap_or_else(|_| Err("the compiler ended".to_owned()));
            request.answer(answer);
        }
    }

    /// Makes the program of a plan, or only of its condition. Takes milliseconds.
    ///
    /// # Errors
    /// Why there is none.
    pub fn program(&self, plan: &Plan, condition_only: bool) -> Result<Box<dyn Program>, String> {
        let made = generate(plan, condition_only).map_err(|declined| declined.to_string())?;
        if self.programs.load(Ordering::Relaxed) >= PROGRAMS_MAX {
            return Err(format!("there are {PROGRAMS_MAX} specialised operators, as many as there may be"));
        }
        let row =
            self.compiled(&made.wasm).and_then(|module| Row::new(&module, &made, self.programs.clone()));
        row.map(|row| Box::new(row) as Box<dyn Program>)
            .map_err(|error| format!("{error:#}").replace('\n', " "))
    }

    fn compiled(&self, wasm: &[u8]) -> wasmtime::Result<Module> {
        let mut compiled = self.compiled.borrow_mut();
        if let Some((_, module)) = compiled.iter().find(|(known, _)| known == wasm) {
            return Ok(module.clone());
        }
        let module = Module::from_binary(&self.engine, wasm)?;
        compiled.truncate(COMPILED_MAX - 1);
        compiled.push_front((wasm.to_vec(), module.clone()));
        Ok(module)
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("programs", &self.programs).finish_non_exhaustive()
    }
}

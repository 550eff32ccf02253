//! The Handler Manager: the known handlers, how each is made, and the costs of all stages of a kind.

use std::sync::{Arc, Mutex, PoisonError};

use csp_handlers::{Handler, Needs, Profile, Usage, builtin};
use csp_types::options::OnStop;
use thiserror::Error;

/// Most handlers of a worker.
pub const HANDLERS_MAX: usize = 256;

/// Makes a handler for one stage.
pub type MakeHandler = Box<dyn Fn() -> Box<dyn Handler> + Send>;

/// An object that a context elsewhere may ask for.
#[derive(Clone, PartialEq, Eq)]
pub struct StageObject {
    /// Their SHA-256.
    pub hash: [u8; 32],
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

impl std::fmt::Debug for StageObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StageObject").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// What a context elsewhere needs to make a stage's handler, beside its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageSupply {
    /// The module.
    pub module: StageObject,
    /// The formats of the stage's messages, if the handler needs them.
    pub formats: Option<StageObject>,
    /// Action after the module was stopped.
    pub on_stop: OnStop,
}

/// Makes a stand-in for a handler that runs elsewhere.
type Describe = Arc<dyn Fn() -> Option<Box<dyn Handler>> + Send + Sync>;

/// Makes the handlers of a stage that need more than their name: the formats of a channel, the plan of a
/// query. Makers with equal keys make equal handlers.
#[derive(Clone)]
pub struct StageMaker {
    key: Arc<str>,
    make: Arc<dyn Fn() -> Option<Box<dyn Handler>> + Send + Sync>,
    /// Made before they are needed. The lock is held for no longer than a push or a pop.
    ready: Arc<Mutex<Vec<Box<dyn Handler>>>>,
    /// For contexts elsewhere; `None`: only the worker's own contexts run the handler.
    elsewhere: Option<(StageSupply, Describe)>,
}

impl StageMaker {
    /// A maker; `make` returns `None` if there is no such handler.
    pub fn new(key: &str, make: impl Fn() -> Option<Box<dyn Handler>> + Send + Sync + 'static) -> Self {
        StageMaker { key: key.into(), make: Arc::new(make), ready: Arc::default(), elsewhere: None }
    }

    /// Adds what contexts elsewhere need to run the handler, too. `describe` makes the handler's stand-in in
    /// the worker: a path is checked against it, and the other program's reports are recorded in it.
    #[must_use]
    pub fn elsewhere(
        self,
        supply: StageSupply,
        describe: impl Fn() -> Option<Box<dyn Handler>> + Send + Sync + 'static,
    ) -> Self {
        StageMaker { elsewhere: Some((supply, Arc::new(describe))), ..self }
    }

    /// Returns what a context elsewhere needs to make the handler; `None`: only the worker's own contexts run
    /// it.
    pub fn supply(&self) -> Option<&StageSupply> {
        self.elsewhere.as_ref().map(|(supply, _)| supply)
    }

    /// Makes the stand-in for a handler that runs elsewhere.
    pub(super) fn describe(&self) -> Option<(Box<dyn Handler>, Needs)> {
        let handler = (self.elsewhere.as_ref()?.1)()?;
        let needs = handler.needs();
        Some((handler, needs))
    }

    /// Makes this handler once: for handlers that cannot be made in a worker, and are made before on another
    /// thread.
    pub fn once(key: &str, handler: Box<dyn Handler>) -> Self {
        StageMaker { ready: Arc::new(Mutex::new(vec![handler])), ..StageMaker::new(key, || None) }
    }

    /// Makes up to `count` handlers on the calling thread, for the next calls of [`make`](Self::make). Stops
    /// at the first one that cannot be made.
    pub fn prepare(&self, count: usize) {
        for handler in std::iter::from_fn(|| (self.make)()).take(count) {
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).push(handler);
        }
    }

    /// Drops prepared handlers that were not used, on the calling thread.
    pub fn discard(&self) {
        drop(std::mem::take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Returns a handler that was prepared, else makes one; `None` if there is no such handler.
    pub fn make(&self) -> Option<(Box<dyn Handler>, Needs)> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let handler = match ready {
            Some(handler) => handler,
            None => (self.make)()?,
        };
        let needs = handler.needs();
        Some((handler, needs))
    }
}

impl PartialEq for StageMaker {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for StageMaker {}

impl std::fmt::Debug for StageMaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StageMaker").field("key", &self.key).finish_non_exhaustive()
    }
}

struct Stored {
    name: String,
    /// `None`: only stages with a maker of their own have it.
    make: Option<MakeHandler>,
    /// Costs of stages of ended paths.
    past: Profile,
    past_usage: Usage,
    stages: u32,
    state_refused: u64,
}

/// The handlers of a worker.
pub struct HandlerManager {
    handlers: Vec<Stored>,
}

/// A handler of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerStatus {
    /// Its name.
    pub name: String,
    /// Stages that it serves.
    pub stages: u32,
    /// All of its calls.
    pub profile: Profile,
    /// What all of them have used; memory is that of present stages.
    pub usage: Usage,
    /// Stages that have refused the state of the stage that they replaced.
    pub state_refused: u64,
}

/// Why a handler is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeployError {
    /// There is a handler of this name.
    #[error("there is a handler of this name")]
    Exists,
    /// The worker has as many handlers as it may have.
    #[error("the worker has as many handlers as it may have")]
    TooMany,
}

impl Default for HandlerManager {
    /// The built-in handlers.
    fn default() -> Self {
        let mut manager = HandlerManager { handlers: Vec::new() };
        for name in builtin::NAMES {
            let make = move || builtin::make(name).unwrap_or_else(|| Box::new(builtin::Forward));
            manager.add(name, Some(Box::new(make)));
        }
        manager
    }
}

impl HandlerManager {
    fn add(&mut self, name: &str, make: Option<MakeHandler>) {
        let (past, past_usage) = (Profile::default(), Usage::default());
        self.handlers.push(Stored {
            name: name.to_owned(),
            make,
            past,
            past_usage,
            stages: 0,
            state_refused: 0,
        });
    }

    /// Stores a handler, which paths can then name.
    ///
    /// # Errors
    /// When there is one of this name, or there are too many.
    pub fn deploy(&mut self, name: &str, make: MakeHandler) -> Result<(), DeployError> {
        if self.find(name).is_some() {
            return Err(DeployError::Exists);
        }
        if self.handlers.len() >= HANDLERS_MAX {
            return Err(DeployError::TooMany);
        }
        self.add(name, Some(make));
        Ok(())
    }

    /// Records the name of a handler that stages make by themselves. Names beyond the bound are not recorded.
    pub(super) fn know(&mut self, name: &str) {
        if self.find(name).is_none() && self.handlers.len() < HANDLERS_MAX {
            self.add(name, None);
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.handlers.iter().position(|stored| stored.name == name)
    }

    /// Returns the names of all handlers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.handlers.iter().map(|stored| stored.name.as_str())
    }

    /// Makes a handler for a stage.
    pub(super) fn make(&self, number: usize) -> Option<(Box<dyn Handler>, Needs)> {
        let handler = (self.handlers.get(number)?.make.as_ref()?)();
        let needs = handler.needs();
        Some((handler, needs))
    }

    /// Records that a handler serves one more stage.
    pub(super) fn placed(&mut self, number: usize) {
        if let Some(stored) = self.handlers.get_mut(number) {
            stored.stages += 1;
        }
    }

    /// Records that a stage has refused the state of the stage that it replaces.
    pub(super) fn refused_state(&mut self, number: usize) {
        if let Some(stored) = self.handlers.get_mut(number) {
            stored.state_refused += 1;
        }
    }

    /// Records that a stage has ended, with its costs.
    pub(super) fn removed(&mut self, number: usize, profile: &Profile, usage: Usage) {
        if let Some(stored) = self.handlers.get_mut(number) {
            stored.stages -= 1;
            stored.past.add(profile);
            stored.past_usage.add(Usage { memory: 0, ..usage });
        }
    }

    /// Returns all handlers, without what present stages have cost.
    pub(super) fn past(&self) -> Vec<HandlerStatus> {
        let status = |stored: &Stored| HandlerStatus {
            name: stored.name.clone(),
            stages: stored.stages,
            profile: stored.past,
            usage: stored.past_usage,
            state_refused: stored.state_refused,
        };
        self.handlers.iter().map(status).collect()
    }
}

impl std::fmt::Debug for HandlerManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

//! Makes supplied handlers: checks, compiles and starts them. One workshop serves all sessions of the
//! program. It has a thread of its own, because making a handler takes milliseconds to seconds.

use std::sync::Arc;

use csp_sandbox::{
    Backoff, Engine, Fields, Finally, Limits, Module, NoFields, OnStop, SbeFields, Supplied, Trial,
};
use csp_wire::context::{self, Hash};

use crate::order::{Made, Order};

/// Most modules that are kept, compiled, for stages to come.
const MODULES_MAX: usize = 64;
/// Most lists of formats that are kept.
const FORMATS_MAX: usize = 16;

/// The most recently used values, the latest one at the end, up to a bound.
#[derive(Debug)]
struct Kept<T> {
    most: usize,
    all: Vec<(Hash, T)>,
}

impl<T: Clone> Kept<T> {
    fn get(&mut self, hash: &Hash) -> Option<T> {
        let at = self.all.iter().position(|(known, _)| known == hash)?;
        let found = self.all.remove(at);
        self.all.push(found.clone());
        Some(found.1)
    }

    fn keep(&mut self, hash: Hash, made: T) -> T {
        if self.all.len() >= self.most {
            self.all.remove(0);
        }
        self.all.push((hash, made.clone()));
        made
    }
}

/// Makes supplied handlers.
pub struct Workshop {
    limits: Limits,
    trial: Option<Arc<Trial>>,
    engine: Option<Engine>,
    modules: Kept<Arc<Module>>,
    formats: Kept<Arc<dyn Fields>>,
}

impl Workshop {
    /// A workshop without an engine, which is made with the first handler; it compiles untried, for tests.
    pub fn new(limits: Limits) -> Self {
        Self::with_trial(limits, None)
    }

    /// A workshop that compiles modules in a trial process first.
    pub fn with_trial(limits: Limits, trial: Option<Arc<Trial>>) -> Self {
        Workshop {
            limits,
            trial,
            engine: None,
            modules: Kept { most: MODULES_MAX, all: Vec::new() },
            formats: Kept { most: FORMATS_MAX, all: Vec::new() },
        }
    }

    /// Returns the engine, and makes it if there is none. A thread of the caller must advance its epochs
    /// ([`Engine::tick`]).
    ///
    /// # Errors
    /// Compiled code cannot run here; contains the reason.
    pub fn engine(&mut self) -> Result<Engine, String> {
        match &self.engine {
            Some(engine) => Ok(engine.clone()),
            None => {
                let made =
                    Engine::with_trial(self.limits, self.trial.clone()).map_err(|error| error.to_string())?;
                Ok(self.engine.insert(made).clone())
            }
        }
    }

    /// Makes a handler.
    pub fn make(&mut self, order: &Order) -> Made {
        self.try_make(order).unwrap_or_else(|made| made)
    }

    fn try_make(&mut self, order: &Order) -> Result<Made, Made> {
        let refused = |why: String| Made::Refused(why);
        let module = self.module(order).transpose().map_err(refused)?;
        let formats = self.formats(order).transpose().map_err(refused)?;
        let (Some(module), Some(formats)) = (&module, &formats) else {
            let formats = order.formats.filter(|_| formats.is_none());
            let module = Some(order.module).filter(|_| module.is_none());
            return Err(Made::Missing(module.into_iter().chain(formats).collect()));
        };
        let on_stop = match order.on_stop {
            context::OnStop::Restart => OnStop::Restart(Backoff::default(), Finally::EndPath),
            context::OnStop::Pass => OnStop::Finally(Finally::PassBy),
            context::OnStop::End => OnStop::Finally(Finally::EndPath),
        };
        let made = Supplied::new(module, formats.clone(), on_stop, &order.parameters);
        let made = made.map_err(|error| refused(error.to_string()))?;
        let report = made.report();
        Ok(Made::Ready(Box::new(made), report))
    }

    /// Returns the module of an order; `None`: its bytes are not here.
    fn module(&mut self, order: &Order) -> Option<Result<Arc<Module>, String>> {
        if let Some(known) = self.modules.get(&order.module) {
            return Some(Ok(known));
        }
        let bytes = order.object(&order.module)?;
        let compiled = self
            .engine()
            .and_then(|engine| Module::compile(&engine, bytes).map_err(|error| error.to_string()));
        Some(compiled.map(|module| self.modules.keep(order.module, module)))
    }

    /// Returns the formats of an order; `None`: they are not here.
    fn formats(&mut self, order: &Order) -> Option<Result<Arc<dyn Fields>, String>> {
        let Some(hash) = order.formats else { return Some(Ok(Arc::new(NoFields))) };
        if let Some(known) = self.formats.get(&hash) {
            return Some(Ok(known));
        }
        let parsed = SbeFields::parse(order.object(&hash)?).map_err(|error| error.to_string());
        Some(parsed.map(|fields| self.formats.keep(hash, Arc::new(fields))))
    }
}

impl std::fmt::Debug for Workshop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workshop").field("modules", &self.modules.all.len()).finish_non_exhaustive()
    }
}

//! Builds supplied handlers: checks, compiles and starts their modules. One builder serves all sessions of
//! the program. It runs on a thread of its own, because building a handler takes milliseconds to seconds.

use std::sync::Arc;

use csp_sandbox::{
    Backoff, Engine, Fields, Finally, Limits, Module, NoFields, OnStop, SbeFields, Supplied, Trial,
};
use csp_wire::context::{self, Hash};

use crate::request::{BuildRequest, BuildResult};

/// Largest number of compiled modules that are cached.
const MODULES_MAX: usize = 64;
/// Largest number of cached lists of formats.
const FORMATS_MAX: usize = 16;

/// A cache of the most recently used values, the latest one at the end.
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

/// Builds supplied handlers.
pub struct HandlerBuilder {
    limits: Limits,
    trial: Option<Arc<Trial>>,
    engine: Option<Engine>,
    modules: Kept<Arc<Module>>,
    formats: Kept<Arc<dyn Fields>>,
}

impl HandlerBuilder {
    /// Returns a builder without an engine, which is created with the first handler. It compiles without a
    /// trial process, for tests.
    pub fn new(limits: Limits) -> Self {
        Self::with_trial(limits, None)
    }

    /// Returns a builder that compiles modules in a trial process first.
    pub fn with_trial(limits: Limits, trial: Option<Arc<Trial>>) -> Self {
        HandlerBuilder {
            limits,
            trial,
            engine: None,
            modules: Kept { most: MODULES_MAX, all: Vec::new() },
            formats: Kept { most: FORMATS_MAX, all: Vec::new() },
        }
    }

    /// Returns the engine, which is created if there is none. A thread of the caller must advance its epochs
    /// ([`Engine::tick`]).
    ///
    /// # Errors
    /// The host cannot run compiled code; with the reason.
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

    /// Builds a handler.
    pub fn make(&mut self, request: &BuildRequest) -> BuildResult {
        self.try_make(request).unwrap_or_else(|made| made)
    }

    fn try_make(&mut self, request: &BuildRequest) -> Result<BuildResult, BuildResult> {
        let refused = |why: String| BuildResult::Refused(why);
        let module = self.module(request).transpose().map_err(refused)?;
        let formats = self.formats(request).transpose().map_err(refused)?;
        let (Some(module), Some(formats)) = (&module, &formats) else {
            let formats = request.formats.filter(|_| formats.is_none());
            let module = Some(request.module).filter(|_| module.is_none());
            return Err(BuildResult::Missing(module.into_iter().chain(formats).collect()));
        };
        let on_stop = match request.on_stop {
            context::OnStop::Restart => OnStop::Restart(Backoff::default(), Finally::EndPath),
            context::OnStop::Pass => OnStop::Finally(Finally::PassBy),
            context::OnStop::End => OnStop::Finally(Finally::EndPath),
        };
        let made = Supplied::new(module, formats.clone(), on_stop, &request.parameters);
        let made = made.map_err(|error| refused(error.to_string()))?;
        let report = made.report();
        Ok(BuildResult::Ready(Box::new(made), report))
    }

    /// Returns the module of a request; `None` if its bytes are missing.
    fn module(&mut self, request: &BuildRequest) -> Option<Result<Arc<Module>, String>> {
        if let Some(known) = self.modules.get(&request.module) {
            return Some(Ok(known));
        }
        let bytes = request.object(&request.module)?;
        let compiled = self
            .engine()
            .and_then(|engine| Module::compile(&engine, bytes).map_err(|error| error.to_string()));
        Some(compiled.map(|module| self.modules.keep(request.module, module)))
    }

    /// Returns the formats of a request; `None` if they are missing.
    fn formats(&mut self, request: &BuildRequest) -> Option<Result<Arc<dyn Fields>, String>> {
        let Some(hash) = request.formats else { return Some(Ok(Arc::new(NoFields))) };
        if let Some(known) = self.formats.get(&hash) {
            return Some(Ok(known));
        }
        let parsed = SbeFields::parse(request.object(&hash)?).map_err(|error| error.to_string());
        Some(parsed.map(|fields| self.formats.keep(hash, Arc::new(fields))))
    }
}

impl std::fmt::Debug for HandlerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerBuilder").field("modules", &self.modules.all.len()).finish_non_exhaustive()
    }
}

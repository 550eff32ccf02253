//! Builds supplied handlers: has their modules compiled, and starts them. One builder serves all sessions of
//! the program. It runs on a thread of its own, because building a handler takes milliseconds to seconds.

use std::sync::Arc;

use csp_daemon::trial::Trial;
use csp_modules::{Bounds, Handlers, Keep, Setup, Store};
use csp_sandbox::{Fields, Limits, Module, NoFields, SbeFields, Sha256, Supplied};
use csp_wire::context::Hash;

use crate::request::{BuildRequest, BuildResult};

/// Bounds of the compiled modules that are cached.
const COMPILED: Bounds = Bounds { modules_max: 64, bytes_max: 64 << 20, keep: Keep::Recent };
/// Largest number of cached lists of formats.
const FORMATS_MAX: usize = 16;

/// Builds supplied handlers.
pub struct HandlerBuilder {
    modules: Store<Handlers>,
    /// The lists of formats used most recently, the latest one at the end.
    formats: Vec<(Hash, Arc<dyn Fields>)>,
}

impl HandlerBuilder {
    /// Returns a builder that compiles without a trial process and bounds calls by fuel alone, for tests.
    pub fn new(limits: Limits) -> Self {
        Self::with_trial(Limits { epochs_max: u64::MAX / 2, ..limits }, None)
    }

    /// Returns a builder that compiles modules in a trial process first.
    pub fn with_trial(limits: Limits, trial: Option<Trial>) -> Self {
        let setup = Setup { limits, trial, epochs: Arc::default(), bounds: COMPILED, folder: None };
        HandlerBuilder { modules: Store::new(Handlers, setup), formats: Vec::new() }
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
        let made = Supplied::new(module, formats.clone(), request.on_stop, &request.parameters);
        let made = made.map_err(|error| refused(error.to_string()))?;
        let report = made.report();
        Ok(BuildResult::Ready(Box::new(made), report))
    }

    /// Returns the module of a request; `None` if its bytes are missing.
    fn module(&self, request: &BuildRequest) -> Option<Result<Arc<Module>, String>> {
        let name = Sha256(request.module).to_string();
        match self.modules.cached(&name) {
            Some(known) => Some(Ok(known)),
            None => Some(self.modules.compile(&name, request.object(&request.module)?)),
        }
    }

    /// Returns the formats of a request; `None` if they are missing.
    fn formats(&mut self, request: &BuildRequest) -> Option<Result<Arc<dyn Fields>, String>> {
        let Some(hash) = request.formats else { return Some(Ok(Arc::new(NoFields))) };
        let fields: Arc<dyn Fields> = match self.formats.iter().position(|(known, _)| *known == hash) {
            Some(at) => self.formats.remove(at).1,
            None => match SbeFields::parse(request.object(&hash)?) {
                Ok(parsed) => Arc::new(parsed),
                Err(error) => return Some(Err(error.to_string())),
            },
        };
        if self.formats.len() >= FORMATS_MAX {
            self.formats.remove(0);
        }
        self.formats.push((hash, fields.clone()));
        Some(Ok(fields))
    }
}

impl std::fmt::Debug for HandlerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerBuilder").field("modules", &self.modules).finish_non_exhaustive()
    }
}

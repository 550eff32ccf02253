//! A module in a path whose calls are made by another program: what the path is checked by, and what that
//! program reports.

use std::sync::Arc;

use csp_handlers::{Call, FormatId, Handler, Needs, ParameterError, Reported, State, Stop, Usage};

use crate::module::Module;
use crate::report::Report;
use crate::supplied::{self, Formats, Supplied};

/// What is known of a module that runs elsewhere. It has no instance, and reserves no memory here.
#[derive(Debug)]
pub struct Described {
    module: Arc<Module>,
    formats: Arc<Formats>,
    report: Arc<Report>,
}

impl Described {
    /// Describes a handler, as it answers for its formats.
    #[must_use]
    pub fn of(handler: &Supplied) -> Self {
        let (module, formats) = (handler.module().clone(), Arc::new(handler.formats.clone()));
        Described { module, formats, report: Arc::default() }
    }

    /// Describes the handler of another stage, which has counted nothing yet.
    #[must_use]
    pub fn another(&self) -> Self {
        Described { module: self.module.clone(), formats: self.formats.clone(), report: Arc::default() }
    }

    /// Returns the counters, which outlive the stage.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        self.report.clone()
    }
}

impl Handler for Described {
    fn needs(&self) -> Needs {
        supplied::needs_of(&self.module)
    }

    fn accepts(&self, format: FormatId) -> bool {
        supplied::accepts(&self.module, &self.formats, format)
    }

    fn yields(&self, output: u8, input: FormatId) -> FormatId {
        supplied::yields(&self.formats, output, input)
    }

    /// The other program sets them.
    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.report.usage()
    }

    fn is_ended(&self) -> bool {
        self.report.is_ended()
    }

    fn keeps_state(&self) -> bool {
        supplied::keeps_state(&self.module)
    }

    fn on_report(&mut self, report: &Reported) {
        self.report.set(report);
    }

    fn on_message(&mut self, _: &mut Call<'_>) -> Result<(), Stop> {
        Err(Stop::Fault("the module runs in another program"))
    }
}

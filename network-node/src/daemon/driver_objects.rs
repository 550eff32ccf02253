//! eBPF objects that administrators supply: how the node verifies them, loads those of the policy, and what it says of their instances.

use std::collections::HashMap;

use csp_api::plugins::Supplied;
use csp_plugin_modules::Objects;
use csp_plugins::{DRIVER, Manager, ObjectDeclaration, is_supplied};
use csp_telemetry::without_abort;

use super::driver::DriverControl;

/// The node's kernel.
#[derive(Debug)]
pub struct KernelObjects;

impl Objects for KernelObjects {
    fn read(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String> {
        without_abort(|| csp_xdp::read_object(bytes)).map_err(|error| error.to_string())
    }

    fn verify(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String> {
        // Lines of the log would become one on the way to the operator.
        without_abort(|| csp_xdp::verify_object(bytes))
            .map_err(|error| error.to_string().replace('\n', " | "))
    }
}

impl DriverControl {
    /// Loads the programs of instances that do not run yet. Returns why some were not loaded, by the instance's name.
    pub(super) fn load_objects(&mut self, manager: &Manager) -> HashMap<String, String> {
        let mut refused = HashMap::new();
        let (Some(driver), Some(modules)) = (&mut self.driver, &self.modules) else { return refused };
        let in_driver = manager.instances().filter(|(.., environment)| *environment == DRIVER);
        for (_, name, module, _) in in_driver.filter(|(_, _, module, _)| is_supplied(module)) {
            let parameters =
                manager.settings_of(name).map_or("", |(_, settings)| settings.text("parameters"));
            let bytes = || modules.bytes(module).ok_or_else(|| format!("module {module} is not here"));
            if let Err(error) = without_abort(|| driver.load(name, module, parameters, bytes)) {
                let first = error.lines().next().unwrap_or_default().to_owned();
                tracing::error!(
                    plugin = name,
                    module,
                    error,
                    "a supplied packet plug-in of level 1 was not loaded"
                );
                refused.insert(name.to_owned(), first);
            }
        }
        refused
    }

    /// Adds whether the instance of an eBPF object runs, and why not; `held` is why it does not for all packets.
    pub fn describe_object(&self, name: &str, held: Option<String>, supplied: &mut Supplied) {
        let reason = match (self.unavailable(), self.idle.get(name)) {
            (Some(error), _) => format!("level 1 is not available: {error}"),
            (None, Some(reason)) => reason.clone(),
            (None, None) => String::new(),
        };
        let runs = reason.is_empty() && self.has(name);
        supplied.state = if runs { "running" } else { "fallback" }.into();
        // Others run at level 2 for these packets, an object does not.
        let in_part = held.filter(|_| runs).map(|held| held.replacen("runs at level 2", "falls back", 1));
        supplied.reason = in_part.unwrap_or(reason).into();
    }
}

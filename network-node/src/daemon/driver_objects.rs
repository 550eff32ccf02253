//! eBPF objects supplied by administrators: verifies them, loads those that the policy uses, and reports the
//! state of their instances.

use std::time::Duration;

use csp_api::plugins::Supplied;
use csp_plugin_modules::Objects;
use csp_plugins::{DRIVER, Manager, ObjectDeclaration, is_supplied};
use csp_telemetry::without_abort;
use csp_xdp::Loaded;

use super::driver::DriverControl;
use super::plugins::PluginControl;
use super::verification::{Job, Subject};

/// How long the control thread waits for the kernel to verify all objects of a change. A timeout is not the
/// object's fault: its rules' fallback applies until the kernel has finished.
const VERIFY_TIME_MAX: Duration = Duration::from_secs(10);

/// Verifies objects with the node's kernel.
#[derive(Debug)]
pub struct KernelObjects {
    /// Whether the kernel is asked. A node that may not load programs only reads what they declare; their
    /// instances fall back.
    pub verifies: bool,
}

impl Objects for KernelObjects {
    fn read(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String> {
        without_abort(|| csp_xdp::read_object(bytes)).map_err(|error| error.to_string())
    }

    fn verify(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String> {
        if !self.verifies {
            return self.read(bytes);
        }
        // The log has several lines, which are joined before the operator sees them.
        without_abort(|| csp_xdp::verify_object(bytes))
            .map_err(|error| error.to_string().replace('\n', " | "))
    }
}

impl DriverControl {
    /// Returns the objects to load for instances without a program. First loads the node's own program, if an
    /// instance needs it.
    fn objects_needed(&mut self, manager: &Manager) -> Vec<Job<Loaded>> {
        if manager.instances().any(|(.., environment)| environment == DRIVER) {
            self.prepare();
        }
        self.take_over();
        self.refused_objects.clear();
        let mut jobs = Vec::new();
        let (Some(driver), Some(modules)) = (&self.driver, &self.modules) else { return jobs };
        let in_driver = manager.instances().filter(|(.., environment)| *environment == DRIVER);
        for (_, name, module, _) in in_driver.filter(|(_, _, module, _)| is_supplied(module)) {
            let parameters =
                manager.settings_of(name).map_or("", |(_, settings)| settings.text("parameters"));
            let bytes = || modules.bytes(module).ok_or_else(|| format!("module {module} is not here"));
            match driver.to_load(name, module, parameters, bytes) {
                Ok(None) => {}
                Ok(Some(loading)) => {
                    let subject = Subject { instance: name.to_owned(), module: module.to_owned() };
                    let run = Box::new(move || without_abort(|| loading.run()));
                    jobs.push(Job { subject, run });
                }
                Err(error) => drop(self.refused_objects.insert(name.to_owned(), error)),
            }
        }
        jobs
    }

    /// Makes the kernel verify objects, for a bounded time. [`plan`](Self::plan) leaves out the instances of
    /// objects that were refused, or not verified in time.
    async fn load_objects(&mut self, jobs: Vec<Job<Loaded>>) {
        let verified = self.verification.run(jobs, VERIFY_TIME_MAX).await;
        if let Some(driver) = &mut self.driver {
            verified.ready.into_iter().for_each(|loaded| driver.add_loaded(loaded));
        }
        self.refused_objects.extend(verified.refused);
        for (plugin, error) in &self.refused_objects {
            if self.logged_objects.get(plugin) != Some(error) {
                tracing::error!(plugin, error, "a supplied packet plug-in of level 1 was not loaded");
            }
        }
        self.logged_objects.clone_from(&self.refused_objects);
        for error in self.refused_objects.values_mut() {
            error.truncate(error.find('\n').unwrap_or(error.len()));
        }
    }

    /// Adds whether the instance of an eBPF object runs, and the reason if it does not. `held` is the reason
    /// why it does not process all of its packets.
    pub fn describe_object(&self, name: &str, held: Option<String>, supplied: &mut Supplied) {
        let reason = match (self.unavailable(), self.idle.get(name)) {
            (Some(error), _) => format!("level 1 is not available: {error}"),
            (None, Some(reason)) => reason.clone(),
            (None, None) => String::new(),
        };
        let runs = reason.is_empty() && self.has(name);
        supplied.state = if runs { "running" } else { "fallback" }.into();
        // Other instances process these packets at level 2, which an object cannot.
        let in_part = held.filter(|_| runs).map(|held| held.replacen("runs at level 2", "falls back", 1));
        supplied.reason = in_part.unwrap_or(reason).into();
    }
}

impl PluginControl {
    /// Loads the objects of instances without a program, those that the kernel verifies in time.
    pub(super) async fn load_objects(&mut self) {
        let jobs = self.driver.objects_needed(&self.manager);
        self.driver.load_objects(jobs).await;
    }

    /// Puts an object into force whose verification had timed out and has finished since.
    pub(super) async fn use_verified_object(&mut self) {
        if self.driver.verification.has_ended()
            && let Err(error) = self.put_into_force().await
        {
            tracing::error!(error, "a supplied packet plug-in of level 1 is verified, and not in force");
        }
    }
}

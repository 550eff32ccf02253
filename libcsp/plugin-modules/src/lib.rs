//! Modules of packet plug-ins that administrators supply, in a daemon that runs them: network nodes and
//! plug-in hosts.
//!
//! ```text
//!   network node   STATE_DIR/plugins/9f86…15b0.wasm ─ check, compile ─▶ Supply ─▶ an instance for each worker
//!   plug-in host   the network node's configuration ─ offer, a thread compiles ─▶ Supply ─▶ an instance for each session
//! ```
//! Modules that are eBPF objects run in the driver of network nodes ([`Objects`]); workers have stand-ins for
//! their instances.
//!
//! The store of `csp-modules` keeps, compiles and bounds them; here is what is particular to packets:
//! objects, what a policy's instances need, and what became of them.
#![forbid(unsafe_code)]

mod objects;
mod running;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csp_api::events::What;
use csp_daemon::trial::Trial;
use csp_modules::{Bounds, Epochs, Kind, LazyEngine, ModuleFolder, Origin, RemoveError, Setup, Store};
use csp_plugins::{
    Desired, InDriverOnly, Level, OBJECT_LEVELS, ObjectDeclaration, Plugin, PluginError, SUPPLIED, Settings,
    Supply, WASM_LEVELS, is_supplied,
};
use csp_sandbox::packets::{PacketModule, PacketPlugin, limits};

pub use csp_sandbox::{Reason, compiles};
pub use objects::Objects;
use running::Running;
pub use running::{Status, Stop};

/// Longest module in bytes.
pub const MODULE_LEN_MAX: usize = 1 << 20;
/// Most bytes of modules that one plug-in host gets from a network node: they are sent as text, twice as
/// long.
pub const HOST_MODULES_LEN_MAX: usize = 6 << 20;

/// What a module is.
#[derive(Debug)]
enum Code {
    /// WebAssembly, compiled.
    Wasm(Arc<PacketModule>),
    /// An eBPF object.
    Object(ObjectDeclaration),
}

/// Packet plug-ins: WebAssembly, and eBPF objects. `None`: there are no packet processors that objects could
/// run in.
#[derive(Debug)]
struct PacketPlugins(Option<Arc<dyn Objects>>);

impl Kind for PacketPlugins {
    type Code = Code;

    /// Compiles a module, or reads an object; the kernel verifies a new one.
    fn compile(&self, engine: &LazyEngine, bytes: &[u8], origin: Origin) -> Result<Arc<Code>, String> {
        let code = if objects::is_object(bytes) {
            objects::check(self.0.as_deref(), bytes, origin == Origin::New).map(Code::Object)
        } else if !bytes.starts_with(b"\0asm") {
            Err("it is neither an eBPF object (ELF) nor a WebAssembly module".to_owned())
        } else {
            PacketModule::compile(&engine.get()?, bytes).map_err(|error| error.to_string()).map(Code::Wasm)
        };
        code.map(Arc::new)
    }
}

/// The modules of a daemon.
#[derive(Debug)]
pub struct PluginModules {
    /// A network node's are in a folder. A plug-in host keeps what it is sent in memory.
    store: Store<PacketPlugins>,
    running: Mutex<Vec<Running>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PluginModules {
    /// The modules of a network node, in a folder; `objects` is what its packet processors do with eBPF
    /// objects, `trial` where modules are compiled first (`None`: in tests).
    #[must_use]
    pub fn in_folder(folder: PathBuf, objects: Option<Arc<dyn Objects>>, trial: Option<Trial>) -> Arc<Self> {
        let commands = ("cspctl plugin install FILE", "cspctl plugin uninstall MODULE");
        Self::new(Some(ModuleFolder::new(folder, MODULE_LEN_MAX, commands)), objects, trial)
    }

    /// The modules of a plug-in host: those that network nodes send. `trial` as in
    /// [`in_folder`](Self::in_folder).
    #[must_use]
    pub fn in_memory(trial: Option<Trial>) -> Arc<Self> {
        Self::new(None, None, trial)
    }

    fn new(
        folder: Option<ModuleFolder>,
        objects: Option<Arc<dyn Objects>>,
        trial: Option<Trial>,
    ) -> Arc<Self> {
        let epochs: Arc<Epochs> = Arc::default();
        let bounds = Bounds::of_folder(MODULE_LEN_MAX);
        let setup = Setup { limits: limits(), trial, epochs, bounds, folder };
        Arc::new(PluginModules {
            store: Store::new(PacketPlugins(objects), setup),
            running: Mutex::default(),
        })
    }

    /// Checks, compiles and stores a module, in the background. Takes milliseconds to seconds.
    ///
    /// # Errors
    /// What is wrong with the module, or why it cannot be stored.
    pub fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String> {
        self.store.put(hash, bytes)
    }

    /// Checks that the supplied plug-ins of a policy run on a node with so many workers: their modules are
    /// here, start, accept their parameters, have the outputs that are connected, and fit.
    ///
    /// # Errors
    /// Everything that does not, in one text.
    pub fn check(&self, desired: &Desired, workers: usize) -> Result<(), String> {
        let mut wrong = Vec::new();
        let (mut instances, mut memory) = (0, 0);
        let mut hosts: HashMap<&str, HashMap<&str, usize>> = HashMap::new();
        let mut in_driver = HashSet::new();
        for instance in desired.instances.iter().filter(|instance| is_supplied(&instance.module)) {
            match self.try_out(instance) {
                Err(error) => wrong.push(format!("plug-in {}: {error}", instance.name)),
                Ok(_) if instance.level == Level::Host => {
                    let len = self.bytes(&instance.module).map_or(0, |bytes| bytes.len());
                    hosts.entry(instance.environment()).or_default().insert(&instance.module, len);
                }
                Ok(_) if instance.level == Level::Driver => drop(in_driver.insert(instance.name.as_str())),
                Ok(needed) => {
                    (instances, memory) = (instances + workers as u64, memory + needed * workers as u64)
                }
            }
        }
        wrong.extend(objects::never_run(desired, &in_driver));
        // While a plug-in is replaced both are there.
        let bounds = limits();
        let (instances_max, memory_max) = (u64::from(bounds.instances_max) / 2, bounds.memory_total_max / 2);
        if instances > instances_max || memory > memory_max {
            wrong.push(format!(
                "supplied plug-ins need {instances} instances with {memory} bytes of memory for {workers} workers; a node has room for \
                 {instances_max} with {memory_max} bytes"
            ));
        }
        for (host, modules) in hosts {
            let len: usize = modules.values().sum();
            if len > HOST_MODULES_LEN_MAX {
                wrong.push(format!(
                    "the modules of plug-in host {host} have {len} bytes; {HOST_MODULES_LEN_MAX} are the most"
                ));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Makes an instance and drops it. Returns the memory that it needs.
    fn try_out(&self, instance: &csp_plugins::DesiredInstance) -> Result<u64, String> {
        let module = self.store.get(&instance.module)?;
        let given: Vec<(&str, &str)> =
            instance.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let settings =
            Settings::parse(SUPPLIED.parameters, &given, |_| None).map_err(|error| error.to_string())?;
        let connected = instance.outputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let (outputs, memory) = match &*module {
            Code::Wasm(_) if instance.level == Level::Driver => {
                let module = &instance.module;
                return Err(format!(
                    "module {module} is WebAssembly, which runs at levels 2 and 3, not at level 1"
                ));
            }
            Code::Wasm(module) => {
                PacketPlugin::new(module, &settings).map_err(|error| error.to_string())?;
                (module.outputs(), module.memory_reserved())
            }
            Code::Object(_) if instance.level != Level::Driver || instance.auto.is_some() => {
                let level =
                    instance.auto.map_or_else(|| (instance.level as u8).to_string(), |_| "auto".to_owned());
                let module = &instance.module;
                return Err(format!(
                    "module {module} is an eBPF object, which runs at level 1 only, not at level {level}"
                ));
            }
            Code::Object(declaration) => {
                declaration.check(settings.text("parameters"))?;
                (declaration.outputs, 0)
            }
        };
        if connected > usize::from(outputs) {
            return Err(format!("its module has {outputs} outputs, and {connected} are connected"));
        }
        Ok(memory)
    }

    /// Returns what supplied instances have counted, those of all workers by instance.
    #[must_use]
    pub fn status(&self) -> Vec<Status> {
        running::status(&lock(&self.running))
    }

    /// Returns which instances were stopped since the last call.
    pub fn stops(&self) -> Vec<What> {
        let mut running = lock(&self.running);
        let stops = running.iter_mut().filter_map(Running::stop).collect();
        running.retain(Running::is_alive);
        stops
    }

    /// Logs which instances were stopped since the last call: for a daemon that records no events.
    pub fn log_stops(&self) {
        for what in self.stops() {
            tracing::warn!(object = %what.object(), "{}", what.text());
        }
    }

    /// Returns whether a module has come since the last call: policies that were refused without it are to be
    /// checked again.
    pub fn have_come(&self) -> bool {
        self.store.have_come()
    }

    /// Records which modules the active policy names.
    pub fn set_active(&self, desired: &Desired) {
        let supplied = desired.instances.iter().map(|instance| &instance.module);
        self.store.set_named(supplied.filter(|module| is_supplied(module)).cloned());
    }

    /// Returns the modules in the folder, each with its length.
    #[must_use]
    pub fn stored(&self) -> Vec<(String, u64)> {
        self.store.stored()
    }

    /// Returns the bytes of a module; `None`: it is not here.
    #[must_use]
    pub fn bytes(&self, hash: &str) -> Option<Vec<u8>> {
        self.store.bytes(hash)
    }

    /// Removes a module that nothing names or runs.
    ///
    /// # Errors
    /// It is not here, is needed, or its file stays.
    pub fn remove(&self, hash: &str) -> Result<(), RemoveError> {
        let is_running = |of: &Running| of.is_alive() && of.module == hash;
        self.store.remove(hash, || lock(&self.running).iter().any(is_running))
    }
}

impl Supply for PluginModules {
    fn outputs(&self, module: &str) -> Option<u8> {
        match &*self.store.cached(module)? {
            Code::Wasm(module) => Some(module.outputs()),
            Code::Object(declaration) => Some(declaration.outputs),
        }
    }

    fn levels(&self, module: &str) -> Option<&'static [Level]> {
        match &*self.store.get(module).ok()? {
            Code::Object(_) => Some(OBJECT_LEVELS),
            Code::Wasm(_) => Some(WASM_LEVELS),
        }
    }

    fn make(
        &self,
        instance: &str,
        module: &str,
        settings: &Settings,
    ) -> Result<Box<dyn Plugin>, PluginError> {
        let code = self.store.get(module).map_err(PluginError::Supplied)?;
        let mut running = lock(&self.running);
        running.retain(Running::is_alive);
        match &*code {
            Code::Wasm(module_code) => {
                let plugin = PacketPlugin::new(module_code, settings)?;
                running.push(Running::new(instance, module, &plugin.report()));
                Ok(Box::new(plugin))
            }
            Code::Object(declaration) => {
                let plugin = InDriverOnly::new(*declaration, settings)?;
                running.push(Running::in_driver(instance, module, plugin.not_run()));
                Ok(Box::new(plugin))
            }
        }
    }

    fn offer(&self, module: &str, bytes: Vec<u8>) {
        self.store.offer(module, bytes);
    }

    fn is_ready(&self, module: &str) -> bool {
        self.store.is_ready(module)
    }
}

#[cfg(test)]
mod tests;

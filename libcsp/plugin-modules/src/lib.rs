//! Modules of packet plug-ins that administrators supply, in a daemon that runs them: network nodes and plug-in hosts.
//!
//! ```text
//!   network node   STATE_DIR/plugins/9f86…15b0.wasm ─ check, compile ─▶ Supply ─▶ an instance for each worker
//!   plug-in host   the network node's configuration ─ offer, a thread compiles ─▶ Supply ─▶ an instance for each session
//! ```
//! Modules that are eBPF objects run in the driver of network nodes ([`Objects`]); workers have stand-ins for their instances.
//!
//! The engine and its thread are made when the first module comes: a daemon without any has neither threads nor address space for them.
#![forbid(unsafe_code)]

mod objects;
mod running;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csp_daemon::module_folder::{ModuleFolder, RemoveError, sha256};
use csp_daemon::trial::Trial;
use csp_plugins::{
    Desired, InDriverOnly, Level, OBJECT_LEVELS, ObjectDeclaration, Plugin, PluginError, SUPPLIED, Settings,
    Supply, WASM_LEVELS, is_supplied,
};
use csp_sandbox::Engine;
use csp_sandbox::packets::{PacketModule, PacketPlugin, limits};

pub use csp_sandbox::compiles;
pub use objects::Objects;
use running::Running;
pub use running::{Status, Stop};

/// Longest module in bytes.
pub const MODULE_LEN_MAX: usize = 1 << 20;
/// Most bytes of modules that one plug-in host gets from a network node: they are sent as text, twice as long.
pub const HOST_MODULES_LEN_MAX: usize = 6 << 20;
/// Between two epochs of the engine: how finely the time of a call is bounded, behind its fuel.
const EPOCH: Duration = Duration::from_millis(5);
/// Modules that are kept compiled without an instance.
const COMPILED_MAX: usize = 256;

type Compiled = Result<Code, String>;

/// What a module is.
#[derive(Clone, Debug)]
enum Code {
    /// WebAssembly, compiled.
    Wasm(Arc<PacketModule>),
    /// An eBPF object.
    Object(ObjectDeclaration),
}
/// A module that was offered: its name and its bytes.
type Offer = (String, Vec<u8>);

#[derive(Debug, Default)]
struct Shared {
    engine: Mutex<Option<Engine>>,
    compiled: Mutex<HashMap<String, Compiled>>,
    /// Where modules are compiled first; `None`: nowhere.
    trial: Option<Trial>,
    /// `None`: there are no packet processors that eBPF objects could run in.
    objects: Option<Arc<dyn Objects>>,
}

/// The modules of a daemon.
#[derive(Debug)]
pub struct PluginModules {
    shared: Arc<Shared>,
    /// `None`: a plug-in host, which keeps what it is sent in memory.
    folder: Option<ModuleFolder>,
    offers: Mutex<Option<Sender<Offer>>>,
    offered: Mutex<HashSet<String>>,
    running: Mutex<Vec<Running>>,
    /// Modules that the active policy names.
    named: Mutex<HashSet<String>>,
    /// A module has come since [`have_come`](PluginModules::have_come) was asked.
    came: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Returns the engine; makes it and its thread if it is not there.
    fn engine(&self) -> Result<Engine, String> {
        let mut engine = lock(&self.engine);
        if let Some(engine) = &*engine {
            return Ok(engine.clone());
        }
        let made = Engine::with_trial(limits(), self.trial.as_ref().map(Trial::shared))
            .map_err(|error| error.to_string())?;
        let ticking = made.clone();
        let tick = move || loop {
            std::thread::sleep(EPOCH);
            ticking.tick();
        };
        std::thread::Builder::new()
            .name("plugin-epochs".to_owned())
            .spawn(tick)
            .map_err(|error| format!("there is no thread that bounds the time of plug-ins: {error}"))?;
        Ok(engine.insert(made).clone())
    }

    /// Compiles a module, or reads an object; a `new` object is verified by the kernel.
    fn compile(&self, hash: &str, bytes: &[u8], new: bool) -> Compiled {
        let compiled = if objects::is_object(bytes) {
            objects::check(self.objects.as_deref(), bytes, new).map(Code::Object)
        } else if !bytes.starts_with(b"\0asm") {
            Err("it is neither an eBPF object (ELF) nor a WebAssembly module".to_owned())
        } else {
            let compile = |engine| PacketModule::compile(&engine, bytes).map_err(|e| e.to_string());
            self.engine().and_then(compile).map(Code::Wasm)
        };
        let mut all = lock(&self.compiled);
        if all.len() >= COMPILED_MAX {
            // Only the map has those that no instance runs.
            all.retain(|_, code| matches!(code, Ok(Code::Wasm(module)) if Arc::strong_count(module) > 1));
        }
        all.insert(hash.to_owned(), compiled.clone());
        compiled
    }
}

impl PluginModules {
    /// The modules of a network node, in a folder; `objects` is what its packet processors do with eBPF objects, `trial` where modules are compiled first (`None`: in tests).
    #[must_use]
    pub fn in_folder(folder: PathBuf, objects: Option<Arc<dyn Objects>>, trial: Option<Trial>) -> Arc<Self> {
        let commands = ("cspctl plugin install FILE", "cspctl plugin uninstall MODULE");
        Self::new(Some(ModuleFolder::new(folder, MODULE_LEN_MAX, commands)), objects, trial)
    }

    /// The modules of a plug-in host: those that network nodes send. `trial` as in [`in_folder`](Self::in_folder).
    #[must_use]
    pub fn in_memory(trial: Option<Trial>) -> Arc<Self> {
        Self::new(None, None, trial)
    }

    fn new(
        folder: Option<ModuleFolder>,
        objects: Option<Arc<dyn Objects>>,
        trial: Option<Trial>,
    ) -> Arc<Self> {
        Arc::new(PluginModules {
            shared: Arc::new(Shared { objects, trial, ..Shared::default() }),
            folder,
            offers: Mutex::default(),
            offered: Mutex::default(),
            running: Mutex::default(),
            named: Mutex::default(),
            came: AtomicBool::default(),
        })
    }

    /// Checks, compiles and stores a module. Takes milliseconds to seconds.
    ///
    /// # Errors
    /// What is wrong with the module, or why it cannot be stored.
    pub fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String> {
        let folder = self.folder.as_ref().ok_or("modules are not stored here")?;
        if folder.has(hash) && matches!(lock(&self.shared.compiled).get(hash), Some(Ok(_))) {
            return Ok(());
        }
        folder.put(hash, bytes, || self.shared.compile(hash, bytes, true).map(drop))?;
        self.came.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a module, compiled now if this process has not had it yet.
    ///
    /// # Errors
    /// It is not here, or is no module.
    fn get(&self, hash: &str) -> Compiled {
        if let Some(Ok(code)) = lock(&self.shared.compiled).get(hash) {
            return Ok(code.clone());
        }
        match &self.folder {
            Some(folder) => folder.load(hash).and_then(|bytes| self.shared.compile(hash, &bytes, false)),
            None => lock(&self.shared.compiled).get(hash).cloned().unwrap_or_else(|| {
                Err(format!("module {hash} was not sent to this host; do the releases match?"))
            }),
        }
    }

    /// Checks that the supplied plug-ins of a policy run on a node with so many workers: their modules are here, start, accept their
    /// parameters, have the outputs that are connected, and fit.
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
        let module = self.get(&instance.module)?;
        let given: Vec<(&str, &str)> =
            instance.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let settings =
            Settings::parse(SUPPLIED.parameters, &given, |_| None).map_err(|error| error.to_string())?;
        let connected = instance.outputs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let (outputs, memory) = match &module {
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

    /// Logs which instances were stopped since the last call.
    pub fn log_stops(&self) {
        let mut running = lock(&self.running);
        running.iter_mut().for_each(Running::log_stops);
        running.retain(Running::is_alive);
    }

    /// Returns whether a module has come since the last call: policies that were refused without it are to be checked again.
    pub fn have_come(&self) -> bool {
        self.came.swap(false, Ordering::Relaxed)
    }

    /// Records which modules the active policy names.
    pub fn set_active(&self, desired: &Desired) {
        let supplied = desired.instances.iter().map(|instance| &instance.module);
        *lock(&self.named) = supplied.filter(|module| is_supplied(module)).cloned().collect();
    }

    /// Returns the modules in the folder, each with its length.
    #[must_use]
    pub fn stored(&self) -> Vec<(String, u64)> {
        self.folder.as_ref().map(ModuleFolder::stored).unwrap_or_default()
    }

    /// Returns the bytes of a module; `None`: it is not here.
    #[must_use]
    pub fn bytes(&self, hash: &str) -> Option<Vec<u8>> {
        self.folder.as_ref()?.load(hash).ok()
    }

    /// Removes a module that nothing names or runs.
    ///
    /// # Errors
    /// It is not here, is needed, or its file stays.
    pub fn remove(&self, hash: &str) -> Result<(), RemoveError> {
        let is_running = |of: &Running| of.is_alive() && of.module == hash;
        let is_used = || lock(&self.named).contains(hash) || lock(&self.running).iter().any(is_running);
        self.folder.as_ref().ok_or(RemoveError::Unknown)?.remove(hash, is_used)?;
        lock(&self.shared.compiled).remove(hash);
        Ok(())
    }

    /// Returns where offers go; begins the thread that compiles them.
    fn offers(&self) -> Result<Sender<Offer>, String> {
        let mut offers = lock(&self.offers);
        if let Some(offers) = &*offers {
            return Ok(offers.clone());
        }
        let (sender, receiver): (_, Receiver<Offer>) = channel();
        let shared = self.shared.clone();
        let compile = move || {
            for (hash, bytes) in receiver {
                let found = sha256(&bytes);
                if found == hash {
                    let _ = shared.compile(&hash, &bytes, true);
                } else {
                    let error = Err(format!("the bytes have the SHA-256 {found}, not {hash}"));
                    lock(&shared.compiled).insert(hash, error);
                }
            }
        };
        std::thread::Builder::new()
            .name("plugin-maker".to_owned())
            .spawn(compile)
            .map_err(|error| format!("there is no thread that compiles plug-ins: {error}"))?;
        Ok(offers.insert(sender).clone())
    }
}

impl Supply for PluginModules {
    fn outputs(&self, module: &str) -> Option<u8> {
        match lock(&self.shared.compiled).get(module) {
            Some(Ok(Code::Wasm(module))) => Some(module.outputs()),
            Some(Ok(Code::Object(declaration))) => Some(declaration.outputs),
            _ => None,
        }
    }

    fn levels(&self, module: &str) -> Option<&'static [Level]> {
        match self.get(module) {
            Ok(Code::Object(_)) => Some(OBJECT_LEVELS),
            Ok(Code::Wasm(_)) => Some(WASM_LEVELS),
            Err(_) => None,
        }
    }

    fn make(
        &self,
        instance: &str,
        module: &str,
        settings: &Settings,
    ) -> Result<Box<dyn Plugin>, PluginError> {
        let code = self.get(module).map_err(PluginError::Supplied)?;
        let mut running = lock(&self.running);
        running.retain(Running::is_alive);
        match code {
            Code::Wasm(module_code) => {
                let plugin = PacketPlugin::new(&module_code, settings)?;
                running.push(Running::new(instance, module, &plugin.report()));
                Ok(Box::new(plugin))
            }
            Code::Object(declaration) => {
                let plugin = InDriverOnly::new(declaration, settings)?;
                running.push(Running::in_driver(instance, module, plugin.not_run()));
                Ok(Box::new(plugin))
            }
        }
    }

    fn offer(&self, module: &str, bytes: Vec<u8>) {
        if matches!(lock(&self.shared.compiled).get(module), Some(Ok(_))) {
            return;
        }
        lock(&self.shared.compiled).remove(module);
        if !lock(&self.offered).insert(module.to_owned()) {
            return;
        }
        let sent = self.offers().map(|offers| offers.send((module.to_owned(), bytes)));
        if !matches!(sent, Ok(Ok(()))) {
            let error = Err("plug-ins cannot be compiled here".to_owned());
            lock(&self.shared.compiled).insert(module.to_owned(), error);
        }
    }

    fn is_ready(&self, module: &str) -> bool {
        let is_ready = lock(&self.shared.compiled).contains_key(module);
        if is_ready {
            lock(&self.offered).remove(module);
        }
        is_ready
    }
}

#[cfg(test)]
mod tests;

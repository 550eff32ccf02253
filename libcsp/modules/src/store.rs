//! The store: where modules come from, and what is compiled of them.

use std::collections::HashSet;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use csp_daemon::background::lower_priority;
use csp_daemon::trial::Trial;
use csp_sandbox::{Limits, Module, Usage};
use csp_telemetry::without_abort;

use crate::cache::{Bounds, Cache};
use crate::engine::{Epochs, LazyEngine};
use crate::folder::{ModuleFolder, RemoveError};
use crate::{alone, in_background, lock, verify};

/// Most offered modules that wait to be compiled.
pub const WAITING_MAX: usize = 256;

/// Where the bytes of a module come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From outside.
    New,
    /// From the folder: they were accepted before, perhaps by an earlier process.
    Stored,
}

/// What a store's modules are.
pub trait Kind: Debug + Send + Sync + 'static {
    /// A module that was checked and compiled.
    type Code: Send + Sync + 'static;

    /// Checks and compiles a module. Takes milliseconds to seconds.
    ///
    /// # Errors
    /// What is wrong with it.
    fn compile(&self, engine: &LazyEngine, bytes: &[u8], origin: Origin) -> Result<Arc<Self::Code>, String>;
}

/// Handlers of messages.
#[derive(Clone, Copy, Debug)]
pub struct Handlers;

impl Kind for Handlers {
    type Code = Module;

    fn compile(&self, engine: &LazyEngine, bytes: &[u8], _: Origin) -> Result<Arc<Module>, String> {
        Module::compile(&engine.get()?, bytes).map_err(|error| error.to_string())
    }
}

/// What a store is made with.
#[derive(Debug)]
pub struct Setup {
    /// Bounds of modules and instances.
    pub limits: Limits,
    /// Where modules are compiled first; `None`: nowhere.
    pub trial: Option<Trial>,
    /// The thread of the process's engines.
    pub epochs: Arc<Epochs>,
    /// Bounds of what is kept compiled.
    pub bounds: Bounds,
    /// Where modules are stored; `None`: in memory only.
    pub folder: Option<ModuleFolder>,
}

/// A module that was offered: its name and its bytes.
type Offer = (String, Vec<u8>);
/// The outcome of compiling a module.
type Compiled<K> = Result<Arc<<K as Kind>::Code>, String>;

/// What the store has in common with the thread that compiles offers.
struct Shared<K: Kind> {
    kind: K,
    engine: LazyEngine,
    cache: Mutex<Cache<K::Code>>,
    /// Offers without an outcome.
    offered: Mutex<HashSet<String>>,
}

/// The modules of a daemon. Any thread calls it; only [`offer`](Self::offer), [`is_ready`](Self::is_ready)
/// and [`cached`](Self::cached) are for data threads.
pub struct Store<K: Kind> {
    shared: Arc<Shared<K>>,
    folder: Option<ModuleFolder>,
    offers: Mutex<Option<SyncSender<Offer>>>,
    /// Modules that the active policy names.
    named: Mutex<HashSet<String>>,
    /// A module has come since [`have_come`](Self::have_come) was called.
    came: AtomicBool,
}

impl<K: Kind> Shared<K> {
    fn cached(&self, hash: &str) -> Option<Arc<K::Code>> {
        lock(&self.cache).get(hash)?.ok()
    }

    /// Compiles a module on the calling thread, and keeps it.
    fn compile(&self, hash: &str, bytes: &[u8], origin: Origin) -> Compiled<K> {
        lock(&self.cache).admit(bytes.len())?;
        // A module that makes the compiler panic fails in its trial. This is for what differs here in spite
        // of it.
        let compile = AssertUnwindSafe(|| self.kind.compile(&self.engine, bytes, origin));
        let compiled = without_abort(|| catch_unwind(compile));
        let code = compiled.unwrap_or_else(|_| Err("the compiler ended".to_owned()))?;
        let made = Ok(code);
        let _evicted = lock(&self.cache).insert(hash, bytes.len(), &made);
        made
    }

    /// Compiles offers until the store is gone.
    fn serve(&self, offers: &Receiver<Offer>) {
        lower_priority();
        for (hash, bytes) in offers {
            let compile = || self.compile(&hash, &bytes, Origin::New);
            let made = verify(&hash, &bytes).and_then(|()| alone(compile));
            if made.is_err() {
                let _evicted = lock(&self.cache).insert(&hash, 0, &made);
            }
            // After its outcome is there.
            lock(&self.offered).remove(&hash);
        }
    }
}

impl<K: Kind> Store<K> {
    /// A store without an engine, which is made with the first module that needs it.
    #[must_use]
    pub fn new(kind: K, setup: Setup) -> Self {
        let Setup { limits, trial, epochs, bounds, folder } = setup;
        let engine = LazyEngine::new(limits, trial, epochs);
        let cache = Mutex::new(Cache::new(bounds));
        Store {
            shared: Arc::new(Shared { kind, engine, cache, offered: Mutex::default() }),
            folder,
            offers: Mutex::default(),
            named: Mutex::default(),
            came: AtomicBool::default(),
        }
    }

    /// Checks, compiles and stores a module, in the background. Takes milliseconds to seconds.
    ///
    /// # Errors
    /// What is wrong with the module, or why it cannot be stored.
    pub fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String> {
        let folder = self.folder.as_ref().ok_or("modules are not stored here")?;
        if folder.has(hash) && self.cached(hash).is_some() {
            return Ok(());
        }
        folder.put(hash, bytes, || {
            in_background(|| self.shared.compile(hash, bytes, Origin::New).map(drop))?
        })?;
        self.came.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a module that is compiled.
    #[must_use]
    pub fn cached(&self, hash: &str) -> Option<Arc<K::Code>> {
        self.shared.cached(hash)
    }

    /// Returns a module: compiled before, or now, on the calling thread, from the folder.
    ///
    /// # Errors
    /// It is not here, or is no module; of an offered one, why it was refused.
    pub fn get(&self, hash: &str) -> Compiled<K> {
        let known = lock(&self.shared.cache).get(hash);
        match (known, &self.folder) {
            (Some(Ok(code)), _) => Ok(code),
            (_, Some(folder)) => self.shared.compile(hash, &folder.load(hash)?, Origin::Stored),
            (Some(refused), None) => refused,
            (None, None) => Err(format!("module {hash} was not sent to this host; do the releases match?")),
        }
    }

    /// Returns the module of bytes that the caller has, compiled on the calling thread, which has a low
    /// priority, unless it is compiled already.
    ///
    /// # Errors
    /// The bytes have another hash, there is no room, or what is wrong with the module.
    pub fn compile(&self, hash: &str, bytes: &[u8]) -> Compiled<K> {
        verify(hash, bytes)?;
        // Another thread may have compiled it meanwhile.
        alone(|| match self.cached(hash) {
            Some(code) => Ok(code),
            None => self.shared.compile(hash, bytes, Origin::New),
        })
    }

    /// Has a thread compile a module. The caller does not wait; [`get`](Self::get) returns the outcome once
    /// the module [is ready](Self::is_ready).
    pub fn offer(&self, hash: &str, bytes: Vec<u8>) {
        if self.cached(hash).is_some() || !lock(&self.shared.offered).insert(hash.to_owned()) {
            return;
        }
        lock(&self.shared.cache).remove(hash);
        let full = |_| format!("{WAITING_MAX} modules wait to be compiled already");
        let sent = self.offers().and_then(|offers| offers.try_send((hash.to_owned(), bytes)).map_err(full));
        if let Err(error) = sent {
            let _evicted = lock(&self.shared.cache).insert(hash, 0, &Err(error));
            lock(&self.shared.offered).remove(hash);
        }
    }

    /// Returns whether an offered module has its outcome.
    #[must_use]
    pub fn is_ready(&self, hash: &str) -> bool {
        !lock(&self.shared.offered).contains(hash)
    }

    /// Returns where offers go; starts the thread that compiles them.
    fn offers(&self) -> Result<SyncSender<Offer>, String> {
        let mut offers = lock(&self.offers);
        if let Some(offers) = &*offers {
            return Ok(offers.clone());
        }
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let shared = self.shared.clone();
        std::thread::Builder::new()
            .name("module-compiler".to_owned())
            .spawn(move || shared.serve(&receiver))
            .map_err(|error| format!("there is no thread that compiles modules: {error}"))?;
        Ok(offers.insert(sender).clone())
    }

    /// Returns whether a module was stored since the last call: policies that were refused without it are to
    /// be checked again.
    pub fn have_come(&self) -> bool {
        self.came.swap(false, Ordering::Relaxed)
    }

    /// Records which modules the active policy names.
    pub fn set_named(&self, modules: impl Iterator<Item = String>) {
        *lock(&self.named) = modules.collect();
    }

    /// Returns the modules in the folder, each with its length.
    #[must_use]
    pub fn stored(&self) -> Vec<(String, u64)> {
        self.folder.as_ref().map(ModuleFolder::stored).unwrap_or_default()
    }

    /// Returns the bytes of a stored module; `None`: it is not here.
    #[must_use]
    pub fn bytes(&self, hash: &str) -> Option<Vec<u8>> {
        self.folder.as_ref()?.load(hash).ok()
    }

    /// Removes a stored module that the policy does not name, and that does not run as `runs` reports.
    ///
    /// # Errors
    /// It is not here, is needed, or its file stays.
    pub fn remove(&self, hash: &str, runs: impl FnOnce() -> bool) -> Result<(), RemoveError> {
        let is_used = || lock(&self.named).contains(hash) || runs();
        self.folder.as_ref().ok_or(RemoveError::Unknown)?.remove(hash, is_used)?;
        lock(&self.shared.cache).remove(hash);
        Ok(())
    }

    /// Returns what the instances of the store's modules use.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.shared.engine.made().map(|engine| engine.usage()).unwrap_or_default()
    }
}

impl<K: Kind> Debug for Store<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let modules = lock(&self.shared.cache).len();
        f.debug_struct("Store")
            .field("kind", &self.shared.kind)
            .field("modules", &modules)
            .finish_non_exhaustive()
    }
}

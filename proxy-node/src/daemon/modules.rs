//! Modules of supplied handlers: files in one folder, checked and compiled, and what became of the stages
//! that run them.
//!
//! ```text
//!  STATE_DIR/handlers/9f86…15b0.wasm    named by the SHA-256 of their bytes; `cspctl handler put` brings them
//! ```
//! The stores of `csp-modules` compile and keep them: one for operators' modules, in the folder, and one for
//! clients'. Here is what is particular to handlers of messages: what a policy's stages need, what makes
//! them, and what became of them.

mod accepted;
mod clients;
mod running;

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use csp_api::events::What;
use csp_api::handlers::{Handlers, MODULE_LEN_MAX, SuppliedStage};
use csp_daemon::trial::Trial;
use csp_handlers::{CONTEXTS_MAX, Handler};
use csp_messages::{FormatId, StageMaker, StageObject, StageSupply, check_stage};
use csp_modules::{Bounds, Epochs, ModuleFolder, RemoveError, Setup, Store};
use csp_planner::Planned;
use csp_policy::{PathStage, Policy, SuppliedHandler};
use csp_sandbox::{Described, Fields, Limits, Module, SbeFields, Sha256, Supplied};
use csp_services::ChannelFormats;
use csp_wire::context::OBJECT_LEN_MAX;

use running::{Placed, Running};

/// Outputs of the stages of a policy's paths: each is followed by the next one.
const OUTPUTS: usize = 1;
/// The modules of a proxy.
#[derive(Debug)]
pub struct Modules {
    /// Those that operators have brought.
    store: Store<csp_modules::Handlers>,
    /// Those that clients have brought.
    clients: Store<csp_modules::Handlers>,
    epochs: Arc<Epochs>,
    /// Where handlers go that are over; `None`: there was none yet.
    over: Mutex<Option<Sender<Supplied>>>,
    running: Mutex<Vec<Running>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    /// The modules of a folder, compiled without a trial.
    #[cfg(test)]
    pub fn new(folder: PathBuf) -> Arc<Self> {
        Self::with_trial(folder, None)
    }

    /// The modules of a folder, which need not exist. Files are read when a policy names them.
    pub fn with_trial(folder: PathBuf, trial: Option<Trial>) -> Arc<Self> {
        let commands = ("cspctl handler put FILE", "cspctl handler remove MODULE");
        let folder = Some(ModuleFolder::new(folder, MODULE_LEN_MAX, commands));
        let (epochs, limits) =
            (Arc::<Epochs>::default(), Limits { module_len_max: MODULE_LEN_MAX, ..Limits::default() });
        let clients = clients::setup(limits, trial.clone(), epochs.clone());
        let bounds = Bounds::of_folder(MODULE_LEN_MAX);
        let own = Setup { limits, trial, epochs: epochs.clone(), bounds, folder };
        Arc::new(Modules {
            store: Store::new(csp_modules::Handlers, own),
            clients: Store::new(csp_modules::Handlers, clients),
            epochs,
            over: Mutex::default(),
            running: Mutex::default(),
        })
    }

    /// Returns where handlers go that are over: to the thread of the epochs, which releases them.
    fn over(&self) -> Result<Sender<Supplied>, String> {
        let mut over = lock(&self.over);
        match &*over {
            Some(over) => Ok(over.clone()),
            None => Ok(over.insert(self.epochs.releases()?).clone()),
        }
    }

    /// Returns how many instances have not been released.
    #[cfg(test)]
    pub fn instances(&self) -> u64 {
        self.store.usage().instances
    }

    /// Shows a stage for as long as it lives.
    fn show(&self, stage: Running) {
        let mut running = lock(&self.running);
        running.retain(Running::is_alive);
        running.push(stage);
    }

    /// Checks, compiles and stores a module, in the background. Takes milliseconds to seconds.
    ///
    /// # Errors
    /// What is wrong with the module, or why it cannot be stored.
    pub fn put(&self, hash: &str, bytes: &[u8]) -> Result<(), String> {
        self.store.put(hash, bytes)
    }

    /// Returns a module, compiled now, on the calling thread, if this process has not had it yet.
    ///
    /// # Errors
    /// It is not here, or is no module any more.
    pub fn get(&self, hash: &str) -> Result<Arc<Module>, String> {
        self.store.get(hash)
    }

    /// Returns the modules in the folder, each with its length.
    pub fn stored(&self) -> Vec<(String, u64)> {
        self.store.stored()
    }

    /// Checks that the handlers of a policy run here: their modules are there, start, and accept the
    /// parameters of the paths and the formats of paths of single ones.
    ///
    /// # Errors
    /// Everything that does not, in one text.
    pub fn check(&self, planned: &Planned) -> Result<(), String> {
        let (policy, mut wrong) = (planned.policy(), Vec::new());
        if policy.handlers.is_empty() {
            return Ok(());
        }
        for handler in &policy.handlers {
            match self.get(&handler.module) {
                Err(error) => wrong.push(format!("handler {}: {error}", handler.name)),
                Ok(module) => {
                    let stages = policy.channels.iter().enumerate().flat_map(|(at, channel)| {
                        channel.stages().into_iter().map(move |stage| (at, channel, stage))
                    });
                    for (at, channel, stage) in stages.filter(|(.., stage)| stage.handler == handler.name) {
                        let place = channel
                            .stages()
                            .iter()
                            .position(|known| std::ptr::eq(*known, stage))
                            .unwrap_or(0);
                        // Nothing is hashed by what is only checked.
                        let known = &planned.catalogue().channels[at];
                        let formats = super::policy::channel_formats(policy, channel, known, 0);
                        let fields = fields(formats.as_ref());
                        let tried = Supplied::new(&module, fields, handler.on_stop, &stage.parameters);
                        let elsewhere = match stage.may_be_elsewhere() {
                            true => check_elsewhere(&module, formats.as_ref()),
                            false => Ok(()),
                        };
                        let is_remote = stage.context_number().is_some_and(|number| number >= CONTEXTS_MAX);
                        let tried = tried.map_err(|error| error.to_string()).and_then(|made| {
                            let fits = check_stage((place, &handler.name), OUTPUTS, &made.needs(), is_remote);
                            fits.map_err(|error| error.to_string())
                        });
                        if let Err(error) = tried.and(elsewhere) {
                            let channel = &channel.name;
                            wrong.push(format!("handler {} on channel {channel}: {error}", handler.name));
                        }
                    }
                }
            }
        }
        self.check_formats(planned, &mut wrong);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Returns what makes a supplied handler for a stage of a channel, in contexts elsewhere too if the stage
    /// may run there.
    pub fn maker(
        self: &Arc<Self>,
        handler: &SuppliedHandler,
        channel: &str,
        stage: &PathStage,
        formats: Option<&ChannelFormats>,
    ) -> StageMaker {
        let parameters = stage.parameters.as_str();
        let key = format!("{} {:?} {:?}", handler.module, handler.on_stop, formats.map(ChannelFormats::key));
        // Compiled on this thread, not on the worker's, if the policy was not checked before: as after a
        // start without etcd.
        let module = self.get(&handler.module);
        if let Err(error) = &module {
            tracing::error!(handler = handler.name, channel, error, "a handler cannot run");
        }
        let over = self.over();
        let elsewhere = module.as_ref().ok().filter(|_| stage.may_be_elsewhere()).and_then(|module| {
            let made = Supplied::new(module, fields(formats), handler.on_stop, parameters).ok()?;
            Some((self.supply(handler, formats)?, Described::of(&made)))
        });
        let names = [channel, &handler.name, &handler.module].map(str::to_owned);
        let modules = self.clone();
        let maker = self.maker_here((module, over), handler, (channel, parameters), (key, formats));
        match elsewhere {
            None => maker,
            Some((supply, described)) => maker.elsewhere(supply, move || {
                let made = described.another();
                modules.show(Running::elsewhere(&made, &names));
                Some(Box::new(made) as Box<dyn Handler>)
            }),
        }
    }

    /// Returns what a context elsewhere needs to make a handler.
    fn supply(&self, handler: &SuppliedHandler, formats: Option<&ChannelFormats>) -> Option<StageSupply> {
        let object = |bytes: Vec<u8>| StageObject { hash: Sha256::of(&bytes).0, bytes: bytes.into() };
        Some(StageSupply {
            module: object(self.bytes(&handler.module)?),
            formats: formats.map(|formats| object(format_bytes(formats))),
            on_stop: handler.on_stop,
        })
    }

    /// Returns what makes the handler in contexts of the worker.
    fn maker_here(
        self: &Arc<Self>,
        (module, over): (Result<Arc<Module>, String>, Result<Sender<Supplied>, String>),
        handler: &SuppliedHandler,
        (channel, parameters): (&str, &str),
        (key, formats): (String, Option<&ChannelFormats>),
    ) -> StageMaker {
        let (modules, handler, fields) = (self.clone(), handler.clone(), fields(formats));
        let (channel, parameters) = (channel.to_owned(), parameters.to_owned());
        StageMaker::new(&key, move || {
            let module = module.as_ref().ok()?;
            let made = Supplied::new(module, fields.clone(), handler.on_stop, &parameters).ok()?;
            let over = over.as_ref().ok()?.clone();
            let (made, shown) = Placed::new(made, over, [&channel, &handler.name, &handler.module]);
            modules.show(shown);
            Some(Box::new(made) as Box<dyn Handler>)
        })
    }

    /// Returns the stages that run modules.
    pub fn describe_stages(&self) -> Vec<SuppliedStage> {
        lock(&self.running).iter().filter_map(Running::describe).collect()
    }

    /// Returns which modules were stopped since the last call.
    pub fn stops(&self) -> Vec<What> {
        lock(&self.running).iter_mut().filter_map(Running::stop).collect()
    }

    /// Returns whether a module has come since the last call: policies that were refused without it are to be
    /// checked again.
    pub fn have_come(&self) -> bool {
        self.store.have_come()
    }

    /// Records which modules the active policy names.
    pub fn set_active(&self, policy: &Policy) {
        self.store.set_named(policy.handlers.iter().map(|handler| handler.module.clone()));
    }

    /// Returns the bytes of a module; `None`: it is not here.
    pub fn bytes(&self, hash: &str) -> Option<Vec<u8>> {
        self.store.bytes(hash)
    }

    /// Removes a module that nothing names or runs.
    ///
    /// # Errors
    /// It is not here, is needed, or its file stays.
    pub fn remove(&self, hash: &str) -> Result<(), RemoveError> {
        let is_running = |stage: &Running| stage.is_alive() && stage.module == hash;
        self.store.remove(hash, || lock(&self.running).iter().any(is_running))
    }

    /// Returns what `/v1/handlers` shows.
    pub fn describe(&self) -> Handlers {
        let module = |(module, len): (String, u64)| csp_api::handlers::Module { module: module.into(), len };
        Handlers {
            modules: self.stored().into_iter().map(module).collect(),
            stages: self.describe_stages(),
            ..Handlers::default()
        }
    }
}

/// Where fields lie in messages of a channel.
fn fields(formats: Option<&ChannelFormats>) -> Arc<dyn Fields> {
    let mut fields = SbeFields::default();
    for (id, format) in formats.iter().flat_map(|formats| formats.set().all()) {
        fields.add(id, &format.schema, &format.name);
    }
    Arc::new(fields)
}

/// Returns the formats of a channel as a context elsewhere gets them, with those that operators derive.
fn format_bytes(formats: &ChannelFormats) -> Vec<u8> {
    let derived = formats.set().derived();
    let derived =
        derived.iter().filter_map(|(id, format)| Some((*id, &*format.name, format.xml.as_deref()?)));
    let own = (1..).map(FormatId).zip(formats.texts());
    let own = own.map(|(id, text)| (id, text.message.as_str(), text.schema.as_str()));
    csp_sandbox::encode_formats(own.chain(derived))
}

/// Checks that a context elsewhere can run a module with these formats.
fn check_elsewhere(module: &Module, formats: Option<&ChannelFormats>) -> Result<(), String> {
    if module.declaration().period_ms > 0 {
        return Err("it has a timer, which only contexts of the proxy worker run: c0 to c7".to_owned());
    }
    match formats.map_or(0, |formats| format_bytes(formats).len()) {
        len if len > OBJECT_LEN_MAX => Err(format!(
            "the channel's formats have {len} bytes, and a context elsewhere gets at most {OBJECT_LEN_MAX}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use csp_types::options::OnStop;

    use super::*;

    /// Emits each message; refuses every parameter but none.
    const FORWARD: &str = r#"(module
        (import "csp" "emit_same" (func $emit (param i32) (result i32)))
        (memory (export "memory") 1 1)
        (func (export "csp_abi") (result i32) i32.const 1)
        (func (export "configure") (param i32) (result i32) local.get 0)
        (func (export "on_message") (param i32 i32 i32) (result i32) (call $emit (i32.const 0))))"#;

    #[test]
    fn a_module_is_stored_once_it_was_checked_and_a_policy_finds_it_after_a_restart() {
        let folder = std::env::temp_dir().join(format!("csp-modules-{}", std::process::id()));
        let (bytes, modules) = (wat::parse_str(FORWARD).unwrap(), Modules::new(folder.clone()));
        let hash = Sha256::of(&bytes).to_string();
        let policy = |parameters: &str| {
            let text = format!(
                "apiVersion: csp/v1\nhandlers: [{{name: mine, module: {hash}}}]\nchannels:\n  - {{name: ticks, vip: 10.0.0.1, \
                 port: 5556, path: [{{handler: mine, parameters: \"{parameters}\"}}]}}\n"
            );
            Planned::parse_yaml(&text, "p.yaml").unwrap()
        };
        let error = modules.check(&policy("")).unwrap_err();
        assert!(
            error.starts_with("handler mine: module ") && error.ends_with("`cspctl handler put FILE`"),
            "{error}"
        );
        let error = modules.put(&hash, b"not these").unwrap_err();
        assert!(error.starts_with("the bytes have the SHA-256 "), "{error}");
        let other = Sha256::of(b"\0asm").to_string();
        assert!(modules.put(&other, b"\0asm").unwrap_err().starts_with("the module is not valid"));
        assert_eq!(modules.stored(), [], "nothing wrong is kept");
        assert!(!modules.have_come());
        modules.put(&hash, &bytes).unwrap();
        assert!(modules.have_come() && !modules.have_come());
        let again = Modules::new(folder.clone());
        assert_eq!(again.check(&policy("")), Ok(()));
        let refused = again.check(&policy("x")).unwrap_err();
        assert!(refused.starts_with("handler mine on channel ticks: "), "{refused}");
        std::fs::write(folder.join(format!("{hash}.wasm")), &bytes[..8]).unwrap();
        let error = Modules::new(folder.clone()).check(&policy("")).unwrap_err();
        assert!(error.contains("its bytes have the SHA-256"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_stage_is_shown_while_it_lives() {
        let folder = std::env::temp_dir().join(format!("csp-modules-shown-{}", std::process::id()));
        let (bytes, modules) = (wat::parse_str(FORWARD).unwrap(), Modules::new(folder.clone()));
        let module = Sha256::of(&bytes).to_string();
        modules.put(&module, &bytes).unwrap();
        let handler = SuppliedHandler { name: "mine".to_owned(), module, on_stop: OnStop::End };
        let stage =
            PathStage { handler: "mine".to_owned(), context: "c0".to_owned(), ..PathStage::default() };
        let maker = modules.maker(&handler, "ticks", &stage, None);
        assert_eq!(modules.describe().stages, []);
        let made = maker.make().unwrap().0;
        let shown = modules.describe();
        assert_eq!((&*shown.stages[0].channel, &*shown.stages[0].state), ("ticks", "running"));
        assert_eq!(modules.remove(&handler.module), Err(RemoveError::Used), "a stage runs it");
        drop(made);
        assert_eq!(modules.describe().stages, []);
        let named = format!("apiVersion: csp/v1\nhandlers: [{{name: mine, module: {}}}]\n", handler.module);
        modules.set_active(&Policy::parse_yaml(&named, "p.yaml").unwrap());
        assert_eq!(modules.remove(&handler.module), Err(RemoveError::Used), "the active policy names it");
        modules.set_active(&Policy::parse_yaml("apiVersion: csp/v1\n", "p.yaml").unwrap());
        assert_eq!((modules.bytes(&handler.module), modules.remove(&handler.module)), (Some(bytes), Ok(())));
        assert_eq!(modules.remove(&handler.module), Err(RemoveError::Unknown));
        assert_eq!((modules.bytes(&handler.module), modules.stored()), (None, vec![]));
        assert_eq!(modules.remove("../policy"), Err(RemoveError::Unknown));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

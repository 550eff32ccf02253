//! Engines, made when the first module comes, and the one thread of a process that ends their epochs.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use csp_daemon::trial::Trial;
use csp_sandbox::{Engine, Limits};

use crate::lock;

/// Time between two epochs of an engine: the resolution with which the time of a call is bounded, in addition
/// to its fuel.
pub const EPOCH: Duration = Duration::from_millis(5);

/// What the thread does in each epoch.
type Task = Box<dyn FnMut() + Send>;

/// The thread that ends the epochs of a process's engines, and drops what data workers leave to it. It starts
/// with the first engine, and ends when the last owner of `Epochs` is gone.
#[derive(Default)]
pub struct Epochs {
    tasks: Mutex<Vec<Task>>,
}

impl Epochs {
    fn add(self: &Arc<Self>, task: Task) -> Result<(), String> {
        let mut tasks = lock(&self.tasks);
        if tasks.is_empty() {
            let epochs = Arc::downgrade(self);
            std::thread::Builder::new()
                .name("module-epochs".to_owned())
                .spawn(move || end_epochs(&epochs))
                .map_err(|error| format!("there is no thread that bounds the time of modules: {error}"))?;
        }
        tasks.push(task);
        Ok(())
    }

    /// Returns where values go that the thread is to drop, at the end of an epoch: releasing an instance
    /// takes tens of microseconds.
    ///
    /// # Errors
    /// There is no thread.
    pub fn releases<T: Send + 'static>(self: &Arc<Self>) -> Result<Sender<T>, String> {
        let (over, values) = channel();
        self.add(Box::new(move || values.try_iter().for_each(drop)))?;
        Ok(over)
    }
}

fn end_epochs(epochs: &Weak<Epochs>) {
    loop {
        std::thread::sleep(EPOCH);
        let Some(epochs) = epochs.upgrade() else { return };
        lock(&epochs.tasks).iter_mut().for_each(|task| task());
    }
}

impl std::fmt::Debug for Epochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epochs").field("tasks", &lock(&self.tasks).len()).finish()
    }
}

/// An engine that is made when it is needed: a daemon without modules has neither its address space nor the
/// thread.
#[derive(Debug)]
pub struct LazyEngine {
    limits: Limits,
    /// Where modules are compiled first; `None`: nowhere.
    trial: Option<Trial>,
    epochs: Arc<Epochs>,
    made: Mutex<Option<Engine>>,
}

impl LazyEngine {
    pub(crate) fn new(limits: Limits, trial: Option<Trial>, epochs: Arc<Epochs>) -> Self {
        LazyEngine { limits, trial, epochs, made: Mutex::default() }
    }

    /// Returns the engine.
    ///
    /// # Errors
    /// Compiled code cannot run here, or there is no thread for its epochs; contains the reason.
    pub fn get(&self) -> Result<Engine, String> {
        let mut made = lock(&self.made);
        if let Some(engine) = &*made {
            return Ok(engine.clone());
        }
        let engine = Engine::with_trial(self.limits, self.trial.as_ref().map(Trial::shared))
            .map_err(|error| error.to_string())?;
        let ticking = engine.clone();
        self.epochs.add(Box::new(move || ticking.tick()))?;
        Ok(made.insert(engine).clone())
    }

    /// Returns the engine if it was made.
    #[must_use]
    pub fn made(&self) -> Option<Engine> {
        lock(&self.made).clone()
    }
}

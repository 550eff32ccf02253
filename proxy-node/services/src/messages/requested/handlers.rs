//! Handlers that programs bring: the policy's rules, the requests, and the jobs that check and compile
//! modules on another thread.
//!
//! ```text
//!  REQ {"handler": …}, module ─▶ allowed? ─▶ pending ─▶ HandlerJob ─▶ another thread checks, compiles and starts the module
//!                                               ▲                                     │
//!                                     its asker has gone                         MadeHandler
//!                                                                                     ▼
//!                     answer ◀── a place of its own, or in the place of the former one between two messages
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use csp_messages::{QueueLimits, StageMaker};
use csp_types::options::OnStop;
use csp_types::{Duration, FlowLabel, Instant};
use serde_json::{Map, Value};

use super::{QueryRefused, RequestPlace, Requester, refused};
use crate::messages::formats::ChannelFormats;
use crate::messages::keys::ChannelKeys;

/// Largest number of unanswered requests for handlers of a worker.
const PENDING_MAX: usize = 16;
/// Largest number of bytes of all pending modules.
const PENDING_BYTES_MAX: usize = 4 << 20;
/// How long a request waits for its handler to be made.
const PENDING_TIME: Duration = Duration::from_secs(60);
/// Longest name of a handler.
const NAME_LEN_MAX: usize = 63;

/// Bounds of a handler that a program brings. When a policy changes the bounds, handlers made under the
/// former ones end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerBounds {
    /// Longest module in bytes.
    pub module_len_max: usize,
    /// Bytes of memory reserved for it.
    pub memory_max: u64,
    /// Fuel of a call.
    pub fuel_max: u64,
    /// Action after the module was stopped.
    pub on_stop: OnStop,
    /// Number of the context that runs it.
    pub context: u16,
    /// Bounds of the queue before the handler.
    pub queue: QueueLimits,
    /// The formats of the channel that it reads.
    pub formats: Option<ChannelFormats>,
}

/// Rules for the handlers that programs may bring to a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerRules {
    /// Most handlers of one requester.
    pub each: usize,
    /// On a channel without keys, everybody may.
    pub anyone: bool,
    /// The bounds of each.
    pub bounds: HandlerBounds,
}

impl HandlerRules {
    /// Checks that a requester may bring handlers.
    pub(super) fn check(&self, keys: Option<&ChannelKeys>, by: Requester) -> Result<(), QueryRefused> {
        match (keys, by) {
            (None, _) if self.anyone => Ok(()),
            (None, _) => {
                Err(refused("the channel has no keys, and its `requests.handlers` do not say `anyone: true`"))
            }
            (Some(keys), Requester::Key(key)) if keys.clients.get(&key).unwrap_or(&keys.any).supply => Ok(()),
            (Some(keys), Requester::Address(_)) if keys.any.supply => Ok(()),
            (Some(_), _) => Err(refused("the key has not the right `supply`")),
        }
    }
}

/// A job for the thread that makes handlers.
#[derive(Debug)]
pub struct HandlerJob {
    /// Identifies the request in the answer.
    pub ticket: u64,
    /// Name of the channel of the handler's output.
    pub channel: String,
    /// Name of the channel that was asked. The handler receives its messages.
    pub of: String,
    /// The requester: a public key, or an address.
    pub by: String,
    /// The requester's name for it.
    pub name: String,
    /// The SHA-256 of the module in hex digits, if the request has it.
    pub hash: Option<String>,
    /// The module, if the request has it. The request has the hash or the module.
    pub module: Option<Vec<u8>>,
    /// Its parameters.
    pub parameters: String,
    /// Its bounds.
    pub bounds: HandlerBounds,
    /// How long its channel exists without subscribers.
    pub lease: Duration,
    pub(super) pending: Weak<()>,
    pub(super) _load: Load,
}

/// Resources that jobs occupy until they are dropped, whether or not their askers still wait.
#[derive(Debug, Default)]
struct Loads {
    jobs: AtomicUsize,
    bytes: AtomicUsize,
}

/// The part of one job.
#[derive(Debug)]
pub(in crate::messages) struct Load {
    of: Arc<Loads>,
    bytes: usize,
}

impl Load {
    fn new(of: &Arc<Loads>, bytes: usize) -> Self {
        of.jobs.fetch_add(1, Ordering::Relaxed);
        of.bytes.fetch_add(bytes, Ordering::Relaxed);
        Load { of: of.clone(), bytes }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.of.jobs.fetch_sub(1, Ordering::Relaxed);
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl HandlerJob {
    /// Returns whether its asker still waits for it.
    pub fn is_wanted(&self) -> bool {
        self.pending.strong_count() > 0
    }
}

/// A handler that was made.
#[derive(Clone, Debug)]
pub struct MadeHandler {
    /// Gives it to the path, once.
    pub maker: StageMaker,
    /// The SHA-256 of its module in hex digits.
    pub module: String,
}

/// A handler that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Brought {
    pub name: String,
    pub module: String,
    pub parameters: String,
    pub bounds: HandlerBounds,
}

impl fmt::Display for Brought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handler {}, module {}", self.name, self.module.get(..12).unwrap_or(&self.module))
    }
}

/// A request of a program that brings a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlerAsked {
    /// The program's name for it.
    pub name: String,
    /// The SHA-256 of its module in hex digits; `None`: the module follows the request.
    pub hash: Option<String>,
    /// Its parameters.
    pub parameters: String,
}

impl HandlerAsked {
    /// Reads `{"handler": {"name": NAME, "module": SHA-256, "parameters": TEXT}}`.
    pub(super) fn read(request: &Map<String, Value>) -> Result<Self, QueryRefused> {
        let form = || {
            refused(
                "`handler` is an object: {\"name\": NAME, \"module\": SHA-256, \"parameters\": TEXT}; the module's bytes are a further frame",
            )
        };
        let object = request.get("handler").and_then(Value::as_object).ok_or_else(form)?;
        let is_known = |key: &String| matches!(&key[..], "name" | "module" | "parameters");
        if request.len() > 1 || !object.keys().all(is_known) {
            return Err(form());
        }
        let text =
            |name: &str| object.get(name).map(|text| text.as_str().map(str::to_owned).ok_or_else(form));
        let name = text("name").ok_or_else(form)??;
        let is_plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(is_plain) {
            return Err(refused(format!("a handler's name has 1 to {NAME_LEN_MAX} of a-z 0-9 -")));
        }
        let hash = text("module").transpose()?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if hash.as_ref().is_some_and(|hash| hash.len() != 64 || !hash.bytes().all(is_digit)) {
            return Err(refused("`module` is a SHA-256 in 64 hex digits"));
        }
        Ok(HandlerAsked { name, hash, parameters: text("parameters").transpose()?.unwrap_or_default() })
    }
}

/// A request whose handler is being made.
#[derive(Debug)]
pub(in crate::messages) struct Pending {
    pub ticket: u64,
    pub label: FlowLabel,
    pub of: u32,
    pub by: Requester,
    pub asked: HandlerAsked,
    pub place: RequestPlace,
    pub bounds: HandlerBounds,
    /// Bytes of its module.
    pub len: usize,
    pub since: Instant,
    _alive: Arc<()>,
}

/// The requests for handlers that are not answered yet.
#[derive(Debug, Default)]
pub(in crate::messages) struct Supply {
    pending: Vec<Pending>,
    /// Jobs that were not yet passed to the thread that makes handlers.
    jobs: VecDeque<HandlerJob>,
    /// Resources of all jobs, including those that were passed on.
    loads: Arc<Loads>,
    tickets: u64,
}

impl Supply {
    /// Checks that a requester may have one more pending request, with `len` bytes.
    pub fn check(&self, by: Requester, len: usize) -> Result<(), QueryRefused> {
        if self.pending.iter().any(|pending| pending.by == by) {
            return Err(refused("a request of the requester for a handler is not answered yet; wait for it"));
        }
        // A job whose asker has gone holds its bytes until it is its turn.
        let bytes = self.pending.iter().map(|pending| pending.len).sum::<usize>();
        let bytes = bytes.max(self.loads.bytes.load(Ordering::Relaxed));
        let waiting = self.pending.len().max(self.loads.jobs.load(Ordering::Relaxed));
        if waiting >= PENDING_MAX || bytes + len > PENDING_BYTES_MAX {
            return Err(refused(format!(
                "{waiting} requests for handlers with {bytes} bytes wait, and this one has {len}: there may be {PENDING_MAX} with \
                 {PENDING_BYTES_MAX} bytes; ask again"
            )));
        }
        Ok(())
    }

    /// Adds a request; returns its ticket.
    pub fn add(
        &mut self,
        pending: impl FnOnce(u64, Arc<()>) -> Pending,
        len: usize,
        job: impl FnOnce(u64, Weak<()>, Load) -> HandlerJob,
    ) -> u64 {
        self.tickets += 1;
        let alive = Arc::new(());
        let load = Load::new(&self.loads, len);
        self.jobs.push_back(job(self.tickets, Arc::downgrade(&alive), load));
        self.pending.push(pending(self.tickets, alive));
        self.tickets
    }

    /// Removes a request; `None`: its asker has left.
    pub fn take(&mut self, ticket: u64) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.ticket == ticket)?;
        Some(self.pending.remove(at))
    }

    /// Removes the requests of a connection that has ended.
    pub fn gone(&mut self, label: FlowLabel) {
        if self.pending.iter().any(|pending| pending.label == label) {
            self.pending.retain(|pending| pending.label != label);
            self.jobs.retain(HandlerJob::is_wanted);
        }
    }

    /// Returns whether a place is reserved for a request.
    pub fn keeps(&self, place: u32) -> bool {
        self.pending.iter().any(|pending| pending.place.spec.number == place)
    }

    /// Returns how many requests of a channel wait.
    pub fn waiting(&self, of: u32) -> usize {
        self.pending.iter().filter(|pending| pending.of == of).count()
    }

    /// Returns a request that has waited for too long.
    pub fn overdue(&self, now: Instant) -> Option<u64> {
        let is_over = |pending: &&Pending| pending.since + PENDING_TIME <= now;
        self.pending.iter().find(is_over).map(|pending| pending.ticket)
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        self.pending.iter().map(|pending| pending.since + PENDING_TIME).min()
    }

    pub fn next_job(&mut self) -> Option<HandlerJob> {
        self.jobs.pop_front()
    }
}

impl Pending {
    pub fn new(
        (ticket, alive): (u64, Arc<()>),
        (label, of, by): (FlowLabel, u32, Requester),
        (asked, len): (HandlerAsked, usize),
        (place, bounds): (RequestPlace, HandlerBounds),
        since: Instant,
    ) -> Self {
        Pending { ticket, label, of, by, asked, place, bounds, len, since, _alive: alive }
    }
}

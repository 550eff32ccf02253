//! Supplied handlers in the channels' paths, and their swaps while traffic runs and nodes fail: what a seed
//! determines, and the modules.
//!
//! ```text
//!   messages ─▶ [stamp, version n] ─▶ [pass] … ─▶ receivers      a stamp: letter of the module, count of messages, version
//!   swap:       other code | other parameters (version n + 1) | more or fewer stages | parameters that are refused
//! ```
//! `stamp` adds a frame to every message. Its count is state: it is kept in the block at the host, or handed
//! over from memory to memory.

use std::sync::{Arc, OnceLock};

use csp_handlers::Handler;
use csp_messages::{QueueLimits, StageMaker};
use csp_sandbox::{Engine, Limits, Module, NoFields, OnStop, Supplied};
use csp_services::{ChannelPath, PathStage};
use csp_types::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::scenario::MESSAGE_LEN_MAX;

const SEED: u64 = 0x7377_6170_7377_6170;
/// Bytes of the frame that `stamp` adds: letter, three zeros, count, version.
pub(super) const STAMP_LEN: usize = 16;
/// Handlers behind `stamp`, at most.
const PASSES_MAX: usize = 2;
const CONTEXTS: u16 = 3;
/// Instances at a time: three of each path that there may be, of two runs.
const INSTANCES_MAX: u32 = 512;
const PAGE: u64 = 64 << 10;

/// Handlers of a run's channels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandlersPlan {
    /// What decides what is swapped.
    pub seed: u64,
    /// By channel: its path, if it has one.
    pub paths: Vec<Option<PathPlan>>,
    /// When a channel's path is changed, relative to the senders' start, and the channel's index; sorted.
    pub swaps: Vec<(Duration, usize)>,
}

/// The path of a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPlan {
    /// The count lies in the module's memory and is handed over; else it lies in the block at the host and is
    /// kept.
    pub in_memory: bool,
    /// Which of two modules stamps.
    pub code: usize,
    /// The version that it stamps.
    pub version: u32,
    /// Contexts of its stages: that of `stamp`, then those of handlers that emit every message as it is.
    pub contexts: Vec<u16>,
    /// Marks of the stages' queues.
    pub queue: QueueLimits,
}

impl HandlersPlan {
    /// Draws the handlers of so many channels and `count` swaps. `late`: when peers come after the incident,
    /// if there is one.
    pub(super) fn of(seed: u64, channels: usize, count: usize, late: Option<Duration>) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(seed ^ SEED);
        let mut paths: Vec<_> =
            (0..channels).map(|_| (random.random_range(0..4) > 0).then(|| PathPlan::draw(random))).collect();
        if paths.iter().all(Option::is_none) {
            paths[0] = Some(PathPlan::draw(random));
        }
        let with: Vec<usize> = (0..channels).filter(|at| paths[*at].is_some()).collect();
        let micros = |random: &mut ChaCha8Rng, most| Duration::from_micros(random.random_range(0..most));
        let swap = |_| {
            let at = match (random.random_range(0..10), late) {
                // Receivers may be deaf for some seconds.
                (0, _) => micros(random, 5_000_000),
                (1..3, Some(late)) => late + micros(random, 150_000),
                _ => micros(random, 400_000),
            };
            (at, with[random.random_range(0..with.len())])
        };
        let mut swaps: Vec<_> = (0..count).map(swap).collect();
        swaps.sort_unstable();
        HandlersPlan { seed, paths, swaps }
    }
}

impl PathPlan {
    fn draw(random: &mut ChaCha8Rng) -> Self {
        let messages = if random.random_range(0..2) == 0 { random.random_range(1..8) } else { 256 };
        PathPlan {
            in_memory: random.random_range(0..2) == 0,
            code: 0,
            version: 1,
            contexts: contexts(random),
            queue: QueueLimits { messages, bytes: 1 << 20, in_flight: 0 },
        }
    }

    /// Returns the path as a policy has it; `parameters` are those of `stamp`.
    pub(super) fn path(&self, number: u32, parameters: &str) -> ChannelPath {
        let modules = modules();
        let stamp = 2 * usize::from(self.in_memory) + self.code;
        let stage = |(at, context): (usize, &u16)| {
            let is_stamp = at == 0;
            let (name, module) = if is_stamp { ("stamp", stamp) } else { ("pass", PASS) };
            let parameters = if is_stamp { parameters } else { "" };
            let (wanted, set) = (modules[module].clone(), parameters.to_owned());
            let make = move || {
                let made = Supplied::new(&wanted, Arc::new(NoFields), OnStop::default(), &set).ok()?;
                Some(Box::new(made) as Box<dyn Handler>)
            };
            PathStage {
                handler: name.to_owned(),
                context: *context,
                parameters: parameters.to_owned(),
                maker: Some(StageMaker::new(&modules[module].sha256().to_string(), make)),
                auto: None,
                outputs: Vec::new(),
            }
        };
        let stages = self.contexts.iter().enumerate().map(stage).collect();
        ChannelPath { queue: Some(self.queue), ..ChannelPath::new(number, stages) }
    }
}

fn contexts(random: &mut ChaCha8Rng) -> Vec<u16> {
    let count = 1 + random.random_range(0..=PASSES_MAX);
    (0..count).map(|_| random.random_range(0..CONTEXTS)).collect()
}

/// The parameters by which `stamp` knows its version.
fn parameters(version: u32) -> String {
    format!("{version:08}")
}

/// What has become of a run's swaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapCounters {
    /// Paths that took another's place.
    pub done: u64,
    /// Of them, those with other code for `stamp`.
    pub code: u64,
    /// Of them, those with the same code and other parameters.
    pub parameters: u64,
    /// Paths that were not activated, as they had to be: their handlers refuse their parameters.
    pub refused: u64,
    /// Paths that were not activated, because as many as there may be waited for those before them.
    pub waited: u64,
}

/// The handlers of a run as it goes on.
pub(super) struct Handlers {
    pub plan: HandlersPlan,
    random: ChaCha8Rng,
    next: usize,
    pub counters: SwapCounters,
}

/// A change that is to be tried.
pub(super) struct Swap {
    pub channel: usize,
    pub wanted: PathPlan,
    /// `stamp` refuses these parameters.
    pub is_refused: bool,
}

impl Swap {
    /// Returns the parameters of `stamp`.
    pub fn parameters(&self) -> String {
        if self.is_refused { "far too long".to_owned() } else { parameters(self.wanted.version) }
    }
}

impl Handlers {
    pub fn new(plan: HandlersPlan) -> Self {
        let random = ChaCha8Rng::seed_from_u64(plan.seed.rotate_left(23) ^ SEED);
        Handlers { plan, random, next: 0, counters: SwapCounters::default() }
    }

    /// Returns when the next swap is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.plan.swaps.get(self.next).map(|(at, _)| *at)
    }

    /// Returns the path of a channel as it is in force.
    pub fn path(&self, channel: usize, number: u32) -> Option<ChannelPath> {
        let plan = self.plan.paths.get(channel)?.as_ref()?;
        Some(plan.path(number, &parameters(plan.version)))
    }

    /// Returns the next change that is due.
    pub fn poll(&mut self, since: Duration) -> Option<Swap> {
        let (_, channel) = *self.plan.swaps.get(self.next).filter(|(at, _)| *at <= since)?;
        self.next += 1;
        let mut wanted = self.plan.paths[channel].clone()?;
        wanted.version += 1;
        match self.random.random_range(0..12) {
            0 => return Some(Swap { channel, wanted, is_refused: true }),
            1..5 => {}
            5..8 => wanted.contexts = contexts(&mut self.random),
            _ => wanted.code = 1 - wanted.code,
        }
        Some(Swap { channel, wanted, is_refused: false })
    }

    /// Records that the policy has changed the path.
    pub fn swapped(&mut self, swap: Swap) {
        let Some(active) = &mut self.plan.paths[swap.channel] else { return };
        self.counters.done += 1;
        self.counters.code += u64::from(active.code != swap.wanted.code);
        let same = (active.code, &active.contexts) == (swap.wanted.code, &swap.wanted.contexts);
        self.counters.parameters += u64::from(same);
        *active = swap.wanted;
    }
}

const PASS: usize = 4;

/// The modules: `stamp` with the count in the block (a, b) and in memory (c, d), and `pass`. They are
/// compiled once in a process.
fn modules() -> &'static [Arc<Module>; 5] {
    static MODULES: OnceLock<[Arc<Module>; 5]> = OnceLock::new();
    MODULES.get_or_init(|| {
        let limits = Limits {
            instances_max: INSTANCES_MAX,
            memory_max: PAGE,
            memory_total_max: u64::from(INSTANCES_MAX) * PAGE,
            ..Limits::default()
        };
        let engine = Engine::new(limits).expect("the machine has room for the instances");
        let texts = [stamp('a', false), stamp('b', false), stamp('c', true), stamp('d', true), pass()];
        texts.map(|text| {
            let bytes = wat::parse_str(text).expect("the simulation's own modules are well-formed");
            Module::compile(&engine, &bytes).expect("they follow the ABI")
        })
    })
}

/// A module that emits every message as it is.
fn pass() -> String {
    r#"(module (import "csp" "emit_same" (func $same (param i32) (result i32)))
        (memory (export "memory") 1 1)
        (func (export "csp_abi") (result i32) i32.const 1)
        (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0 call $same))"#
        .to_owned()
}

/// A module that adds a frame: at address 100, its letter; at 104, the count; at 108, its parameters, of
/// which it refuses more than 8 bytes. The frames' lengths are at 400, the pieces at 500.
fn stamp(letter: char, in_memory: bool) -> String {
    let kind = if in_memory { 2 } else { 1 };
    let declared = [40, 1, MESSAGE_LEN_MAX, 0, 0, 0, kind, 4, 5, 0];
    let declared: String =
        declared.iter().flat_map(|it: &u32| it.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    let (load, store) = match in_memory {
        true => (
            "(i32.store (i32.const 104) (i32.load (i32.const 200)))",
            "(i32.store (i32.const 200) (i32.load (i32.const 104)))",
        ),
        false => (
            "(drop (call $state_read (i32.const 0) (i32.const 4) (i32.const 104)))",
            "(call $state_write (i32.const 0) (i32.const 4) (i32.const 104))",
        ),
    };
    let exported = 200u64 << 32 | 4;
    format!(
        r#"(module
        (import "csp" "frame_len" (func $frame_len (param i32) (result i32)))
        (import "csp" "emit_new" (func $emit (param i32 i32 i32 i32 i32 i32) (result i32)))
        (import "csp" "state_read" (func $state_read (param i32 i32 i32) (result i32)))
        (import "csp" "state_write" (func $state_write (param i32 i32 i32)))
        (import "csp" "parameters" (func $parameters (param i32 i32 i32) (result i32)))
        (memory (export "memory") 1 1)
        (data (i32.const 16) "{declared}") (data (i32.const 100) "{letter}")
        (func (export "csp_abi") (result i32) i32.const 1)
        (func (export "csp_declaration") (result i32) i32.const 16)
        (func (export "csp_state_export") (result i64) i64.const {exported})
        (func (export "csp_state_import") (param i32 i32) (result i32) i32.const 200)
        (func (export "configure") (param $len i32) (result i32)
            (if (i32.gt_u (local.get $len) (i32.const 8)) (then (return (i32.const 1))))
            (drop (call $parameters (i32.const 0) (i32.const 8) (i32.const 108))) i32.const 0)
        (func (export "on_message") (param $format i32) (param $len i32) (param $frames i32) (result i32)
            (local $at i32)
            {load}
            (i32.store (i32.const 104) (i32.add (i32.load (i32.const 104)) (i32.const 1)))
            (loop $next
                (i32.store (i32.add (i32.const 400) (i32.shl (local.get $at) (i32.const 2)))
                    (call $frame_len (local.get $at)))
                (local.set $at (i32.add (local.get $at) (i32.const 1)))
                (br_if $next (i32.lt_u (local.get $at) (local.get $frames))))
            (i32.store (i32.add (i32.const 400) (i32.shl (local.get $frames) (i32.const 2))) (i32.const {STAMP_LEN}))
            (i32.store (i32.const 500) (i32.const 1)) (i32.store (i32.const 504) (i32.const 0))
            (i32.store (i32.const 508) (local.get $len))
            (i32.store (i32.const 512) (i32.const 0)) (i32.store (i32.const 516) (i32.const 100))
            (i32.store (i32.const 520) (i32.const {STAMP_LEN}))
            (if (call $emit (i32.const 0) (local.get $format) (i32.const 400)
                    (i32.add (local.get $frames) (i32.const 1)) (i32.const 500) (i32.const 2))
                (then (return (i32.const 1))))
            {store}
            i32.const 0))"#
    )
}

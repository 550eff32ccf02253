//! A fuzz target: a property that holds for any input, examples to begin with, and bounds of what an input
//! may take.

use std::panic::{set_hook, take_hook};
use std::sync::Once;
use std::time::Duration;

use csp_support::allocation::{self, Used};
use rustix::time::{ClockId, clock_gettime};

/// Counts for the bounds of memory: in the seeded test and in libFuzzer's programs alike.
#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// Longest time of the processor that an input may take. It is no measure of speed: it ends what does not
/// scale with the input. With debug assertions the code is that of libFuzzer's programs, whose instruments
/// cost much.
const TIME_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 3 });

/// A property of a parser or of a state machine.
pub struct Target {
    /// Its name, and that of its folder of kept inputs and of its program under libFuzzer.
    pub name: &'static str,
    /// The property.
    pub check: Check,
    /// Inputs to begin with: those that the parser accepts, with each feature once.
    pub examples: fn() -> Vec<Vec<u8>>,
    /// Words that mutations insert.
    pub words: &'static [&'static str],
    /// Longest input that mutations make.
    pub len_max: usize,
    /// What an input may take from the allocator.
    pub bounds: Bounds,
}

/// A function that panics if the property does not hold for an input.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// Any input is a sequence of steps.
    Steps(fn(&[u8])),
    /// Returns whether the parser has accepted the input.
    Parser(fn(&[u8]) -> bool),
}

/// What became of an input.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// A parser has accepted it.
    pub accepted: bool,
    /// What it took from the allocator.
    pub used: Used,
    /// What it took of the processor.
    pub took: Duration,
}

/// Bounds in bytes: of an input of any length, and further for each of its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Held at one time.
    pub held: (u64, u64),
    /// Allocated altogether. Work that grows faster than the input allocates, too, in nearly every parser.
    pub allocated: (u64, u64),
}

impl Target {
    /// A target whose inputs have no words, and take what those of most parsers take.
    pub const fn plain(name: &'static str, check: fn(&[u8]), examples: fn() -> Vec<Vec<u8>>) -> Self {
        let bounds = Bounds { held: (256 << 10, 64), allocated: (1 << 20, 4_096) };
        Target { name, check: Check::Steps(check), examples, words: &[], len_max: 2_048, bounds }
    }

    /// Checks the property for an input, and what this takes.
    ///
    /// # Panics
    /// The property does not hold, or a bound is exceeded.
    pub fn run(&self, bytes: &[u8]) -> Outcome {
        let started = processor_time();
        let (accepted, used) = allocation::used_by(|| match self.check {
            Check::Steps(check) => {
                check(bytes);
                true
            }
            Check::Parser(check) => check(bytes),
        });
        let took = processor_time().saturating_sub(started);
        let (name, len) = (self.name, bytes.len() as u64);
        let most = |(constant, factor): (u64, u64)| constant + factor * len;
        let held = u64::try_from(used.held_max).unwrap_or(0);
        let held_max = most(self.bounds.held);
        assert!(
            held <= held_max,
            "{name}: an input of {len} bytes holds {held} bytes; {held_max} are the most"
        );
        let (allocated, allocated_max) = (used.bytes, most(self.bounds.allocated));
        assert!(
            allocated <= allocated_max,
            "{name}: an input of {len} bytes allocates {allocated} bytes; {allocated_max} are the most"
        );
        assert!(took <= TIME_MAX, "{name}: an input of {len} bytes takes {took:?} of the processor");
        Outcome { accepted, used, took }
    }
}

/// The time that the processor has spent on this thread. Other load on the machine does not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Omits the reports of panics in libraries, which the code that calls them contains. With a backtrace a
/// report takes megabytes.
pub fn report_own_panics_only() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            // Libraries lie in cargo's folder.
            if panic.location().is_none_or(|place| !place.file().contains("/registry/src/")) {
                hook(panic);
            }
        }));
    });
}

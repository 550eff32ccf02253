//! The seam for operators that are specialised: code made elsewhere for a plan, which does for rows at fixed
//! places what the plan would.
//!
//! ```text
//!   configure ─▶ Specialiser::ask(Request) ······ a background thread compiles ······ Request::answer(program)
//!                                                                                          │
//!   message ─▶ the operator looks whether an answer has come ─▶ takes it between two messages ◀┘
//! ```
//! The operator goes on with its own way until the answer comes, wherever the program cannot say something,
//! and as long as a trial has not shown that the program takes less time ([`Choice`]). Counters, frames,
//! state and what cannot be read are the operator's in any case.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use csp_queries::Plan;

use crate::choice::{Choice, Medians, Rules, Turn, Version};

/// What a program makes of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It cannot say: the row is given to the plan.
    Unsaid,
    /// The condition does not accept it.
    Refused,
    /// The condition accepts it; nothing was written.
    Accepted,
    /// The condition accepts it, and header and root block of its result were written: so many bytes.
    Written(usize),
}

/// Code for a plan of one source.
pub trait Program: Send + fmt::Debug {
    /// Looks at a row: header and root block of a message as [`csp_formats::Fixed::of`] yields them. `out` is
    /// room for the result; without it only the condition is looked at.
    fn run(&mut self, row: &[u8], out: Option<&mut [u8]>) -> Verdict;
}

/// Makes programs.
pub trait Specialiser: Send + Sync + fmt::Debug {
    /// Has a program made, and returns at once: the calling thread has messages to process.
    fn ask(&self, request: Request);

    /// Returns nanoseconds of a clock that only goes forward.
    fn nanos(&self) -> u64;
}

/// What is asked for.
#[derive(Debug)]
pub struct Request {
    /// The plan, of one source.
    pub plan: Arc<Plan>,
    /// Only its condition: no result is written.
    pub condition_only: bool,
    slot: Arc<Slot>,
}

type Answer = Result<Box<dyn Program>, String>;

#[derive(Debug, Default)]
struct Slot {
    is_ready: AtomicBool,
    answer: Mutex<Option<Answer>>,
    standing: Standing,
}

/// How one operator stands, for lists. The thread that runs the operator writes it; any thread reads it.
#[derive(Debug, Default)]
pub struct Standing {
    phase: AtomicU8,
    specialised: AtomicU64,
    generic_ns: AtomicU32,
    specialised_ns: AtomicU32,
    declined: Mutex<String>,
}

const WAITS: u8 = 0;
const DECLINED: u8 = 1;
const TRIAL: u8 = 2;
const GENERIC: u8 = 3;
const SPECIALISED: u8 = 4;

impl Request {
    /// Gives the program, or the reason why there is none.
    pub fn answer(self, answer: Answer) {
        *self.slot.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.slot.is_ready.store(true, Ordering::Release);
    }

    /// Returns whether the operator is still there.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.slot) > 1
    }

    /// Returns how the operator stands, for as long as it or this request is there.
    #[must_use]
    pub fn standing(&self) -> StandingRef {
        StandingRef(Arc::downgrade(&self.slot))
    }
}

/// How an operator stands that may be gone.
#[derive(Clone, Debug)]
pub struct StandingRef(std::sync::Weak<Slot>);

impl StandingRef {
    /// Returns how the operator stands in words: which version runs, and why. `None`: it is gone.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        Some(self.0.upgrade()?.standing.text())
    }

    /// Returns how many messages the specialised version has processed. `None`: the operator is gone.
    #[must_use]
    pub fn specialised(&self) -> Option<u64> {
        Some(self.0.upgrade()?.standing.specialised.load(Ordering::Relaxed))
    }
}

impl Standing {
    fn text(&self) -> String {
        let generic = self.generic_ns.load(Ordering::Relaxed);
        let specialised = self.specialised_ns.load(Ordering::Relaxed);
        match self.phase.load(Ordering::Relaxed) {
            WAITS => "generic: the specialised version is not compiled yet".to_owned(),
            DECLINED => {
                let why = self.declined.lock().unwrap_or_else(PoisonError::into_inner);
                format!("generic: {why}")
            }
            TRIAL => "generic: both versions are being timed".to_owned(),
            SPECIALISED => format!("specialised: {specialised} ns a message beside {generic} ns"),
            _ => format!("generic: {generic} ns a message, the specialised version {specialised} ns"),
        }
    }

    fn decided(&self, version: Version, medians: Medians) {
        self.generic_ns.store(medians.generic_ns, Ordering::Relaxed);
        self.specialised_ns.store(medians.specialised_ns, Ordering::Relaxed);
        let phase = if version == Version::Specialised { SPECIALISED } else { GENERIC };
        self.phase.store(phase, Ordering::Relaxed);
    }
}

/// The specialised version of an operator for one format: asked for, and then chosen or not.
#[derive(Debug)]
pub(crate) struct Special {
    specialiser: Arc<dyn Specialiser>,
    slot: Arc<Slot>,
    /// `None` before the answer, and if there is no program.
    program: Option<Box<dyn Program>>,
    is_answered: bool,
    choice: Choice,
}

impl Special {
    /// Asks for a program.
    pub fn new(
        specialiser: &Arc<dyn Specialiser>,
        plan: &Arc<Plan>,
        condition_only: bool,
        rules: Rules,
    ) -> Self {
        let slot = Arc::<Slot>::default();
        specialiser.ask(Request { plan: plan.clone(), condition_only, slot: slot.clone() });
        let (specialiser, choice) = (specialiser.clone(), Choice::new(rules));
        Special { specialiser, slot, program: None, is_answered: false, choice }
    }

    /// Looks at a row with the version whose turn it is; `generic` is the other one.
    #[inline]
    pub fn run<'o>(
        &mut self,
        row: &[u8],
        out: Option<&'o mut [u8]>,
        generic: impl FnOnce(Option<&'o mut [u8]>) -> Verdict,
    ) -> Verdict {
        if !self.is_answered {
            self.take_answer();
        }
        let Some(program) = &mut self.program else { return generic(out) };
        match self.choice.turn() {
            Turn::Run(Version::Generic) => generic(out),
            Turn::Run(Version::Specialised) => {
                let count = &self.slot.standing.specialised;
                // Only this thread writes.
                count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                program.run(row, out)
            }
            Turn::Time(version) => {
                let begin = self.specialiser.nanos();
                let verdict = match version {
                    Version::Generic => generic(out),
                    Version::Specialised => program.run(row, out),
                };
                let nanos = self.specialiser.nanos().saturating_sub(begin);
                self.timed(version, nanos);
                verdict
            }
        }
    }

    #[cold]
    fn timed(&mut self, version: Version, nanos: u64) {
        self.choice.timed(version, nanos);
        if let Some(medians) = self.choice.medians() {
            self.slot.standing.decided(self.choice.current(), medians);
        }
    }

    /// Takes the answer if it has come. Never waits for the thread that gives it.
    fn take_answer(&mut self) {
        if !self.slot.is_ready.load(Ordering::Acquire) {
            return;
        }
        let answer = match self.slot.answer.try_lock() {
            Ok(mut answer) => answer.take(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().take(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.is_answered = true;
        let standing = &self.slot.standing;
        match answer {
            Some(Ok(program)) => {
                self.program = Some(program);
                standing.phase.store(TRIAL, Ordering::Relaxed);
            }
            Some(Err(why)) => {
                *standing.declined.lock().unwrap_or_else(PoisonError::into_inner) = why;
                standing.phase.store(DECLINED, Ordering::Relaxed);
            }
            None => {}
        }
    }
}

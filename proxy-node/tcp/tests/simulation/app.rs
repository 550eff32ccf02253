//! Applications: what they write, read and wait for, and how they end.

use csp_tcp::Event;
use csp_types::{Duration, Instant};

use crate::host::{Host, Id};
use crate::pattern::Stream;
use crate::random::Random;

/// A step of an application's script; the application reads in parallel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Write this many bytes.
    Write(u64),
    /// Wait until this many bytes in total were read.
    Await(u64),
    /// Wait until the other side has finished.
    AwaitFinish,
    Pause(Duration),
    /// Shut down (FIN); reading continues.
    Shutdown,
    /// Close.
    Close,
    /// Abort (RST).
    Abort,
}

/// How an application reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Appetite {
    /// Everything immediately.
    Eager,
    /// At most this many bytes at this interval.
    Slow(usize, Duration),
    /// Nothing for this time, then everything.
    Late(Duration),
}

/// The plan of one application.
#[derive(Clone, PartialEq, Debug)]
pub struct Script {
    pub steps: Vec<Step>,
    pub appetite: Appetite,
    /// Each write has up to this many bytes.
    pub piece: usize,
}

impl Script {
    pub fn total(&self) -> u64 {
        self.steps.iter().map(|step| if let Step::Write(n) = step { *n } else { 0 }).sum()
    }

    /// Whether this application may cause the other side to lose bytes or fail.
    pub fn is_forceful(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Close | Step::Abort))
    }
}

/// A running application at one end of a connection.
#[derive(Debug)]
pub struct App {
    script: Script,
    step: usize,
    left_of_step: u64,
    /// End of the current pause of the script or the reader.
    pub wake: Option<Instant>,
    pause_until: Option<Instant>,
    pub id: Option<Id>,
    pub established: bool,
    /// The stream it sends, and the stream it must receive.
    pub sends: Stream,
    pub receives: Stream,
    pub written: u64,
    pub received: u64,
    blocked: bool,
    reads_from: Option<Instant>,
    /// FIN was read.
    read_all: bool,
    pub peer_finished: bool,
    pub finished: bool,
    pub outcome: Option<Event>,
    /// It has called `Close` or `Abort`.
    pub left: bool,
}

impl App {
    pub fn new(script: Script, sends: Stream, receives: Stream) -> App {
        let left_of_step = first_amount(script.steps.first());
        App {
            script,
            step: 0,
            left_of_step,
            wake: None,
            pause_until: None,
            id: None,
            established: false,
            sends,
            receives,
            written: 0,
            received: 0,
            blocked: false,
            reads_from: None,
            read_all: false,
            peer_finished: false,
            finished: false,
            outcome: None,
            left: false,
        }
    }

    /// Whether the connection is over for this application.
    pub fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Whether it waits only for its own script.
    pub fn pauses(&self, now: Instant) -> bool {
        let late = matches!(self.script.appetite, Appetite::Late(_));
        let reads_later = self.reads_from.is_some_and(|at| late && at > now);
        reads_later || self.pause_until.is_some_and(|at| at > now)
    }

    pub fn script(&self) -> &Script {
        &self.script
    }

    pub fn on_event(&mut self, event: Event) {
        assert!(self.outcome.is_none(), "{event:?} after the last event");
        match event {
            Event::PeerFinished => {
                assert!(!self.peer_finished, "PeerFinished twice");
                self.peer_finished = true;
            }
            Event::Writable => {
                assert!(self.blocked, "Writable without a write that was cut short");
                self.blocked = false;
            }
            Event::Closed | Event::Failed(_) => self.outcome = Some(event),
            Event::Readable | Event::Established { .. } => {}
            #[allow(unreachable_patterns)] // future events
            _ => {}
        }
    }

    /// Reads, and runs the script as far as possible.
    pub fn act(&mut self, now: Instant, host: &mut Host, random: &mut Random) {
        let Some(id) = self.id.filter(|_| !self.is_over()) else { return };
        self.wake = None;
        self.read(now, host, id, random);
        while !self.is_over() && self.advance(now, host, id, random) {}
        if let Some(until) = self.pause_until {
            self.wake = Some(self.wake.map_or(until, |at| at.min(until)));
        }
    }

    fn read(&mut self, now: Instant, host: &mut Host, id: Id, random: &mut Random) {
        if self.left || (self.peer_finished && self.read_all) {
            return;
        }
        let most = match self.script.appetite {
            Appetite::Eager => usize::MAX,
            Appetite::Slow(most, every) => {
                let from = *self.reads_from.get_or_insert(now);
                if from > now {
                    self.wake = Some(from);
                    return;
                }
                self.reads_from = Some(now + every);
                self.wake = Some(now + every);
                most
            }
            Appetite::Late(after) => {
                let from = *self.reads_from.get_or_insert(now + after);
                if from > now {
                    self.wake = Some(from);
                    return;
                }
                usize::MAX
            }
        };
        let mut left = most;
        while left > 0 {
            let wanted = left.min(1 + random.below(40_000) as usize);
            let (mut at, receives) = (self.received, self.receives);
            let taken = host.read(now, id, wanted, &mut |slice| {
                let take = if random.chance(0.1) { slice.len().div_ceil(2) } else { slice.len() };
                if let Some(wrong) = receives.difference(at, &slice[..take]) {
                    panic!("byte {wrong} of the stream was delivered wrong");
                }
                at += take as u64;
                take
            });
            assert!(taken <= wanted, "more was read than asked for");
            self.received += taken as u64;
            left -= taken;
            if taken == 0 {
                self.read_all = self.peer_finished;
                break;
            }
        }
    }

    /// Runs one step; `false` if it must wait.
    fn advance(&mut self, now: Instant, host: &mut Host, id: Id, random: &mut Random) -> bool {
        let Some(&step) = self.script.steps.get(self.step) else { return false };
        let done = match step {
            Step::Write(_) => return self.write(now, host, id, random),
            Step::Await(total) => self.received >= total,
            Step::AwaitFinish => self.peer_finished,
            Step::Pause(time) => *self.pause_until.get_or_insert(now + time) <= now,
            Step::Shutdown => {
                host.shutdown(now, id);
                self.finished = true;
                true
            }
            Step::Close => {
                self.left = true;
                self.finished = true;
                host.close(now, id);
                true
            }
            Step::Abort => {
                self.left = true;
                host.abort(now, id);
                self.outcome = Some(Event::Closed); // none follows
                true
            }
        };
        if done {
            self.next_step();
        }
        done
    }

    fn next_step(&mut self) {
        self.step += 1;
        self.pause_until = None;
        self.left_of_step = first_amount(self.script.steps.get(self.step));
    }

    fn write(&mut self, now: Instant, host: &mut Host, id: Id, random: &mut Random) -> bool {
        if self.left_of_step == 0 {
            self.next_step();
            return true;
        }
        if self.blocked {
            return false;
        }
        let most = self.left_of_step.min(1 + random.below(self.script.piece as u64)) as usize;
        let taken = host.write(now, id, self.sends.bytes(self.written, most));
        assert!(taken <= most, "more was written than given");
        self.written += taken as u64;
        self.left_of_step -= taken as u64;
        self.blocked = taken < most;
        !self.blocked
    }
}

fn first_amount(step: Option<&Step>) -> u64 {
    if let Some(Step::Write(n)) = step { *n } else { 0 }
}

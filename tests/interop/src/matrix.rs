//! Runs the matrix. Each task measures the engine and the kernel one after the other over the same link with
//! the same seed; rounds alternate the order. After the rounds the remaining time is spent on the tasks
//! without a clear verdict.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cell::{Cell, Workload};
use crate::lane::{Experiment, Lane, Server};
use crate::report::{Pair, Results};
use crate::schedule::Schedule;

/// From this round-trip time on measurements have their full length, below it five eighths of it.
const LONG_RTT_MS: u32 = 50;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cells.
    pub cells: Vec<Cell>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Smallest number of rounds of each task.
    pub rounds: u32,
    /// Time after which no further task starts.
    pub budget: Duration,
    /// Length of a bulk measurement, and of another one, over long round trips.
    pub times: (Duration, Duration),
    /// Number of lanes.
    pub lanes: usize,
    /// Largest load of all lanes on their links together, in Mbit/s.
    pub load_mbit: u32,
    /// Seed of the first round.
    pub seed: u64,
    /// Directory for packet traces.
    pub trace: Option<PathBuf>,
    /// Print each device report and the changes of the engine's counters.
    pub verbose: bool,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    cell: Cell,
    workload: Workload,
    round: u32,
}

struct Shared<'a> {
    plan: &'a Plan,
    schedule: Schedule<Task>,
    results: Mutex<Results>,
    errors: Mutex<Vec<String>>,
    end: Instant,
}

/// Runs the plan. Returns an error if a measurement failed; low speed is not an error.
pub fn run(plan: &Plan) -> Result<Results> {
    let lanes = (0..plan.lanes).map(|at| Lane::new(plan.seed + at as u64)).collect::<Result<Vec<_>>>()?;
    let shared = Shared {
        plan,
        schedule: Schedule::new(plan.load_mbit),
        results: Mutex::default(),
        errors: Mutex::default(),
        end: Instant::now() + plan.budget,
    };
    std::thread::scope(|scope| {
        for lane in &lanes {
            scope.spawn(|| shared.work(lane));
        }
        shared.direct();
    });
    let errors = shared.errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !errors.is_empty() {
        bail!("{}", errors.join("\n"));
    }
    Ok(shared.results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Shared<'_> {
    /// Schedules rounds until the time is over or every verdict is clear.
    fn direct(&self) {
        for round in 0.. {
            for cell in &self.plan.cells {
                for workload in &self.plan.workloads {
                    if round < self.plan.rounds || self.is_open(*cell, *workload) {
                        let task = Task { cell: *cell, workload: *workload, round };
                        self.schedule.push(task, cell.load_mbit(*workload));
                    }
                }
            }
            if self.schedule_is_empty_or_late(round) {
                break;
            }
        }
        self.schedule.close(false);
    }

    fn schedule_is_empty_or_late(&self, round: u32) -> bool {
        self.schedule.wait_idle();
        let open = self.plan.cells.iter().flat_map(|c| self.plan.workloads.iter().map(|w| (*c, *w)));
        let asked_again = self.plan.rounds > 1 && open.into_iter().any(|(c, w)| self.is_open(c, w));
        let more = round + 1 < self.plan.rounds || asked_again;
        !more || Instant::now() >= self.end || self.has_failed()
    }

    fn has_failed(&self) -> bool {
        !self.errors.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn is_open(&self, cell: Cell, workload: Workload) -> bool {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.outcomes.get(&(cell, workload)).is_none_or(|outcome| outcome.is_open())
    }

    /// Runs a lane's tasks.
    fn work(&self, lane: &Lane) {
        while let Some((task, weight)) = self.schedule.take() {
            if Instant::now() < self.end && !self.has_failed() {
                match self.pair(lane, task) {
                    Ok(pair) => self.note(task, pair),
                    Err(error) => {
                        self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
                    }
                }
            }
            self.schedule.done(weight);
        }
    }

    fn pair(&self, lane: &Lane, task: Task) -> Result<Pair> {
        let Task { cell, workload, round } = task;
        let (bulk, small) = self.plan.times;
        let longest = if workload.is_bulk() { bulk } else { small };
        // Long round trips need more time; there are many short ones in less.
        let time = if cell.rtt_ms >= LONG_RTT_MS { longest } else { longest * 5 / 8 };
        let seed = self.plan.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round));
        let measure = |server: Server| {
            let trace = self.plan.trace.as_ref().map(|folder| {
                let Cell { rtt_ms, loss_ppm, reorder_ppm, .. } = cell;
                let name = format!("{workload:?}-{rtt_ms}ms-{loss_ppm}-{reorder_ppm}-{round}-{server:?}");
                folder.join(name.to_lowercase())
            });
            lane.measure(&Experiment { cell, workload, time, seed, trace }, server)
        };
        let before = lane.engine_counters()?;
        let pair = if round % 2 == 0 {
            let engine = measure(Server::Engine)?;
            Pair { engine, linux: measure(Server::Linux)? }
        } else {
            let linux = measure(Server::Linux)?;
            Pair { engine: measure(Server::Engine)?, linux }
        };
        if self.plan.verbose {
            eprintln!("{}, {workload:?}: {}", cell, difference(&before, &lane.engine_counters()?));
        }
        Ok(pair)
    }

    fn note(&self, task: Task, pair: Pair) {
        let scale = if task.workload.is_bulk() { 8e-6 } else { 1.0 };
        let (engine, linux) = (pair.engine.per_second * scale, pair.linux.per_second * scale);
        let workload = format!("{:?}", task.workload).to_lowercase();
        let ratio = engine / linux;
        eprintln!("{}, {workload:8} engine {engine:8.1} linux {linux:8.1} ratio {ratio:.3}", task.cell);
        for (server, measured) in [("engine", &pair.engine), ("linux", &pair.linux)] {
            let device = &measured.device;
            if self.plan.verbose || device.overrun + device.coalesced > 0 {
                eprintln!("  {server}: {device:?}");
            }
        }
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.outcomes.entry((task.cell, task.workload)).or_default().pairs.push(pair);
    }
}

/// Returns the increments of counters, given their struct's `Debug` output before and after.
fn difference(before: &str, after: &str) -> String {
    let fields = |text: &str| -> Vec<(String, u64)> {
        let inner = text.split_once('{').map_or("", |(_, inner)| inner).trim_end_matches('}');
        let pairs = inner.split(", ").filter_map(|field| field.trim().split_once(": "));
        pairs.map(|(name, value)| (name.to_owned(), value.trim().parse().unwrap_or(0))).collect()
    };
    let changed = fields(before).into_iter().zip(fields(after)).filter(|(b, a)| b != a);
    changed.map(|(b, a)| format!("{} {} ", a.0, a.1.wrapping_sub(b.1))).collect()
}

//! Dividing a link's capacity among the workers that send over it, every 10 ms by what they had waiting.

use std::sync::atomic::{AtomicU64, Ordering};

use csp_types::Duration;

use crate::flow::FlowId;

/// How often workers divide a link anew.
pub const DIVIDE_EVERY: Duration = Duration::from_millis(10);

/// A worker's part of a link, in bits a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// What its plan holds for promises.
    pub held: u64,
    /// What it could send: what it sent and what waits, over the last interval.
    pub wanted: u64,
}

/// Divides `total` bits a second: each worker first has what it wants of what it holds, then all have equal
/// parts of the rest as far as they want more. What nobody wants is divided equally, so that a worker that
/// begins to send does not wait for the next division. The parts add up to `total`, unless the workers
/// together hold more.
pub fn divide(total: u64, demands: &[Demand]) -> Vec<u64> {
    let mut parts: Vec<u64> = demands.iter().map(|demand| demand.held.min(demand.wanted)).collect();
    let mut left = total.saturating_sub(parts.iter().sum());
    // Each round satisfies a worker or ends.
    for _ in 0..=demands.len() {
        let thirsty: Vec<usize> = (0..parts.len()).filter(|at| parts[*at] < demands[*at].wanted).collect();
        let Some(part) = left.checked_div(thirsty.len() as u64).filter(|part| *part > 0) else { break };
        for at in thirsty {
            let more = part.min(demands[at].wanted - parts[at]);
            (parts[at], left) = (parts[at] + more, left - more);
        }
    }
    let count = parts.len() as u64;
    for (at, part) in (0..).zip(&mut parts) {
        *part += left / count + u64::from(at < left % count);
    }
    parts
}

/// What the workers of a node want of their link. Each writes its own line and reads all; two that read at
/// different moments may for one interval take parts that don't add up.
#[derive(Debug)]
pub struct Board {
    demands: Vec<(AtomicU64, AtomicU64)>,
    /// By flow: nanoseconds that its handlers take for an item, as a worker has measured last; 0: none has.
    costs: Vec<AtomicU64>,
}

impl Board {
    /// A board of so many workers, none of which wants anything.
    pub fn new(workers: usize) -> Self {
        Board::of_flows(workers, 0)
    }

    /// The same with places for what items of so many flows cost.
    pub fn of_flows(workers: usize, flows: usize) -> Self {
        let none = |_| AtomicU64::new(0);
        Board {
            demands: (0..workers.max(1)).map(|_| Default::default()).collect(),
            costs: (0..flows).map(none).collect(),
        }
    }

    /// Records what items of a flow cost a worker. A flow that the board does not know is ignored.
    pub fn record_cost(&self, flow: FlowId, cost: Duration) {
        if let Some(known) = self.costs.get(flow.index()) {
            known.store(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// Returns what items of a flow cost, as a worker has measured last.
    pub fn cost(&self, flow: FlowId) -> Option<Duration> {
        let nanos = self.costs.get(flow.index())?.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.demands.len()
    }

    /// Records what a worker wants, and returns its part of `total` bits a second. A worker that the board
    /// does not know has all of it. If the workers hold more than there is, each has its part of that.
    pub fn part(&self, worker: usize, demand: Demand, total: u64) -> u64 {
        let Some((held, wanted)) = self.demands.get(worker) else { return total };
        held.store(demand.held, Ordering::Relaxed);
        wanted.store(demand.wanted, Ordering::Relaxed);
        let read = |(held, wanted): &(AtomicU64, AtomicU64)| Demand {
            held: held.load(Ordering::Relaxed),
            wanted: wanted.load(Ordering::Relaxed),
        };
        let mut demands: Vec<Demand> = self.demands.iter().map(read).collect();
        let held: u64 = demands.iter().map(|demand| demand.held.min(demand.wanted)).sum();
        if held > total {
            demands.iter_mut().for_each(|demand| {
                let own = demand.held.min(demand.wanted);
                demand.held = (u128::from(own) * u128::from(total) / u128::from(held)) as u64;
            });
        }
        divide(total, &demands).get(worker).copied().unwrap_or(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csp_support::Random;

    #[test]
    fn parts_add_up_keep_what_is_held_and_are_equal_where_all_want_more() {
        let demand = |held, wanted| Demand { held, wanted };
        assert_eq!(divide(900, &[demand(0, 1_000), demand(0, 1_000), demand(0, 100)]), [400, 400, 100]);
        assert_eq!(
            divide(900, &[demand(600, 1_000), demand(0, 1_000)]),
            [750, 150],
            "equal parts of what is not held"
        );
        assert_eq!(divide(900, &[demand(600, 0), demand(0, 0), demand(0, 300)]), [200, 200, 500]);
        assert!(divide(900, &[]).is_empty());
        let mut random = Random::new(3);
        for _ in 0..10_000 {
            let total = 1 + random.below(1_000_000);
            let count = 1 + random.below(8);
            let demands: Vec<Demand> =
                (0..count).map(|_| demand(random.below(total / count + 1), random.below(total))).collect();
            let parts = divide(total, &demands);
            assert_eq!(parts.iter().sum::<u64>(), total);
            assert!(demands.iter().zip(&parts).all(|(demand, part)| *part >= demand.held.min(demand.wanted)));
            let short = demands.iter().zip(&parts).any(|(demand, part)| *part < demand.wanted);
            let spare: u64 =
                demands.iter().zip(&parts).map(|(demand, part)| part.saturating_sub(demand.wanted)).sum();
            assert!(
                !short || spare <= count,
                "{demands:?} {parts:?}: something is spare although a worker wants more"
            );
        }
    }

    #[test]
    fn workers_divide_a_link_by_what_they_wrote() {
        let board = Board::new(2);
        let demand = |held, wanted| Demand { held, wanted };
        assert_eq!(board.part(0, demand(0, 900), 900), 900, "the other wants nothing");
        assert_eq!(board.part(1, demand(0, 900), 900), 450);
        assert_eq!(board.part(0, demand(0, 900), 900), 450);
        // Both hold more than there is: no part is larger than the link, and both have something.
        assert_eq!(board.part(0, demand(800, 900), 900), 850);
        assert_eq!(board.part(1, demand(800, 900), 900), 450);
        assert_eq!(board.part(0, demand(0, 0), 900), 0);
        assert_eq!(board.part(9, demand(0, 5), 900), 900, "a stranger is alone");
    }
}

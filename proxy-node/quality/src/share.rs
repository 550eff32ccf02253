//! Dividing a link's capacity among the workers that send over it, every 10 ms by what they had waiting.

/// A worker's part of a link, in bits a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand {
    /// What its plan holds for promises.
    pub held: u64,
    /// What it could send: what it sent and what waits, over the last interval.
    pub wanted: u64,
}

/// Divides `total` bits a second: each worker first has what it wants of what it holds, then all have equal parts of the rest as far as they want more.
/// What nobody wants is divided equally, so that a worker that begins to send does not wait for the next division. The parts add up to
/// `total`, unless the workers together hold more.
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
}

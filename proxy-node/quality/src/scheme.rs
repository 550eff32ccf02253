//! Allocation schemes (IQ, Table 1) and what they give to whom without looking at queues.

pub use csp_types::options::Scheme;

/// Divides `total` among flows, each given as (what it states, priority), for SA: a flow gets what it states;
/// flows that state nothing share what is left in the proportion of their priorities plus one. What is left
/// when all flows state something stays unused.
pub fn allot(total: u64, flows: &[(u64, u8)]) -> Vec<u64> {
    let stated: u64 = flows.iter().map(|(stated, _)| stated).sum();
    let left = total.saturating_sub(stated);
    let weight = |priority: u8| u64::from(priority) + 1;
    let weights: u64 =
        flows.iter().filter(|(stated, _)| *stated == 0).map(|(_, priority)| weight(*priority)).sum();
    let share =
        |priority: u8| (u128::from(left) * u128::from(weight(priority)) / u128::from(weights.max(1))) as u64;
    let mut shares: Vec<u64> =
        flows.iter().map(|(stated, priority)| if *stated > 0 { *stated } else { share(*priority) }).collect();
    // The remainders go to the highest priorities, so that a division into few parts leaves none.
    let mut order: Vec<usize> = (0..flows.len()).filter(|at| flows[*at].0 == 0).collect();
    order.sort_by_key(|at| std::cmp::Reverse(flows[*at].1));
    let mut rest = total.saturating_sub(shares.iter().sum());
    for at in order {
        let one = rest.min(1);
        (shares[at], rest) = (shares[at] + one, rest - one);
    }
    shares
}

/// What a context does under a scheme that binds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Duty {
    /// It serves all flows.
    Shared,
    /// It serves one flow.
    Flow(u16),
    /// It serves the flows whose home it is.
    Homes,
    /// It serves none.
    Idle,
}

/// Which contexts serve which flows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Duties {
    /// By context.
    pub contexts: Vec<Duty>,
    /// By flow: its home, if it has one.
    pub homes: Vec<Option<u16>>,
}

/// A flow as the division of contexts sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub flow: u16,
    pub priority: u8,
    pub contexts: u16,
}

impl Duties {
    /// Divides contexts among `claims`, the flows that contexts serve.
    pub fn new(scheme: Scheme, contexts: usize, flows: usize, claims: &[Claim]) -> Self {
        let mut duties = Duties { contexts: vec![Duty::Shared; contexts], homes: vec![None; flows] };
        match scheme {
            Scheme::RoundRobin | Scheme::PriorityAware => {}
            Scheme::PriorityAwareReserved => {
                duties.own(claims.iter().map(|claim| (claim.flow, claim.contexts)), Duty::Shared)
            }
            Scheme::EqualStatic if claims.len() <= contexts => {
                let turns = claims.iter().cycle().take(if claims.is_empty() { 0 } else { contexts });
                let owners = turns.map(|claim| Duty::Flow(claim.flow)).chain(std::iter::repeat(Duty::Idle));
                duties.contexts.iter_mut().zip(owners).for_each(|(duty, owner)| *duty = owner);
            }
            Scheme::EqualStatic => duties.settle(claims.iter().map(|claim| claim.flow), 0),
            Scheme::Static => duties.allot(claims),
        }
        duties
    }

    fn allot(&mut self, claims: &[Claim]) {
        let stated: usize = claims.iter().map(|claim| usize::from(claim.contexts)).sum();
        let silent: Vec<&Claim> = claims.iter().filter(|claim| claim.contexts == 0).collect();
        let left = self.contexts.len().saturating_sub(stated);
        if silent.len() <= left {
            let flows: Vec<(u64, u8)> =
                claims.iter().map(|claim| (u64::from(claim.contexts), claim.priority)).collect();
            let mut shares = allot(self.contexts.len() as u64, &flows);
            // Each gets one before any gets two.
            while let (Some(poor), Some(rich)) = (
                shares.iter().position(|share| *share == 0),
                (0..shares.len()).filter(|at| flows[*at].0 == 0).max_by_key(|at| shares[*at]),
            ) {
                if shares[rich] < 2 {
                    break;
                }
                (shares[poor], shares[rich]) = (1, shares[rich] - 1);
            }
            self.own(claims.iter().zip(shares).map(|(claim, share)| (claim.flow, share as u16)), Duty::Idle);
        } else {
            self.own(claims.iter().map(|claim| (claim.flow, claim.contexts)), Duty::Idle);
            self.settle(silent.iter().map(|claim| claim.flow), stated.min(self.contexts.len()));
        }
    }

    /// Gives whole contexts to flows, and `rest` to the contexts that are left.
    fn own(&mut self, shares: impl Iterator<Item = (u16, u16)>, rest: Duty) {
        let owners =
            shares.flat_map(|(flow, share)| std::iter::repeat_n(Duty::Flow(flow), usize::from(share)));
        self.contexts
            .iter_mut()
            .zip(owners.chain(std::iter::repeat(rest)))
            .for_each(|(duty, owner)| *duty = owner);
    }

    /// Gives flows homes among the contexts from `first` on. Where none is left, they are not served.
    fn settle(&mut self, flows: impl Iterator<Item = u16>, first: usize) {
        let left = self.contexts.len() - first;
        self.contexts[first..].fill(Duty::Homes);
        for (at, flow) in flows.enumerate() {
            self.homes[usize::from(flow)] = at.checked_rem(left).map(|at| (first + at) as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(scheme: Scheme, contexts: usize, claims: &[(u8, u16)], expected: &str) {
        let claims: Vec<Claim> = claims
            .iter()
            .zip(0u16..)
            .map(|((priority, contexts), flow)| Claim { flow, priority: *priority, contexts: *contexts })
            .collect();
        let duties = Duties::new(scheme, contexts, claims.len(), &claims);
        let text = |(at, duty): (usize, &Duty)| match duty {
            Duty::Shared => "+".to_owned(),
            Duty::Idle => "-".to_owned(),
            Duty::Flow(flow) => flow.to_string(),
            Duty::Homes => {
                let homes = duties.homes.iter().enumerate().filter(|(_, home)| **home == Some(at as u16));
                format!("[{}]", homes.map(|(flow, _)| flow.to_string()).collect::<Vec<_>>().join(","))
            }
        };
        let found: Vec<String> = duties.contexts.iter().enumerate().map(text).collect();
        assert_eq!(found.join(" "), expected, "{scheme:?} {claims:?}");
    }

    #[test]
    fn contexts_are_divided_as_the_scheme_says() {
        use Scheme::*;
        check(RoundRobin, 4, &[(0, 2), (1, 0)], "+ + + +");
        check(EqualStatic, 5, &[(0, 3), (9, 0)], "0 1 0 1 0");
        check(EqualStatic, 2, &[(0, 0), (0, 0), (0, 0)], "[0,2] [1]");
        check(EqualStatic, 2, &[], "- -");
        check(Static, 8, &[(0, 1), (9, 2), (0, 1)], "0 1 1 2 - - - -");
        check(Static, 8, &[(0, 0), (5, 0), (0, 0)], "0 1 1 1 1 1 1 2");
        check(Static, 4, &[(0, 2), (0, 0), (3, 0)], "0 0 1 2");
        check(Static, 4, &[(0, 2), (0, 0), (3, 0), (0, 0)], "0 0 [1,3] [2]");
        check(Static, 2, &[(0, 2), (0, 0)], "0 0");
        check(PriorityAwareReserved, 4, &[(0, 1), (9, 2)], "0 1 1 +");
    }

    #[test]
    fn what_is_allotted_adds_up() {
        assert_eq!(allot(500, &[(100, 0), (0, 1), (0, 2)]), [100, 160, 240]);
        assert_eq!(allot(500, &[(100, 0), (300, 1)]), [100, 300]);
        assert_eq!(allot(8, &[(0, 0), (0, 0), (0, 0)]), [3, 3, 2]);
        assert_eq!(allot(100, &[(150, 0), (0, 0)]), [150, 0]);
    }
}

//! What follows from policies, planned once: when a policy is checked, and kept until it is applied.

use std::sync::{Arc, Mutex, PoisonError};

use csp_planner::Planned;
use csp_policy::Policy;

/// Plans that are kept: those of the policy in force and of one that is staged.
const KEPT_MAX: usize = 2;

/// The plans of the newest policies, the newest last.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    kept: Arc<Mutex<Vec<Planned>>>,
}

impl Plans {
    /// Returns the plan of a policy, made now if it is not kept.
    ///
    /// # Errors
    /// What cannot be planned, in words.
    pub fn of(&self, policy: &Policy) -> Result<Planned, String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().position(|planned| **planned.policy() == *policy);
        let planned = match known {
            Some(at) => kept.remove(at),
            None => {
                Planned::new(Arc::new(policy.clone()), "the policy").map_err(|error| error.to_string())?
            }
        };
        kept.push(planned.clone());
        let over = kept.len().saturating_sub(KEPT_MAX);
        kept.drain(..over);
        Ok(planned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(port: u16) -> Policy {
        let text =
            format!("apiVersion: csp/v1\nchannels: [{{name: ticks, vip: 10.76.0.100, port: {port}}}]\n");
        Policy::parse_yaml(&text, "p.yaml").unwrap()
    }

    #[test]
    fn a_policy_is_planned_once_between_check_and_apply() {
        let plans = Plans::default();
        let made = [1, 2].map(|port| plans.of(&policy(port)).unwrap());
        let is_kept = |at: usize, plans: &Plans| {
            Arc::ptr_eq(plans.of(&policy(at as u16 + 1)).unwrap().catalogue(), made[at].catalogue())
        };
        // The policy in force is checked and applied again while another is staged.
        assert!(is_kept(0, &plans) && is_kept(1, &plans) && is_kept(0, &plans));
        plans.of(&policy(3)).unwrap();
        assert!(is_kept(0, &plans), "the two newest are kept");
        assert!(!is_kept(1, &plans));
    }

    #[test]
    fn a_policy_that_cannot_be_planned_is_refused() {
        let mut wrong = policy(1);
        wrong.channels[0].path = vec![csp_policy::PathStage {
            handler: "of-another-release".to_owned(),
            context: "c0".to_owned(),
            ..csp_policy::PathStage::default()
        }];
        wrong.validate("p.yaml").unwrap();
        let error = Plans::default().of(&wrong).unwrap_err();
        assert!(error.contains("channels[0].path[0].handler: `of-another-release` is not known"), "{error}");
    }
}

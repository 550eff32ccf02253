//! Contexts that are programs of the cluster: `g0` to `g7`, each with the processes that may be it.

use std::collections::{HashMap, HashSet};

use csp_config::Problems;
use csp_handlers::G_CONTEXTS_MAX;
use serde::{Deserialize, Serialize};

use super::check::check_count;
use super::{POOL_MAX, Policy, PoolMember, Server};

/// A context that paths of channels may name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GContext {
    /// `g0` to `g7`, each once.
    pub name: String,
    /// Where `csp-context` listens. Each proxy worker with channels that need the context connects to one of
    /// them.
    pub pool: Vec<PoolMember>,
}

/// Returns the number of a context of this name.
pub(super) fn number_of(name: &str) -> Option<u16> {
    let number = name.strip_prefix('g').filter(|digits| digits.len() == 1)?.parse().ok();
    number.filter(|number| *number < G_CONTEXTS_MAX)
}

impl GContext {
    /// Returns its number: 0 for `g0`; `None` if that is no name.
    pub fn number(&self) -> Option<u16> {
        number_of(&self.name)
    }

    /// Returns the name that its service has at proxies. No service of a policy has such a name.
    pub fn service_name(&self) -> String {
        format!("context {}", self.name)
    }

    pub(super) fn summary(&self) -> String {
        let pool: Vec<String> =
            self.pool.iter().map(|member| format!("{} port {}", member.node, member.port)).collect();
        format!("{} pool {}", self.name, pool.join(", "))
    }
}

/// Checks the contexts of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("contexts", policy.contexts.len(), 0, G_CONTEXTS_MAX.into(), problems);
    let of_services = policy.services.iter().flat_map(|service| &service.pool);
    let of_services = of_services.filter_map(Server::member);
    let clients: HashSet<PoolMember> =
        of_services.chain(super::framing::members(&policy.channels).copied()).collect();
    let mut names = HashMap::new();
    for (index, context) in policy.contexts.iter().enumerate() {
        let at = format!("contexts[{index}]");
        let name = context.name.as_str();
        if context.number().is_none() {
            let message = format!("{name:?} is no context; there are g0 to g{}", G_CONTEXTS_MAX - 1);
            problems.add(format!("{at}.name"), message);
        } else if let Some(first) = names.insert(name, index) {
            problems.add(format!("{at}.name"), format!("{name:?} is the name of contexts[{first}] already"));
        }
        check_count(&format!("{at}.pool"), context.pool.len(), 1, POOL_MAX, problems);
        let mut members = HashSet::new();
        for (index, member) in context.pool.iter().enumerate() {
            let PoolMember { node, port } = member;
            if !members.insert(member) {
                let message = format!("{node} port {port} is in this pool already");
                problems.add(format!("{at}.pool[{index}]"), message);
            }
            if clients.contains(member) {
                // A client could be taken for a proxy.
                let message =
                    format!("{node} port {port} serves clients, too; a context needs a port of its own");
                problems.add(format!("{at}.pool[{index}]"), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    const CONTEXTS: &str = "\
apiVersion: csp/v1
services:
  - name: web
    vip: 10.76.0.100
    port: 80
    pool: [{node: an-1, port: 8080}]
channels:
  - name: ticks
    vip: 10.76.0.100
    port: 5556
    path:
      - {handler: forward}
      - {handler: drop-every, context: g1, parameters: \"10\"}
contexts:
  - name: g1
    pool: [{node: an-1, port: 7100}, {node: an-2, port: 7100}]
";

    #[test]
    fn a_path_may_lead_through_a_context_with_a_pool() {
        let policy = Policy::parse_yaml(CONTEXTS, "p.yaml").unwrap();
        assert_eq!(policy.contexts[0].number(), Some(1));
        assert_eq!(policy.channels[0].path[1].context_number(), Some(9), "after the worker's own");
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        let before = CONTEXTS.replace("context: g1, ", "");
        let before = Policy::parse_yaml(before.split("contexts:").next().unwrap(), "p.yaml").unwrap();
        assert!(!before.to_json().contains("contexts"), "the hash of a policy without contexts stays");
        let diff = before.diff(&policy).join("\n");
        assert!(diff.ends_with("+ context g1 pool an-1 port 7100, an-2 port 7100"), "{diff}");
    }

    #[test]
    fn wrong_contexts_are_refused() {
        for (from, to, expected) in [
            ("name: g1", "name: g8", "15:11: contexts[0].name: \"g8\" is no context; there are g0 to g7"),
            (
                "context: g1",
                "context: g2",
                "13:40: channels[0].path[1].context: `g2` is not among the policy's contexts",
            ),
            (
                "context: g1",
                "context: h1",
                "13:40: channels[0].path[1].context: `h1` is no context; there are c0 to c7, and those of `contexts`",
            ),
            (
                "port: 7100}, {node: an-2",
                "port: 7100}, {node: an-1",
                "16:38: contexts[0].pool[1]: an-1 port 7100 is in this pool already",
            ),
            (
                "{node: an-1, port: 7100}",
                "{node: an-1, port: 8080}",
                "16:12: contexts[0].pool[0]: an-1 port 8080 serves clients, too; a context needs a port of its own",
            ),
            (
                "[{node: an-1, port: 7100}, {node: an-2, port: 7100}]",
                "[]",
                "16:11: contexts[0].pool: has 0 entries; allowed are 1 to 256",
            ),
        ] {
            let error = Policy::parse_yaml(&CONTEXTS.replacen(from, to, 1), "p.yaml").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}\n{expected}");
        }
    }
}

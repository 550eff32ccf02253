//! Reasons why instances do not run on their configured level.

use std::collections::{BTreeMap, BTreeSet};

use csp_plugins::{Binding, DRIVER, EnvironmentId, Manager};
use csp_telemetry::MailboxError;

use super::data_thread::Question;
use super::plugins::{PluginControl, WORKER_TIMEOUT};

/// Largest number of rules that are named with their reason; the others are counted.
const RULES_SHOWN: usize = 3;

/// Why plug-in hosts do not run their instances, by the environment's name.
pub type AbsentHosts = BTreeMap<String, String>;

impl PluginControl {
    /// Returns the plug-in hosts that do not run their instances for all workers. `running` is what the
    /// workers have counted.
    pub(super) async fn absent_hosts(
        &mut self,
        running: &[(EnvironmentId, bool)],
    ) -> Result<AbsentHosts, MailboxError> {
        let names: Vec<String> = self.manager.environments().iter().map(|known| known.name.clone()).collect();
        let name = |id: EnvironmentId| names.get(usize::from(id.0));
        let absent = running.iter().filter(|(_, running)| !running);
        let mut absent: AbsentHosts =
            absent.filter_map(|(id, _)| Some((name(*id)?.clone(), "it is not reached".to_owned()))).collect();
        if absent.is_empty() {
            return Ok(absent);
        }
        for mailbox in &self.workers.mailboxes {
            for (id, reason) in mailbox.ask(WORKER_TIMEOUT, Question::AbsentHosts).await? {
                if let Some(known) = name(id).and_then(|name| absent.get_mut(name)) {
                    *known = reason;
                }
            }
        }
        Ok(absent)
    }

    /// Returns why an instance does not run in its environment, or not for all packets.
    pub(super) fn held(&self, name: &str, environment: &str, absent: &AbsentHosts) -> Option<String> {
        if environment != DRIVER {
            let reason = absent.get(environment)?;
            return Some(format!("does not run, its rules fall back: plug-in host {environment}: {reason}"));
        }
        if let Some(reason) = self.driver.unavailable() {
            return Some(format!("runs at level 2: level 1 is not available: {reason}"));
        }
        let leading = rules_to(&self.manager, name);
        let demoted = self.driver.demoted().iter().filter(|demoted| leading.contains(demoted.rule.as_str()));
        let demoted: Vec<String> =
            demoted.map(|demoted| format!("rule {}: {}", demoted.rule, demoted.reason)).collect();
        if !demoted.is_empty() {
            return Some(format!("runs at level 2 for {}", some_of(&demoted)));
        }
        let refused = self.driver.refused();
        (!refused.is_empty() && !leading.is_empty())
            .then(|| format!("runs at level 2 at LAN port {}", some_of(refused)))
    }
}

fn some_of(all: &[String]) -> String {
    let shown = all[..all.len().min(RULES_SHOWN)].join("; ");
    match all.len().saturating_sub(RULES_SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Returns the rules whose packets can reach an instance.
fn rules_to<'a>(manager: &'a Manager, name: &str) -> BTreeSet<&'a str> {
    let connected = manager.connected();
    let mut before = BTreeSet::from([name]);
    // The graph has no cycles: each round adds one step until nothing is new.
    loop {
        let known = before.len();
        let steps = connected.iter().filter(|(_, _, to)| before.contains(to.as_str()));
        let from: Vec<&str> = steps.map(|(from, ..)| from.as_str()).collect();
        before.extend(from);
        if before.len() == known {
            break;
        }
    }
    let first = |instance| manager.name_of(Binding::decode(instance).instance);
    let rules = manager.rules().rules().into_iter();
    let leading = rules.filter(|(rule, _)| first(rule.instance).is_some_and(|name| before.contains(name)));
    leading.map(|(rule, _)| &*rule.name).collect()
}

#[cfg(test)]
mod tests {
    use csp_classify::multifield::{InstanceId, Match, Rule};
    use csp_plugins::{Fallback, HashKey, Level, ManagerConfig, builtin};

    use super::*;

    #[test]
    fn rules_lead_to_what_their_packets_can_reach() {
        let mut manager = Manager::new(ManagerConfig::new(1, HashKey(1, 2)));
        builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
        manager.add_environment(DRIVER, Level::Driver).unwrap();
        let made = ["a", "b", "c"].map(|name| manager.create(name, "counter", DRIVER, &[]).unwrap());
        manager.connect("a", 0, "b").unwrap();
        let rule = |(name, instance): (&str, InstanceId)| {
            let instance = Binding { instance, fallback: Fallback::Pass }.encode();
            Rule { name: name.into(), priority: 1, fields: Match::ANY, instance }
        };
        let rules = ["first", "second", "third"].into_iter().zip(made).map(rule);
        manager.replace_rules(rules.collect()).unwrap();
        let to = |name| rules_to(&manager, name).into_iter().collect::<Vec<_>>();
        assert_eq!((to("a"), to("b"), to("c")), (vec!["first"], vec!["first", "second"], vec!["third"]));
    }

    #[test]
    fn a_few_reasons_are_named_and_the_others_counted() {
        let reasons = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>();
        assert_eq!(some_of(&reasons(3)), "0; 1; 2");
        assert_eq!(some_of(&reasons(5)), "0; 1; 2; and 2 more");
    }
}

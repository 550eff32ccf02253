//! A policy's state replaces another one: what stays keeps its state, and the workers end up with what is
//! declared.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use csp_classify::multifield::Match;
use csp_plugins::text::parse_rule;
use csp_plugins::{
    Desired, DesiredInstance, DesiredRule, Graph, HashKey, Level, Manager, ManagerConfig, Place, builtin,
};

fn manager(workers: usize) -> Manager {
    let mut manager = Manager::new(ManagerConfig {
        rules_max: 64,
        instances_max: 8,
        ..ManagerConfig::new(workers, HashKey(1, 2))
    });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment("workers", Level::Worker).unwrap();
    manager.start("workers").unwrap();
    manager
}

fn instance(text: &str, outputs: &[Option<&str>]) -> DesiredInstance {
    let mut words = text.split_whitespace();
    let (name, module) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let setting = |word: &str| word.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).unwrap();
    let outputs = outputs.iter().map(|to| to.map(str::to_owned)).collect();
    DesiredInstance {
        name,
        module,
        settings: words.map(setting).collect(),
        outputs,
        ..DesiredInstance::default()
    }
}

fn rule(text: &str) -> DesiredRule {
    let words: Vec<&str> = text.split_whitespace().collect();
    let rule = parse_rule(&words).unwrap();
    DesiredRule {
        name: rule.name,
        priority: rule.priority,
        fields: rule.fields,
        instance: rule.instance,
        fallback: rule.fallback,
    }
}

/// Applies a state and returns names of instances and the sequence of rules.
fn reconcile(manager: &mut Manager, graph: &mut Graph, desired: &Desired) -> (Vec<String>, Vec<String>) {
    manager.reconcile(desired).unwrap();
    while let Some(command) = manager.poll_command(0) {
        drop(graph.apply(command));
    }
    let instances = manager.instances().map(|(_, name, ..)| name.to_owned()).collect();
    let rules = manager.rules().rules().into_iter().map(|(rule, _)| rule.name.to_string()).collect();
    (instances, rules)
}

fn first() -> Desired {
    Desired {
        instances: vec![
            // The one that names another comes first: the sequence does not matter.
            instance("limit policer rate=1M block=blocked", &[Some("count")]),
            instance("blocked block-list", &[Some("limit")]),
            instance("count counter", &[]),
        ],
        rules: vec![rule("b prio 9 proto udp plugin blocked"), rule("a prio 5 proto tcp plugin count")],
    }
}

#[test]
fn a_state_replaces_another_and_keeps_what_stays() {
    let (mut manager, mut graph) = (manager(1), Graph::new(8, 2));
    let (instances, rules) = reconcile(&mut manager, &mut graph, &first());
    assert_eq!((instances.len(), rules), (3, vec!["a".to_owned(), "b".to_owned()]));
    let (blocked, count) = (manager.instance("blocked").unwrap(), manager.instance("count").unwrap());
    let handle = manager.rules().rule("a").unwrap().1;
    let (id, operation, arguments) =
        manager.prepare_call("blocked", "add", &[("prefix", "192.0.2.0/24")]).unwrap();
    graph.call(csp_types::Instant::ZERO, id, operation, &arguments).unwrap();
    // Nothing changes: no command, the same table.
    let generation = manager.publish_rules().generation;
    manager.reconcile(&first()).unwrap();
    assert!(manager.poll_command(0).is_none());
    assert_eq!(manager.publish_rules().generation, generation);
    // Other settings of the policer, which names an instance; the block list and its content stay.
    let mut second = first();
    second.instances[0] = instance("limit policer rate=2M", &[Some("extra")]);
    second.instances[2] = instance("count counter length_v4=16", &[]);
    second.instances.push(instance("extra dscp dscp=46", &[Some("count")]));
    second.rules.remove(0);
    reconcile(&mut manager, &mut graph, &second);
    assert_eq!(manager.instance("blocked").unwrap(), blocked);
    assert_eq!(manager.instance("count").unwrap(), count);
    assert_eq!(manager.rules().rule("a").unwrap().1, handle, "its counters go on");
    let (id, operation, arguments) = manager.prepare_call("blocked", "list", &[]).unwrap();
    let listed = graph.call(csp_types::Instant::ZERO, id, operation, &arguments).unwrap();
    assert!(format!("{listed:?}").contains("192.0.2.0/24"), "{listed:?}");
    let connections: Vec<String> =
        manager.connected().into_iter().map(|(from, at, to)| format!("{from} {at} {to}")).collect();
    assert!(connections.contains(&"extra 0 count".to_owned()), "{connections:?}");
    assert!(!connections.contains(&"limit 0 count".to_owned()), "{connections:?}");
    // A module changes under the same name, while a rule and a connection lead there.
    second.instances[2] = instance("count no-op", &[]);
    reconcile(&mut manager, &mut graph, &second);
    assert_eq!(manager.settings_of("count").unwrap().0, "no-op");
    assert_ne!(manager.rules().rule("a").unwrap().1, handle);
    // And back to nothing.
    let nothing = reconcile(&mut manager, &mut graph, &Desired::default());
    assert_eq!(nothing, (vec![], vec![]));
    reconcile(&mut manager, &mut graph, &first());
}

#[test]
fn all_that_is_wrong_is_named_with_its_place() {
    let desired = Desired {
        instances: vec![
            instance("a policer rate=x", &[]),
            instance("b counter", &[Some("c"), None]),
            instance("c capture filter=prot", &[]),
            instance("d dscp dscp=4", &[Some("d")]),
        ],
        rules: vec![
            DesiredRule { fields: Match::ANY, ..rule("r plugin nobody") },
            rule("r plugin b"),
            rule("r plugin b"),
        ],
    };
    let found: Vec<(Place, String)> =
        manager(0).verify(&desired).into_iter().map(|error| (error.place, error.to_string())).collect();
    let expected = [
        (Place::Instance(0), "rate=x: expected a number"),
        (
            Place::Instance(2),
            "filter=prot: expected \"prot\" (word 1) is not expected here; did you mean proto?",
        ),
        (Place::Output(1, 0), "there is no instance c"),
        (Place::Output(3, 0), "the connection would close a cycle: d -> d"),
        (Place::Rule(0), "there is no instance nobody"),
        (Place::Rule(2), "there is a rule r already"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for ((place, text), (at, begin)) in found.iter().zip(expected) {
        assert!(*place == at && text.starts_with(begin), "{place:?} {text}");
    }
}

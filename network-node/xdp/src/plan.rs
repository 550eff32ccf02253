//! Selects the rules that the driver's program decides by itself, and compiles the table for it.
//!
//! A rule belongs to level 1 if all instances that its packets can reach are placed at level 1 and can run
//! there. The other rules stay at level 2, whose workers also have each instance of level 1.

use std::collections::HashMap;

use csp_classify::multifield::{Direction, InstanceId, Rule, RuleHandle, Table};
use csp_plugins::{Binding, DRIVER, Manager, OUTPUTS_MAX, Settings, Value, is_supplied};

use crate::layout::{OUT, Operation, Placed, TableError, compile};
use crate::slots::{Slots, Wanted};

const NO_IMPLEMENTATION: &str = "the module has no implementation for level 1";

/// Largest number of instances that a packet can pass at level 1.
pub const HOPS_MAX: usize = 8;

/// Why a rule whose instance is placed at level 1 stays at level 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Demoted {
    /// Name of the rule.
    pub rule: String,
    /// The reason.
    pub reason: String,
}

/// The IP packets for addresses of others that workers receive, on ports with a path back to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Diverted {
    /// None: no rules exist for received packets.
    Nothing,
    /// Packets that a rule of level 2 decides, and packets that are not plain.
    Matched,
    /// All packets: the program does not have the rules.
    All,
}

/// What the program is to do.
#[derive(Debug)]
pub struct Plan {
    pub(crate) table: Vec<u8>,
    pub(crate) slots: Slots,
    pub(crate) rules: Vec<RuleHandle>,
    /// Rules whose instance is placed at level 1 but that stay at level 2.
    pub demoted: Vec<Demoted>,
    /// The parameters of supplied programs, by instance name.
    pub(crate) parameters: Vec<(String, String)>,
    /// Why instances of supplied programs do not run, by instance name.
    pub idle: HashMap<String, String>,
    complete: bool,
    pub(crate) diverted: Diverted,
}

/// An instance of the manager.
struct Node<'a> {
    name: &'a str,
    module: &'a str,
    settings: &'a Settings,
    /// For each output, the connected instance.
    next: [Option<usize>; OUTPUTS_MAX],
    at_level1: bool,
    /// Why a supplied program was not loaded.
    refused: Option<&'a str>,
    /// Name of an instance that calls this one.
    called_by: Option<&'a str>,
}

impl Plan {
    /// Makes a plan from the manager's state. `table` is the table of the workers. `before` has the present
    /// slots of instances.
    ///
    /// # Errors
    /// The rules exceed the bounds of a table. Level 2 then decides all of them.
    pub fn new(manager: &Manager, table: &Table, before: &Slots) -> Result<Plan, TableError> {
        Plan::without(manager, table, before, &HashMap::new())
    }

    /// Like [`new`](Self::new), when instances of supplied programs could not be loaded: `refused` has the
    /// reasons by name.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn without(
        manager: &Manager,
        table: &Table,
        before: &Slots,
        refused: &HashMap<String, String>,
    ) -> Result<Plan, TableError> {
        let mut nodes = nodes(manager);
        for node in &mut nodes {
            node.refused = refused.get(node.name).map(String::as_str);
        }
        let Decided { first, demoted, needed, idle, complete } = decide(manager, &nodes);
        let wanted = nodes.iter().zip(&needed).filter(|(_, needed)| **needed);
        let slots = before.assign(wanted.map(|(node, _)| Wanted::new(node.name, node.module, node.settings)));
        let place = |at: usize| slots.place(nodes[at].name).unwrap_or(OUT);
        let mut instances = vec![None; crate::INSTANCES_MAX];
        for (at, node) in nodes.iter().enumerate().filter(|(at, _)| needed[*at]) {
            let Ok(operation) = operation(node) else { continue };
            let next = node.next.map(|next| next.map_or(OUT, place));
            if let Some(instance) = instances.get_mut(usize::from(place(at))) {
                *instance = Some(Placed { operation, next });
            }
        }
        let starts: HashMap<u32, u8> = first.iter().map(|(rule, start)| (rule.slot, place(*start))).collect();
        let table = compile(table, &starts, &instances)?;
        let diverted = match manager.rules().rules().iter().any(|(rule, _)| is_received(rule)) {
            true => Diverted::Matched,
            false => Diverted::Nothing,
        };
        let rules = first.into_iter().map(|(rule, _)| rule).collect();
        let supplied =
            nodes.iter().zip(&needed).filter(|(node, needed)| **needed && is_supplied(node.module));
        let parameters =
            supplied.map(|(node, _)| (node.name.to_owned(), node.settings.text("parameters").to_owned()));
        Ok(Plan { table, slots, rules, demoted, parameters: parameters.collect(), idle, complete, diverted })
    }

    /// Returns a plan without rules, for a rule set that exceeds the bounds of a table. Workers then receive
    /// all IP packets, on ports with a path back to the kernel.
    pub fn without_rules(before: &Slots) -> Plan {
        let table = compile(&Table::new(), &HashMap::new(), &[]).unwrap_or_default();
        let slots = before.assign(core::iter::empty());
        Plan {
            table,
            slots,
            rules: Vec::new(),
            demoted: Vec::new(),
            parameters: Vec::new(),
            idle: HashMap::new(),
            complete: false,
            diverted: Diverted::All,
        }
    }

    /// Returns whether there is anything to do.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the rules that level 1 decides by itself.
    pub fn rules(&self) -> &[RuleHandle] {
        &self.rules
    }

    /// Returns whether an instance has a place at level 1.
    pub fn has(&self, name: &str) -> bool {
        self.slots.has(name)
    }

    /// Returns whether level 1 decides all rules for received packets, so that level 2 need not classify
    /// plain packets.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the rules that level 1 decides by itself as a bit set over slots of rules.
    pub fn slots(&self) -> Vec<u64> {
        let longest = self.rules.iter().map(|rule| rule.slot as usize / 64 + 1).max().unwrap_or(0);
        let mut bits = vec![0; longest];
        for rule in &self.rules {
            bits[rule.slot as usize / 64] |= 1 << (rule.slot % 64);
        }
        bits
    }
}

/// The rules that level 1 decides.
struct Decided {
    /// Each of these rules with its first instance.
    first: Vec<(RuleHandle, usize)>,
    demoted: Vec<Demoted>,
    /// For each instance, whether a rule needs it.
    needed: Vec<bool>,
    idle: HashMap<String, String>,
    complete: bool,
}

/// A coalesced packet has the FIN and PSH flags of its last segment. Rules that compare these flags could
/// therefore match differently in a worker than in the driver, unless no worker classifies.
fn decide(manager: &Manager, nodes: &[Node<'_>]) -> Decided {
    let all = decide_on(manager, nodes, |_| true);
    let compares = |rule: &Rule| rule.fields.tcp_flags.is_some_and(|flags| flags.mask & FIN_PSH != 0);
    match all.complete {
        true => all,
        false => decide_on(manager, nodes, |rule| !compares(rule)),
    }
}

/// The TCP flags that a coalesced packet takes from one of its segments.
const FIN_PSH: u8 = 0x09;

fn decide_on(manager: &Manager, nodes: &[Node<'_>], may: impl Fn(&Rule) -> bool) -> Decided {
    let by_id = by_id(manager);
    let rules = manager.rules().rules();
    let compares_dscp = rules.iter().any(|(rule, _)| rule.fields.dscp.is_some() && is_received(rule));
    let runs =
        manager.environments().iter().any(|environment| environment.name == DRIVER && environment.running);
    let (mut first, mut demoted, mut complete) = (Vec::new(), Vec::new(), true);
    let (mut needed, mut reached) = (vec![false; nodes.len()], vec![false; nodes.len()]);
    let mut reasons: HashMap<usize, String> = HashMap::new();
    let mut search = PathSearch { nodes, compares_dscp, passed: vec![0; nodes.len()] };
    for (rule, handle) in &rules {
        let start = by_id.get(&Binding::decode(rule.instance).instance).copied();
        let Some(start) = start.filter(|start| nodes[*start].at_level1 && is_received(rule)) else {
            complete &= !is_received(rule);
            continue;
        };
        let reason = match runs {
            true if !may(rule) => {
                Some("it compares FIN or PSH, which a worker sees of coalesced packets".to_owned())
            }
            true => search.obstacle(start, 0),
            false => Some("the environment does not run".to_owned()),
        };
        let Some(reason) = reason else {
            reach(nodes, start, &mut needed);
            first.push((*handle, start));
            continue;
        };
        complete = false;
        let before = reached.clone();
        reach(nodes, start, &mut reached);
        let new = (0..nodes.len()).filter(|at| reached[*at] && !before[*at]);
        reasons.extend(new.map(|at| (at, reason.clone())));
        demoted.push(Demoted { rule: rule.name.to_string(), reason });
    }
    let is_idle = |at: &usize| nodes[*at].at_level1 && is_supplied(nodes[*at].module) && !needed[*at];
    let idle = (0..nodes.len()).filter(is_idle).map(|at| {
        let refused = nodes[at].refused.map(str::to_owned);
        let reason = refused.or_else(|| reasons.remove(&at)).unwrap_or_else(|| NO_RULE.to_owned());
        (nodes[at].name.to_owned(), reason)
    });
    let idle = idle.collect();
    Decided { first, demoted, needed, idle, complete }
}

/// Why an instance is not at level 1.
const NO_RULE: &str = "no rule leads packets that are received to it";

/// Returns why instances cannot run at level 1, by name. `movable` selects the instances to examine; all of
/// them are assumed to be at level 1.
pub fn obstacles(manager: &Manager, movable: impl Fn(&str) -> bool) -> HashMap<String, String> {
    let mut nodes = nodes(manager);
    let movable: Vec<bool> = nodes.iter().map(|node| movable(node.name)).collect();
    for (node, movable) in nodes.iter_mut().zip(&movable) {
        node.at_level1 |= movable;
        // WebAssembly modules are included; eBPF objects are never placed by the node.
        node.refused = (*movable && is_supplied(node.module)).then_some(NO_IMPLEMENTATION);
    }
    let by_id = by_id(manager);
    let rules = manager.rules().rules();
    let received = || rules.iter().map(|(rule, _)| *rule).filter(|rule| is_received(rule));
    let compares_dscp = received().any(|rule| rule.fields.dscp.is_some());
    let mut reached = vec![false; nodes.len()];
    for rule in received() {
        if let Some(start) = by_id.get(&Binding::decode(rule.instance).instance) {
            reach(&nodes, *start, &mut reached);
        }
    }
    let mut search = PathSearch { nodes: &nodes, compares_dscp, passed: vec![0; nodes.len()] };
    let mut obstacle = |at: usize| match reached[at] {
        true => search.obstacle(at, 0),
        false => Some(NO_RULE.to_owned()),
    };
    let all = (0..nodes.len()).filter(|at| movable[*at]);
    all.filter_map(|at| Some((nodes[at].name.to_owned(), obstacle(at)?))).collect()
}

fn is_received(rule: &Rule) -> bool {
    rule.fields.direction != Some(Direction::Egress)
}

/// Returns the index of each instance in the list of nodes.
fn by_id(manager: &Manager) -> HashMap<InstanceId, usize> {
    manager.instances().enumerate().map(|(at, (id, ..))| (id, at)).collect()
}

fn nodes(manager: &Manager) -> Vec<Node<'_>> {
    let names: HashMap<&str, usize> =
        manager.instances().enumerate().map(|(at, (_, name, ..))| (name, at)).collect();
    let mut nodes: Vec<Node<'_>> = manager
        .instances()
        .filter_map(|(_, name, module, environment)| {
            let (_, settings) = manager.settings_of(name).ok()?;
            Some(Node {
                name,
                module,
                settings,
                next: [None; OUTPUTS_MAX],
                at_level1: environment == DRIVER,
                refused: None,
                called_by: None,
            })
        })
        .collect();
    let by_id = by_id(manager);
    for from in 0..nodes.len() {
        for (_, value) in nodes[from].settings.iter() {
            if let Value::Instance(id) = value
                && let Some(&called) = by_id.get(id)
            {
                nodes[called].called_by = Some(nodes[from].name);
            }
        }
    }
    for (from, output, to) in manager.connected() {
        if let (Some(&from), Some(&to)) = (names.get(from.as_str()), names.get(to.as_str()))
            && let Some(next) = nodes[from].next.get_mut(usize::from(output))
        {
            *next = Some(to);
        }
    }
    nodes
}

/// Searches the paths of packets through the instances for obstacles to level 1.
struct PathSearch<'a> {
    nodes: &'a [Node<'a>],
    compares_dscp: bool,
    /// For each instance, a bound: with fewer preceding instances than this, no obstacle was found from there
    /// on.
    passed: Vec<usize>,
}

impl PathSearch<'_> {
    /// Returns why packets cannot be processed at level 1 from an instance on, given the number of preceding
    /// instances. The graph has no cycles.
    fn obstacle(&mut self, at: usize, hops: usize) -> Option<String> {
        let nodes = self.nodes;
        let node = &nodes[at];
        if hops < self.passed[at] {
            return None;
        }
        if !node.at_level1 {
            return Some(format!("packets can reach {}, which is not at level 1", node.name));
        }
        if hops == HOPS_MAX {
            return Some(format!("packets can pass more than {HOPS_MAX} plug-ins"));
        }
        if let Some(reason) = node.refused {
            return Some(format!("{}: {reason}", node.name));
        }
        if let Some(caller) = node.called_by {
            return Some(format!("{caller} calls {} at level 2, which level 1 would not know of", node.name));
        }
        if let Err(reason) = operation(node) {
            return Some(format!("{}: {reason}", node.name));
        }
        if node.module == "dscp" && self.compares_dscp {
            return Some(format!(
                "{} changes the codepoint, which rules of level 2 would compare afterwards",
                node.name
            ));
        }
        let behind = node.next.iter().flatten().find_map(|next| self.obstacle(*next, hops + 1));
        if behind.is_none() {
            self.passed[at] = hops + 1;
        }
        behind
    }
}

fn reach(nodes: &[Node<'_>], at: usize, needed: &mut [bool]) {
    if !core::mem::replace(&mut needed[at], true) {
        nodes[at].next.iter().flatten().for_each(|next| reach(nodes, *next, needed));
    }
}

fn operation(node: &Node<'_>) -> Result<Operation, &'static str> {
    let settings = node.settings;
    let by_destination = settings.text("field") == "destination";
    Ok(match node.module {
        "no-op" => Operation::NoOp,
        "drop" => Operation::Drop,
        "redirect" => Operation::Redirect(settings.number("interface") as u32),
        "counter" => Operation::Counter {
            by_destination,
            length_v4: settings.number("length_v4") as u8,
            length_v6: settings.number("length_v6") as u8,
        },
        "policer" if settings.instance("block").is_some() => {
            return Err("level 1 makes no calls, and block calls another plug-in");
        }
        "policer" => Operation::Policer {
            rate: settings.number("rate"),
            burst: settings.number("burst"),
            exceed_next: settings.text("exceed") == "next",
        },
        "dscp" => Operation::Dscp(settings.number("dscp") as u8),
        "block-list" => Operation::BlockList { by_destination },
        module if is_supplied(module) => Operation::Supplied,
        _ => return Err(NO_IMPLEMENTATION),
    })
}

#[cfg(test)]
mod tests {
    use csp_plugins::text::parse_match;
    use csp_plugins::{Fallback, HashKey, Level, ManagerConfig, WORKERS, builtin};

    use super::*;

    /// Creates instances at level 2, each with settings and the target of its first output.
    fn manager(instances: &[(&str, &str, &str, &str)], rules: &[(&str, &str)]) -> Manager {
        let mut manager = Manager::new(ManagerConfig::new(0, HashKey(1, 2)));
        builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
        manager.add_environment(WORKERS, Level::Worker).unwrap();
        for (name, module, settings, _) in instances {
            let settings: Vec<(&str, &str)> =
                settings.split_whitespace().filter_map(|s| s.split_once('=')).collect();
            manager.create(name, module, WORKERS, &settings).unwrap();
        }
        for (name, .., next) in instances.iter().filter(|(.., next)| !next.is_empty()) {
            manager.connect(name, 0, next).unwrap();
        }
        for (at, (conditions, instance)) in rules.iter().enumerate() {
            let words: Vec<&str> = conditions.split_whitespace().collect();
            let fields = parse_match(&words).unwrap();
            manager.add_rule(&format!("r{at}"), 10, fields, instance, Fallback::Pass).unwrap();
        }
        manager
    }

    #[test]
    fn obstacles_are_those_that_hold_with_all_movable_instances_at_level_1() {
        let instances = [
            ("blocked", "block-list", "", ""),
            ("calls", "policer", "rate=1M burst=1k block=blocked", ""),
            ("count", "counter", "", "mark"),
            ("mark", "dscp", "dscp=1", ""),
            ("tap", "capture", "", ""),
            ("front", "no-op", "", "tap"),
            ("back", "counter", "", ""),
        ];
        let mut rules = vec![
            ("proto tcp", "calls"),
            ("proto udp", "count"),
            ("proto icmp ingress", "front"),
            ("egress", "back"),
            ("proto 99", "blocked"),
        ];
        let told = |rules: &[(&str, &str)], movable: &dyn Fn(&str) -> bool| {
            let mut all: Vec<String> = obstacles(&manager(&instances, rules), movable)
                .into_iter()
                .map(|(name, reason)| format!("{name}: {reason}"))
                .collect();
            all.sort();
            all
        };
        let calls = "calls: calls: level 1 makes no calls, and block calls another plug-in";
        let back = "back: no rule leads packets that are received to it";
        let blocked = "blocked: calls calls blocked at level 2, which level 1 would not know of";
        assert_eq!(
            told(&rules, &|name| name != "tap"),
            [back, blocked, calls, "front: packets can reach tap, which is not at level 1"]
        );
        let none = "the module has no implementation for level 1";
        assert_eq!(
            told(&rules, &|name| name == "tap" || name == "front"),
            [format!("front: tap: {none}"), format!("tap: tap: {none}")]
        );
        assert_eq!(
            told(&rules, &|name| name == "count"),
            ["count: packets can reach mark, which is not at level 1"]
        );
        rules.push(("dscp 1", "blocked"));
        let compared = told(&rules, &|name| name == "count" || name == "mark");
        assert!(
            compared.len() == 2 && compared[0].contains("count: mark changes the codepoint"),
            "{compared:?}"
        );
    }

    /// A coalesced packet has the flags of its last segment, so that driver and worker would match different
    /// rules.
    #[test]
    fn rules_that_compare_fin_are_level_1_s_if_all_are() {
        let plan = |rules: &[(&str, &str)]| {
            let instances = [("near", "counter", "", ""), ("far", "counter", "", "")];
            let mut manager = manager(&instances, &[]);
            manager.add_environment(DRIVER, Level::Driver).unwrap();
            manager.start(DRIVER).unwrap();
            manager.create("ends", "counter", DRIVER, &[]).unwrap();
            for (at, (conditions, instance)) in rules.iter().enumerate() {
                let words: Vec<&str> = conditions.split_whitespace().collect();
                let fields = parse_match(&words).unwrap();
                manager.add_rule(&format!("r{at}"), 10, fields, instance, Fallback::Pass).unwrap();
            }
            let table = manager.publish_rules().table;
            let plan = Plan::new(&manager, &table, &Slots::default()).unwrap();
            (plan.rules().len(), plan.demoted.iter().map(|demoted| demoted.rule.clone()).collect::<Vec<_>>())
        };
        let (fin, syn) = (("ingress flags fin/fin", "ends"), ("ingress flags syn/syn,ack", "ends"));
        assert_eq!(plan(&[fin, syn]), (2, vec![]));
        assert_eq!(plan(&[fin, syn, ("ingress proto tcp", "near")]), (1, vec!["r0".to_owned()]));
        assert_eq!(plan(&[fin, ("egress proto tcp", "near")]), (1, vec![]));
    }
}

//! Packet plug-ins of network nodes: instances, how they are connected, and the rules that lead packets to
//! them.
//!
//! Every network node runs all of them. What is wrong is found by building the state in the plug-in manager
//! that a node has, too.

use std::collections::{BTreeMap, HashMap};

use csp_classify::multifield::Direction;
use csp_config::Problems;
use csp_plugins::text::{MatchText, PRIORITY_DEFAULT, parse_match};
use csp_plugins::{
    DRIVER, Desired, DesiredInstance, DesiredRule, Fallback, HashKey, Level, Manager, ManagerConfig, Place,
    WORKERS, builtin,
};
use serde::{Deserialize, Serialize};

use super::Policy;
use super::check::check_count;
use super::plugin_places::{PluginLevel, PluginPlacement};

/// Most packet plug-ins of a policy.
pub const PLUGINS_MAX: usize = 256;
/// Most packet rules of a policy.
pub const PACKET_RULES_MAX: usize = 16_384;
/// Most outputs of a plug-in.
pub const OUTPUTS_MAX: usize = csp_plugins::OUTPUTS_MAX;
/// Most packet plug-ins of a policy that run in the driver (level 1).
pub const DRIVER_PLUGINS_MAX: usize = 64;
/// An output that leads out of the graph.
const OUT: &str = "-";

/// An instance of a packet plug-in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketPlugin {
    /// 1 to 64 letters, digits, `-`, `_` and `.`; unique among plug-ins.
    pub name: String,
    /// What it is an instance of: `counter`, `policer`, … (docs/plugins.md), or the SHA-256 of a supplied
    /// module.
    pub module: String,
    /// Settings by name, as text; others have their defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// By output, from 0 on: the plug-in that gets its packets; `-`, and outputs beyond these: they are
    /// routed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Where it runs: 1 in the driver, 2 in the network nodes' workers, 3 on an attached host; `auto`: each
    /// node chooses between 1 and 2.
    #[serde(default, skip_serializing_if = "PluginLevel::is_default")]
    pub level: PluginLevel,
    /// Of level `auto`: packets per second that a node expects until it has measured them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expects: Option<u64>,
    /// Of level `auto`: by what nodes place it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PluginPlacement>,
    /// Of level 3: which of the policy's plug-in hosts runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
}

/// A rule that leads packets to a plug-in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketRule {
    /// 1 to 64 letters, digits, `-`, `_` and `.`; unique among rules.
    pub name: String,
    /// The rule with the lowest number that matches decides; of equal ones the first of the policy.
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// Conditions, such as `proto tcp dport 80 flags syn/syn,ack`; without any every IP packet matches.
    #[serde(default, rename = "match", skip_serializing_if = "String::is_empty")]
    pub conditions: String,
    /// The plug-in.
    pub plugin: String,
    /// What happens to its packets while the plug-in's environment does not run.
    #[serde(default)]
    pub fallback: Fallback,
}

const fn default_priority() -> u32 {
    PRIORITY_DEFAULT
}

impl PacketPlugin {
    pub(super) fn summary(&self) -> String {
        let settings = self.settings.iter().map(|(name, value)| format!(" {name}={value}"));
        let outputs = self.outputs.iter().map(|to| format!(" -> {to}"));
        let level = core::iter::once(self.level_summary());
        let context = self.context.iter().map(|host| format!(" at {host}"));
        let rest: String = settings.chain(outputs).chain(level).chain(context).collect();
        format!("{} {}{rest}", self.name, self.module)
    }

    fn desired(&self) -> DesiredInstance {
        DesiredInstance {
            name: self.name.clone(),
            module: self.module.clone(),
            settings: self.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            outputs: self.outputs.iter().map(|to| (to != OUT).then(|| to.clone())).collect(),
            level: self.level.fixed(),
            auto: self.auto(),
            host: self.context.clone().unwrap_or_default(),
        }
    }
}

impl PacketRule {
    /// The rule as `cspctl rule add` accepts it.
    pub fn text(&self) -> String {
        let conditions =
            if self.conditions.is_empty() { String::new() } else { format!(" {}", self.conditions) };
        let fallback = if self.fallback == Fallback::Drop { " fallback drop" } else { "" };
        format!("{} prio {}{conditions} plugin {}{fallback}", self.name, self.priority, self.plugin)
    }

    /// Makes a rule of what [`csp_plugins::text::parse_rule`] has read.
    pub fn from_text(rule: csp_plugins::text::RuleText) -> Self {
        let conditions = MatchText(&rule.fields).to_string();
        PacketRule {
            name: rule.name,
            priority: rule.priority,
            conditions,
            plugin: rule.instance,
            fallback: rule.fallback,
        }
    }

    fn desired(&self) -> Result<DesiredRule, String> {
        let words: Vec<&str> = self.conditions.split_whitespace().collect();
        let fields = parse_match(&words).map_err(|error| error.to_string())?;
        let (name, instance) = (self.name.clone(), self.plugin.clone());
        Ok(DesiredRule { name, priority: self.priority, fields, instance, fallback: self.fallback })
    }
}

/// A manager with all built-in modules, whose environments of levels 1 and 2 run.
pub fn plugin_manager(workers: usize, hash_key: HashKey) -> Manager {
    let mut manager = Manager::new(ManagerConfig {
        rules_max: PACKET_RULES_MAX,
        instances_max: PLUGINS_MAX,
        ..ManagerConfig::new(workers, hash_key)
    });
    for module in builtin::MODULES {
        manager.install(module).expect("the modules' names are different");
    }
    for (name, level) in [(WORKERS, Level::Worker), (DRIVER, Level::Driver)] {
        manager.add_environment(name, level).expect("the names are different, and there is room");
        manager.start(name).expect("it was added");
    }
    manager
}

impl Policy {
    /// Plug-ins and rules as the plug-in manager has them.
    pub fn packet_plugins(&self) -> Desired {
        Desired {
            instances: self.plugins.iter().map(PacketPlugin::desired).collect(),
            rules: self.rules.iter().filter_map(|rule| rule.desired().ok()).collect(),
        }
    }
}

/// Rules that no packet reaches, since another one covers them.
pub(super) fn covered_rules(policy: &Policy) -> Vec<String> {
    if policy.rules.is_empty() {
        return Vec::new();
    }
    let mut manager = plugin_manager(0, HashKey::default());
    drop(manager.verify(&policy.packet_plugins()));
    let covered = manager.covered_rules().into_iter();
    let text = |covered: csp_classify::multifield::Covered| {
        format!(
            "rule {} is never matched: {} matches all that it matches, before it",
            covered.rule, covered.by
        )
    };
    covered.map(text).collect()
}

/// Checks plug-ins and rules of a policy.
pub(super) fn check(policy: &Policy, problems: &mut Problems) {
    check_count("plugins", policy.plugins.len(), 0, PLUGINS_MAX, problems);
    check_count("rules", policy.rules.len(), 0, PACKET_RULES_MAX, problems);
    let counts_fit = policy.plugins.len() <= PLUGINS_MAX && policy.rules.len() <= PACKET_RULES_MAX;
    if (policy.plugins.is_empty() && policy.rules.is_empty()) || !counts_fit {
        return;
    }
    let mut names = HashMap::new();
    for (at, plugin) in policy.plugins.iter().enumerate() {
        check_count(&format!("plugins[{at}].outputs"), plugin.outputs.len(), 0, OUTPUTS_MAX, problems);
        plugin.check_level(at, problems);
        if let Some(first) = names.insert(plugin.name.as_str(), at) {
            let message = format!("{:?} is the name of plugins[{first}] already", plugin.name);
            problems.add(format!("plugins[{at}].name"), message);
        }
    }
    if names.len() < policy.plugins.len() {
        // What else is wrong may follow from that.
        return;
    }
    // Rules whose conditions cannot be read are left out below; the others keep their places in the policy.
    let (mut rules, mut places) = (Vec::new(), Vec::new());
    for (at, rule) in policy.rules.iter().enumerate() {
        match rule.desired() {
            Ok(rule) => {
                rules.push(rule);
                places.push(at);
            }
            Err(error) => problems.add(format!("rules[{at}].match"), error),
        }
    }
    check_driver(policy, &rules, &places, problems);
    if policy.plugins.iter().any(|plugin| plugin.level.is(Level::Host) && plugin.context.is_none()) {
        // Without its host there is no environment for it; that was reported.
        return;
    }
    let desired = Desired { rules, ..policy.packet_plugins() };
    for error in plugin_manager(0, HashKey::default()).verify(&desired) {
        let field = match error.place {
            Place::Instance(at) => format!("plugins[{at}]{}", field_of(&error.error)),
            Place::Output(at, output) => format!("plugins[{at}].outputs[{output}]"),
            Place::Rule(at) => format!("rules[{}]{}", places[at], rule_field_of(&error.error)),
            Place::Rules => "rules".to_owned(),
        };
        problems.add(field, error.to_string());
    }
}

/// What level 1 cannot do beside what modules lack there.
fn check_driver(policy: &Policy, rules: &[DesiredRule], places: &[usize], problems: &mut Problems) {
    let in_driver = |plugin: &&PacketPlugin| plugin.level.is(Level::Driver);
    let count = policy.plugins.iter().filter(in_driver).count();
    if count > DRIVER_PLUGINS_MAX {
        let message = format!("has {count} plug-ins at level 1; {DRIVER_PLUGINS_MAX} are the most");
        problems.add("plugins", message);
    }
    for (at, plugin) in policy.plugins.iter().enumerate().filter(|(_, plugin)| in_driver(plugin)) {
        if plugin.module == "mirror" {
            let message = "1 is not possible for mirror: a program in the driver cannot copy a packet";
            problems.add(format!("plugins[{at}].level"), message);
        }
    }
    for (rule, at) in rules.iter().zip(places) {
        let plugin = policy.plugins.iter().filter(in_driver).find(|plugin| plugin.name == rule.instance);
        if let Some(plugin) = plugin.filter(|_| rule.fields.direction == Some(Direction::Egress)) {
            let message = format!(
                "egress, but {} is at level 1: the driver's program sees only packets that are received",
                plugin.name
            );
            problems.add(format!("rules[{at}].match"), message);
        }
    }
}

/// The field of a plug-in that an error is about.
fn field_of(error: &csp_plugins::ManagerError) -> String {
    use csp_plugins::{ManagerError, ObjectKind, SettingError};
    match error {
        ManagerError::Name(_) | ManagerError::Exists(..) => ".name".to_owned(),
        ManagerError::Level { .. } | ManagerError::Unknown { what: ObjectKind::Environment, .. } => {
            ".level".to_owned()
        }
        ManagerError::Unknown { .. } => ".module".to_owned(),
        ManagerError::Setting(SettingError::Value { name, .. } | SettingError::Twice(name)) => {
            format!(".settings.{name}")
        }
        ManagerError::Setting(SettingError::Unknown { name, .. }) => format!(".settings.{name}"),
        ManagerError::Setting(SettingError::Missing(_)) => String::new(),
        _ => ".settings".to_owned(),
    }
}

/// The field of a rule that an error is about.
fn rule_field_of(error: &csp_plugins::ManagerError) -> &'static str {
    use csp_classify::multifield::{OwnerError, RuleError};
    use csp_plugins::ManagerError;
    match error {
        ManagerError::Unknown { .. } => ".plugin",
        ManagerError::Rule(OwnerError::Rule { error: RuleError::Priority(_), .. }) => ".priority",
        ManagerError::Rule(OwnerError::Rule { .. }) => ".match",
        _ => ".name",
    }
}

#[cfg(test)]
mod tests {
    use csp_plugins::Level;

    use super::PluginLevel;
    use crate::Policy;

    const PLUGINS: &str = "\
apiVersion: csp/v1
plugins:
  - name: limit
    module: policer
    settings: {rate: 8k, burst: 200, block: blocked}
  - name: blocked
    module: block-list
    outputs: [limit]
  - name: mark
    module: dscp
    settings:
      dscp: '46'
rules:
  - name: dns
    priority: 10
    match: proto udp dport 53
    plugin: blocked
  - name: all
    plugin: mark
    fallback: drop
";

    #[test]
    fn plugins_and_rules_are_part_of_a_policy() {
        let policy = Policy::parse_yaml(PLUGINS, "p.yaml").unwrap();
        assert_eq!(policy.plugins[0].settings["burst"], "200", "a number is text here");
        assert_eq!(policy.rules[1].priority, 1000);
        assert_eq!(policy.rules[0].text(), "dns prio 10 proto udp dport 53 plugin blocked");
        assert_eq!(policy.warnings(), [""; 0]);
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        assert_eq!(Policy::parse_yaml(&policy.to_json(), "p.json").unwrap(), policy, "as cspctl sends it");
        let diff = Policy::empty().diff(&policy).join("\n");
        assert!(diff.contains("+ plugin blocked block-list -> limit"), "{diff}");
        assert!(diff.contains("+ rule all prio 1000 plugin mark fallback drop"), "{diff}");
        assert!(!Policy::empty().to_json().contains("rules"), "the hash of a policy without them stays");
    }

    #[test]
    fn a_plug_in_says_on_which_level_it_runs() {
        let text = PLUGINS.replace("module: dscp", "module: dscp\n    level: 1");
        let policy = Policy::parse_yaml(&text, "p.yaml").unwrap();
        assert_eq!(
            (policy.plugins[0].level, policy.plugins[2].level),
            (PluginLevel::Fixed(Level::Worker), PluginLevel::Fixed(Level::Driver))
        );
        assert_eq!(policy.packet_plugins().instances[2].level, Level::Driver);
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        assert_eq!(policy.to_json().matches("level").count(), 1, "the default is left out");
        let before = Policy::parse_yaml(PLUGINS, "p.yaml").unwrap();
        let diff = before.diff(&policy).join("\n");
        assert!(diff.contains("+ plugin mark dscp dscp=46 level 1"), "{diff}");
        for (to, expected) in [
            ("module: dscp\n    level: 4", "plugins[2].level: 4 is no level; allowed is 1 (driver), 2"),
            (
                "module: capture\n    level: 1",
                "plugins[2].level: module capture has no implementation for level 1",
            ),
            (
                "module: mirror\n    level: 1",
                "plugins[2].level: 1 is not possible for mirror: a program in the",
            ),
        ] {
            let text = PLUGINS.replace("module: dscp", to);
            let error = Policy::parse_yaml(&text, "p.yaml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
        let egress = text.replace("  - name: all\n", "  - name: all\n    match: egress\n");
        let error = Policy::parse_yaml(&egress, "p.yaml").unwrap_err().to_string();
        assert!(error.contains("rules[1].match: egress, but mark is at level 1"), "{error}");
    }

    #[test]
    fn the_example_of_the_manual_is_a_policy() {
        let manual = include_str!("../../../docs/plugins.md");
        let example = manual.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        let policy = Policy::parse_yaml(example, "plugins.md").unwrap();
        assert_eq!((policy.plugins.len(), policy.rules.len()), (3, 2));
    }

    #[test]
    fn a_covered_rule_is_a_warning() {
        let text = PLUGINS.replace("    match: proto udp dport 53\n", "");
        let policy = Policy::parse_yaml(&text, "p.yaml").unwrap();
        assert_eq!(
            policy.warnings(),
            ["rule all is never matched: dns matches all that it matches, before it"]
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (from, to, expected) in [
            (
                "module: policer",
                "module: polizer",
                "4:13: plugins[0].module: there is no module polizer; did you mean policer?",
            ),
            ("rate: 8k", "rate: fast", "5:22: plugins[0].settings.rate: rate=fast: expected a number from"),
            ("rate: 8k, ", "", "3:5: plugins[0]: rate is required"),
            (
                "burst: 200",
                "bust: 200",
                "plugins[0].settings.bust: there is no parameter bust; did you mean burst?",
            ),
            (
                "name: blocked",
                "name: limit",
                "6:11: plugins[1].name: \"limit\" is the name of plugins[0] already",
            ),
            ("name: mark", "name: a b", "9:11: plugins[2].name: \"a b\" is no name"),
            (
                "[limit]",
                "[limit, mark]",
                "8:22: plugins[1].outputs[1]: blocked has 1 outputs, from 0 on; there is no output 1",
            ),
            (
                "[limit]",
                "[blocked]",
                "8:15: plugins[1].outputs[0]: the connection would close a cycle: blocked -> blocked",
            ),
            ("dport 53", "dport", "16:12: rules[0].match: dport at the end of the text needs a value"),
            (
                "proto udp dport 53",
                "proto icmp dport 53",
                "rules[0].match: ports are required, but protocol 1 has none",
            ),
            (
                "plugin: mark",
                "plugin: marc",
                "19:13: rules[1].plugin: there is no instance marc; did you mean mark?",
            ),
            ("name: all", "name: dns", "18:11: rules[1].name: there is a rule dns already"),
            ("priority: 10", "priority: 99999999", "15:15: rules[0].priority: "),
            ("fallback: drop", "fallback: open", "20:15: rules[1].fallback: "),
        ] {
            let error = Policy::parse_yaml(&PLUGINS.replacen(from, to, 1), "p.yaml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }
}

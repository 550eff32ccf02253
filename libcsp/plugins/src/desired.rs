//! The desired state as a whole (instances, connections and rules, as a policy declares them), and the
//! changes that lead to it.
//!
//! Unchanged objects keep their state: an instance its tables, a rule its counters. An instance with other
//! settings is reconfigured. It is created again if its module refuses that, or if its settings name an
//! instance that changes. Workers see all changes of rules at once.

use std::collections::BTreeSet;

use csp_classify::multifield::{Match, Rule};

use crate::command::Level;
use crate::manager::{Manager, ManagerError};
use crate::packet::{Binding, Fallback};
use crate::places::Auto;

/// Name of the execution environment of level 1.
pub const DRIVER: &str = "driver";
/// Name of the execution environment of level 2.
pub const WORKERS: &str = "workers";
/// Name of the execution environment of level 3 on a plug-in host itself. A network node has an environment
/// with a name of its own for each host.
pub const HOST: &str = "host";

/// The desired state of an instance.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DesiredInstance {
    /// Its name.
    pub name: String,
    /// Its module.
    pub module: String,
    /// Settings by name. Settings not listed have their defaults.
    pub settings: Vec<(String, String)>,
    /// The instance connected to each output. `None` leads out of the graph, as do outputs beyond the list.
    pub outputs: Vec<Option<String>>,
    /// Where it runs.
    pub level: Level,
    /// Set if the node chooses between levels 1 and 2; `level` is then its choice.
    pub auto: Option<Auto>,
    /// Level 3 only: the name of its host. Empty: [`HOST`].
    pub host: String,
}

impl DesiredInstance {
    /// Returns the name of the environment in which it runs.
    pub fn environment(&self) -> &str {
        match self.level {
            Level::Driver => DRIVER,
            Level::Worker => WORKERS,
            Level::Host if self.host.is_empty() => HOST,
            Level::Host => &self.host,
        }
    }
}

/// The desired state of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DesiredRule {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: u32,
    /// Conditions that a packet must meet.
    pub fields: Match,
    /// The name of the instance.
    pub instance: String,
    /// Fate of matching packets while the instance's environment does not run.
    pub fallback: Fallback,
}

/// A desired state as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Desired {
    /// Instances, in any order.
    pub instances: Vec<DesiredInstance>,
    /// Rules. Among rules of equal priority the first match applies.
    pub rules: Vec<DesiredRule>,
}

impl Desired {
    /// Returns the environments of level 3 that instances use, each once.
    fn hosts(&self) -> BTreeSet<&str> {
        let hosted = self.instances.iter().filter(|instance| instance.level == Level::Host);
        hosted.map(DesiredInstance::environment).collect()
    }
}

/// The part of a [`Desired`] state that is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// An instance, by its index.
    Instance(usize),
    /// An output of an instance.
    Output(usize, usize),
    /// A rule, by its index.
    Rule(usize),
    /// The rules together.
    Rules,
}

/// Why a desired state is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{error}")]
pub struct DesiredError {
    /// The part that is wrong.
    pub place: Place,
    /// The reason.
    pub error: ManagerError,
}

impl Manager {
    /// Returns all errors of a desired state, by building it in this manager, which must be empty. With zero
    /// workers nothing is allocated for packets.
    pub fn verify(&mut self, desired: &Desired) -> Vec<DesiredError> {
        // A host beyond the limit gets no environment, which is reported for its instances.
        let _ = self.set_hosts(&desired.hosts());
        let all: Vec<usize> = (0..desired.instances.len()).collect();
        let mut errors = self.create_all(desired, all);
        for (at, instance) in desired.instances.iter().enumerate() {
            if self.instance(&instance.name).is_ok() {
                errors.extend(self.connect_all(at, instance));
            }
        }
        for (at, rule) in desired.rules.iter().enumerate() {
            let DesiredRule { name, priority, fields, instance, fallback } = rule;
            let added = self.add_rule(name, *priority, *fields, instance, *fallback);
            errors.extend(added.err().map(|error| DesiredError { place: Place::Rule(at), error }));
        }
        errors.sort_by_key(|error| error.place);
        errors
    }

    /// Changes instances, connections and rules to the desired state. The commands for workers belong
    /// together with the table that [`publish_rules`](Self::publish_rules) returns: a worker that applies
    /// both between two packets sees no intermediate state.
    ///
    /// # Errors
    /// The state is one that [`verify`](Self::verify) refuses. The manager is then in a state between the
    /// former and the desired one; another call corrects this.
    pub fn reconcile(&mut self, desired: &Desired) -> Result<(), DesiredError> {
        let kept = self.kept(desired);
        self.keep_rules(&kept)?;
        self.keep_connections(desired, &kept);
        self.keep_instances(&kept);
        self.set_hosts(&desired.hosts()).map_err(|error| DesiredError { place: Place::Rules, error })?;
        let created = (0..desired.instances.len()).filter(|at| !kept.contains(&desired.instances[*at].name));
        let created = created.collect();
        if let Some(error) = self.create_all(desired, created).into_iter().next() {
            return Err(error);
        }
        for (at, instance) in desired.instances.iter().enumerate() {
            if let Some(error) = self.connect_all(at, instance).into_iter().next() {
                return Err(error);
            }
        }
        self.set_rules(desired)
    }

    /// Returns the names of the instances that are kept. Those with other settings are reconfigured here.
    fn kept(&mut self, desired: &Desired) -> BTreeSet<String> {
        let is_same = |manager: &Manager, instance: &DesiredInstance| {
            let settings = pairs(&instance.settings);
            manager.is_same(&instance.name, &instance.module, instance.environment(), &settings)
        };
        let same = desired.instances.iter().filter(|instance| is_same(self, instance));
        let same: BTreeSet<&str> = same.map(|instance| instance.name.as_str()).collect();
        let mut kept = BTreeSet::new();
        for instance in &desired.instances {
            let settings = pairs(&instance.settings);
            let (name, environment) = (instance.name.as_str(), instance.environment());
            // An instance that moves between levels 1 and 2 is kept.
            let _ = self.relocate(name, &instance.module, environment);
            if same.contains(name)
                || (self.can_be_configured(name, &instance.module, environment, &settings, &same)
                    && self.configure(name, &settings).is_ok())
            {
                kept.insert(instance.name.clone());
            }
        }
        // An instance whose settings name one that is created again is created again as well.
        loop {
            let names_another = |name: &&String| {
                let named = self.named_by(name);
                named.iter().any(|other| !kept.contains(*other))
            };
            let Some(gone) = kept.iter().find(names_another).cloned() else { return kept };
            kept.remove(&gone);
        }
    }

    fn keep_rules(&mut self, kept: &BTreeSet<String>) -> Result<(), DesiredError> {
        let name_of = |rule: &Rule| self.name_of(Binding::decode(rule.instance).instance).unwrap_or_default();
        let all = self.rules().rules();
        let rules: Vec<Rule> =
            all.iter().map(|(rule, _)| *rule).filter(|rule| kept.contains(name_of(rule))).cloned().collect();
        if rules.len() == all.len() {
            return Ok(());
        }
        self.replace_rules(rules).map_err(|error| DesiredError { place: Place::Rules, error })
    }

    fn keep_connections(&mut self, desired: &Desired, kept: &BTreeSet<String>) {
        let wanted: BTreeSet<(&str, usize, &str)> = desired
            .instances
            .iter()
            .filter(|instance| kept.contains(&instance.name))
            .flat_map(|from| {
                let outputs = from.outputs.iter().enumerate();
                outputs.filter_map(|(at, to)| Some((from.name.as_str(), at, to.as_deref()?)))
            })
            .filter(|(_, _, to)| kept.contains(*to))
            .collect();
        for (from, output, to) in self.connected() {
            if !wanted.contains(&(from.as_str(), output.into(), to.as_str())) {
                // Both exist and are connected, so this cannot fail.
                let _ = self.disconnect(&from, output);
            }
        }
    }

    /// Removes the instances that are not kept. An instance is removed before those that its settings name.
    fn keep_instances(&mut self, kept: &BTreeSet<String>) {
        loop {
            let names: Vec<String> = self.instances().map(|(_, name, ..)| name.to_owned()).collect();
            let gone = names.iter().filter(|name| !kept.contains(*name));
            let removed = gone.filter(|name| self.remove(name).is_ok()).count();
            if removed == 0 {
                return;
            }
        }
    }

    /// Creates instances. An instance is created after those that its settings name. Returns the errors of
    /// those that could not be created.
    fn create_all(&mut self, desired: &Desired, mut left: Vec<usize>) -> Vec<DesiredError> {
        loop {
            let before = left.len();
            let mut errors = Vec::new();
            left.retain(|&at| {
                let instance = &desired.instances[at];
                let (settings, environment) = (pairs(&instance.settings), instance.environment());
                let created = self.create(&instance.name, &instance.module, environment, &settings);
                let error = created.err().map(|error| DesiredError { place: Place::Instance(at), error });
                let failed = error.is_some();
                errors.extend(error);
                failed
            });
            if left.is_empty() || left.len() == before {
                return errors;
            }
        }
    }

    fn connect_all(&mut self, at: usize, instance: &DesiredInstance) -> Vec<DesiredError> {
        let mut errors = Vec::new();
        for (output, to) in instance.outputs.iter().enumerate() {
            let Some(to) = to else { continue };
            if self.is_connected(&instance.name, output, to) {
                continue;
            }
            let number = u8::try_from(output).unwrap_or(u8::MAX);
            let connected = self.connect(&instance.name, number, to);
            let place = Place::Output(at, output);
            errors.extend(connected.err().map(|error| DesiredError { place, error }));
        }
        errors
    }

    fn set_rules(&mut self, desired: &Desired) -> Result<(), DesiredError> {
        let mut rules = Vec::with_capacity(desired.rules.len());
        for (at, rule) in desired.rules.iter().enumerate() {
            let instance = self.instance(&rule.instance);
            let instance = instance.map_err(|error| DesiredError { place: Place::Rule(at), error })?;
            let binding = Binding { instance, fallback: rule.fallback };
            let DesiredRule { name, priority, fields, .. } = rule;
            let (name, priority, fields) = (name.as_str().into(), *priority, *fields);
            rules.push(Rule { name, priority, fields, instance: binding.encode() });
        }
        // In the order in which the owner lists them. The sort is stable.
        let mut sorted: Vec<&Rule> = rules.iter().collect();
        sorted.sort_by_key(|rule| rule.priority);
        if self.rules().rules().iter().map(|(rule, _)| *rule).eq(sorted) {
            return Ok(());
        }
        self.replace_rules(rules).map_err(|error| DesiredError { place: Place::Rules, error })
    }
}

fn pairs(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

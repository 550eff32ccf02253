//! The plug-in manager on the control thread: modules, environments, instances, connections and rules. It
//! checks every change and issues the commands by which workers apply it.

mod inspect;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use csp_classify::multifield::{
    Covered, InstanceId, Match, Owner, OwnerError, Published, Rule, RuleHandle, covered_rules,
};

use crate::command::{Command, Environment, EnvironmentId, Level, Port};
use crate::graph::OUTPUTS_MAX;
use crate::hashing::HashKey;
use crate::packet::{Binding, Fallback};
use crate::plugin::{Module, PluginError};
use crate::settings::{SettingError, Settings, nearest};
use crate::supplied::{self, SUPPLIED, Supply};
use crate::topology::{Connections, path};

/// Bounds, and values that the caller draws at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ManagerConfig {
    /// Workers that get commands.
    pub workers: usize,
    /// Rules at once.
    pub rules_max: usize,
    /// Instances at once.
    pub instances_max: usize,
    /// Execution environments at once.
    pub environments_max: usize,
    /// The level whose instances run in this process. For those of other levels only connections are kept.
    pub here: Level,
    /// Key of the plug-ins' tables.
    pub hash_key: HashKey,
}

impl ManagerConfig {
    /// Returns the defaults: 131,072 rules, 256 instances, 16 environments; this process runs level 2.
    pub const fn new(workers: usize, hash_key: HashKey) -> Self {
        ManagerConfig {
            workers,
            rules_max: 131_072,
            instances_max: 256,
            environments_max: 16,
            here: Level::Worker,
            hash_key,
        }
    }
}

/// The kind of an object that is missing or that exceeds a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// A module.
    Module,
    /// An execution environment.
    Environment,
    /// An instance.
    Instance,
    /// An operation.
    Operation,
}

impl core::fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ObjectKind::Module => "module",
            ObjectKind::Environment => "environment",
            ObjectKind::Instance => "instance",
            ObjectKind::Operation => "operation",
        })
    }
}

/// Why a change was refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManagerError {
    /// It does not exist.
    #[error("there is no {what} {name}{}", .nearest.as_ref().map_or(String::new(), |near| format!("; did you mean {near}?")))]
    Unknown {
        /// The kind of the object.
        what: ObjectKind,
        /// The name given.
        name: String,
        /// An existing name of which it may be a misspelling.
        nearest: Option<String>,
    },
    /// An object with this name exists.
    #[error("{0} {1} exists already")]
    Exists(ObjectKind, String),
    /// The name is not valid.
    #[error("{0:?} is no name: 1 to 64 letters, digits, '-', '_' and '.'")]
    Name(String),
    /// The limit is reached.
    #[error("no room for a further {0}: {1} are the most")]
    TooMany(ObjectKind, usize),
    /// A setting is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The plug-in refuses its settings.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The module has no implementation for the level.
    #[error("module {module} has no implementation for {level}; environment {environment} is on it")]
    Level {
        /// The module.
        module: String,
        /// The requested level.
        level: Level,
        /// The environment.
        environment: String,
    },
    /// The instance has no such output.
    #[error("{instance} has {outputs} outputs, from 0 on; there is no output {output}")]
    Output {
        /// The instance.
        instance: String,
        /// Number of its outputs.
        outputs: u8,
        /// The requested output.
        output: u8,
    },
    /// A setting names an instance that runs in another environment. Calls stay within one environment.
    #[error("{name} cannot name {other} in a setting: one of them runs on another host; move both")]
    OtherEnvironment {
        /// The instance.
        name: String,
        /// The instance that its settings name.
        other: String,
    },
    /// The connection would close a cycle of instances.
    #[error("the connection would close a cycle: {}", .0.join(" -> "))]
    Cycle(Vec<String>),
    /// The object is in use.
    #[error("{name} is in use by {}", .users.join(", "))]
    InUse {
        /// The object to be removed.
        name: String,
        /// Some of its users.
        users: Vec<String>,
    },
    /// A rule is invalid.
    #[error(transparent)]
    Rule(#[from] OwnerError),
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    module: Arc<str>,
    environment: EnvironmentId,
    settings: Settings,
    rules: BTreeSet<Arc<str>>,
}

/// The plug-in manager.
#[derive(Debug)]
pub struct Manager {
    config: ManagerConfig,
    modules: BTreeMap<&'static str, Module>,
    supply: Option<Arc<dyn Supply>>,
    environments: Vec<Environment>,
    instances: Vec<Option<Declared>>,
    connections: Connections,
    rules: Owner,
    /// Commands pending for each worker.
    commands: Vec<VecDeque<Command>>,
}

fn check_name(name: &str) -> Result<(), ManagerError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=64).contains(&name.len()) && name.chars().all(allowed);
    if good { Ok(()) } else { Err(ManagerError::Name(name.into())) }
}

fn unknown<'a>(what: ObjectKind, name: &str, known: impl IntoIterator<Item = &'a str>) -> ManagerError {
    ManagerError::Unknown { what, name: name.into(), nearest: nearest(name, known).map(Into::into) }
}

impl Manager {
    /// Creates a manager without modules.
    pub fn new(config: ManagerConfig) -> Self {
        Manager {
            config,
            modules: BTreeMap::new(),
            supply: None,
            environments: Vec::new(),
            instances: (0..config.instances_max).map(|_| None).collect(),
            connections: Connections::new(),
            rules: Owner::new(config.rules_max),
            commands: (0..config.workers).map(|_| VecDeque::new()).collect(),
        }
    }

    /// Returns the next command for a worker, if there is one.
    pub fn poll_command(&mut self, worker: usize) -> Option<Command> {
        self.commands.get_mut(worker)?.pop_front()
    }

    /// Installs a module.
    pub fn install(&mut self, module: Module) -> Result<(), ManagerError> {
        check_name(module.name)?;
        if self.modules.contains_key(module.name) {
            return Err(ManagerError::Exists(ObjectKind::Module, module.name.into()));
        }
        self.modules.insert(module.name, module);
        Ok(())
    }

    /// Sets the runtime that creates instances of supplied modules. Without it only their names are checked,
    /// and none runs.
    pub fn set_supply(&mut self, supply: Arc<dyn Supply>) {
        self.supply = Some(supply);
    }

    /// Uninstalls a module without instances.
    pub fn uninstall(&mut self, name: &str) -> Result<(), ManagerError> {
        let module = self.module(name)?.name;
        let instances = self.instances.iter().flatten().filter(|instance| &*instance.module == module);
        let users: Vec<String> = instances.map(|instance| instance.name.clone()).take(4).collect();
        if !users.is_empty() {
            return Err(ManagerError::InUse { name: name.into(), users });
        }
        self.modules.remove(module);
        Ok(())
    }

    /// Adds an execution environment, which is stopped at first.
    pub fn add_environment(&mut self, name: &str, level: Level) -> Result<EnvironmentId, ManagerError> {
        check_name(name)?;
        if self.environments.iter().any(|environment| environment.name == name) {
            return Err(ManagerError::Exists(ObjectKind::Environment, name.into()));
        }
        if self.environments.len() >= self.config.environments_max {
            return Err(ManagerError::TooMany(ObjectKind::Environment, self.config.environments_max));
        }
        self.environments.push(Environment { name: name.into(), level, running: false });
        Ok(EnvironmentId((self.environments.len() - 1) as u16))
    }

    /// Starts an environment: its instances process packets from now on.
    pub fn start(&mut self, environment: &str) -> Result<(), ManagerError> {
        self.run(environment, true)
    }

    /// Stops an environment, or records that it has died. Packets for its instances get the rules' fallback.
    pub fn stop(&mut self, environment: &str) -> Result<(), ManagerError> {
        self.run(environment, false)
    }

    fn run(&mut self, environment: &str, running: bool) -> Result<(), ManagerError> {
        let id = self.environment(environment)?;
        self.environments[usize::from(id.0)].running = running;
        self.broadcast(|| Command::Run(id, running));
        Ok(())
    }

    /// Creates an instance of a module in an environment.
    pub fn create(
        &mut self,
        name: &str,
        module: &str,
        environment: &str,
        settings: &[(&str, &str)],
    ) -> Result<InstanceId, ManagerError> {
        check_name(name)?;
        if self.instance(name).is_ok() {
            return Err(ManagerError::Exists(ObjectKind::Instance, name.into()));
        }
        let (module_name, module) = (module, *self.module(module)?);
        let environment = self.environment(environment)?;
        let Environment { level, name: environment_name, .. } =
            &self.environments[usize::from(environment.0)];
        let level = *level;
        let levels = self.supply.as_ref().filter(|_| supplied::is_supplied(module_name));
        let levels = levels.and_then(|supply| supply.levels(module_name)).unwrap_or(module.levels);
        if !levels.contains(&level) {
            let (module, environment) = (module_name.into(), environment_name.clone());
            return Err(ManagerError::Level { module, level, environment });
        }
        let settings = self.parse_settings(&module, settings)?;
        self.check_near(name, environment, &settings)?;
        let free = self.instances.iter().position(Option::is_none);
        let at = free.ok_or(ManagerError::TooMany(ObjectKind::Instance, self.config.instances_max))?;
        // Packets that the driver passes on unprocessed are processed by the workers.
        let here = (level == Level::Host) == (self.config.here == Level::Host);
        let mut plugins = Vec::with_capacity(self.commands.len());
        for _ in &self.commands {
            plugins.push(if here { Some(self.make(name, module_name, &settings)?) } else { None });
        }
        let id = InstanceId(at as u32);
        for (commands, plugin) in self.commands.iter_mut().zip(plugins) {
            commands.push_back(Command::Create { id, environment, level, plugin });
        }
        let (name, module, rules) = (name.into(), module_name.into(), BTreeSet::new());
        self.instances[at] = Some(Declared { name, module, environment, settings, rules });
        Ok(id)
    }

    /// Replaces the settings of an instance. Settings not given get their defaults.
    pub fn configure(&mut self, name: &str, settings: &[(&str, &str)]) -> Result<(), ManagerError> {
        let id = self.instance(name)?;
        let module = self.declared(id).module.clone();
        let settings = self.parse_settings(self.module(&module)?, settings)?;
        self.check_near(name, self.declared(id).environment, &settings)?;
        // A plug-in may refuse what its parameters allow: an instance with the former settings tries first.
        self.make(name, &module, &self.declared(id).settings)?.configure(&settings)?;
        if let Some(declared) = &mut self.instances[id.0 as usize] {
            declared.settings = settings.clone();
        }
        self.broadcast(|| Command::Configure(id, Box::new(settings.clone())));
        Ok(())
    }

    /// Moves an instance between levels 1 and 2. Workers have its plug-in on both. Returns false, and changes
    /// nothing, if the instance belongs to another module or if another level is involved.
    pub fn relocate(&mut self, name: &str, module: &str, environment: &str) -> Result<bool, ManagerError> {
        let (id, to) = (self.instance(name)?, self.environment(environment)?);
        let level = |environment: EnvironmentId| self.environments[usize::from(environment.0)].level;
        let (from, at) = (level(self.declared(id).environment), level(to));
        let possible = self.module(module)?.levels.contains(&at)
            && &*self.declared(id).module == module
            && !supplied::is_supplied(module);
        if from == Level::Host || at == Level::Host || !possible {
            return Ok(false);
        }
        if let Some(declared) = self.instances[id.0 as usize].as_mut().filter(|own| own.environment != to) {
            declared.environment = to;
            self.broadcast(|| Command::Place(id, to, at));
        }
        Ok(true)
    }

    /// Connects an output of an instance to another instance, replacing a former connection.
    pub fn connect(&mut self, from: &str, output: u8, to: &str) -> Result<(), ManagerError> {
        let port = self.port(from, output)?;
        let to = self.instance(to)?;
        if let Some(way) = path(&self.connections, to, port.instance) {
            let mut names: Vec<String> = vec![from.into()];
            names.extend(way.iter().map(|id| self.declared(*id).name.clone()));
            return Err(ManagerError::Cycle(names));
        }
        self.connections.insert(port, to);
        self.broadcast(|| Command::Connect(port, Some(to)));
        Ok(())
    }

    /// Disconnects an output. Packets leave the graph there.
    pub fn disconnect(&mut self, from: &str, output: u8) -> Result<(), ManagerError> {
        let port = self.port(from, output)?;
        self.connections.remove(&port);
        self.broadcast(|| Command::Connect(port, None));
        Ok(())
    }

    /// Removes an instance that no rule, connection or setting refers to.
    pub fn remove(&mut self, name: &str) -> Result<(), ManagerError> {
        let id = self.instance(name)?;
        let users = self.users_of(id);
        if !users.is_empty() {
            return Err(ManagerError::InUse { name: name.into(), users });
        }
        self.connections.retain(|port, _| port.instance != id);
        self.instances[id.0 as usize] = None;
        self.broadcast(|| Command::Remove(id));
        Ok(())
    }

    /// Checks a call of an operation. The result is for [`Graph::call`](crate::Graph::call) of each worker.
    pub fn prepare_call(
        &self,
        name: &str,
        operation: &str,
        arguments: &[(&str, &str)],
    ) -> Result<(InstanceId, &'static str, Settings), ManagerError> {
        let id = self.instance(name)?;
        let operations = self.module(&self.declared(id).module)?.operations;
        let found = operations.iter().find(|known| known.name == operation);
        let found = found
            .ok_or_else(|| unknown(ObjectKind::Operation, operation, operations.iter().map(|o| o.name)))?;
        let settings = Settings::parse(found.arguments, arguments, |name| self.instance(name).ok())?;
        Ok((id, found.name, settings))
    }

    /// Adds a rule that hands packets to an instance.
    pub fn add_rule(
        &mut self,
        name: &str,
        priority: u32,
        fields: Match,
        instance: &str,
        fallback: Fallback,
    ) -> Result<RuleHandle, ManagerError> {
        check_name(name)?;
        let id = self.instance(instance)?;
        let name: Arc<str> = name.into();
        let binding = Binding { instance: id, fallback };
        let handle =
            self.rules.insert(Rule { name: name.clone(), priority, fields, instance: binding.encode() })?;
        if let Some(declared) = &mut self.instances[id.0 as usize] {
            declared.rules.insert(name);
        }
        Ok(handle)
    }

    /// Removes a rule.
    pub fn remove_rule(&mut self, name: &str) -> Result<(), ManagerError> {
        self.rules.remove(name)?;
        for declared in self.instances.iter_mut().flatten() {
            declared.rules.remove(name);
        }
        Ok(())
    }

    /// Replaces all rules at once.
    pub fn replace_rules(&mut self, rules: Vec<Rule>) -> Result<(), ManagerError> {
        let mut bound: BTreeMap<u32, BTreeSet<Arc<str>>> = BTreeMap::new();
        for rule in &rules {
            check_name(&rule.name)?;
            let Binding { instance, .. } = Binding::decode(rule.instance);
            if self.instances.get(instance.0 as usize).is_none_or(Option::is_none) {
                return Err(unknown(ObjectKind::Instance, &format!("#{}", instance.0), []));
            }
            bound.entry(instance.0).or_default().insert(rule.name.clone());
        }
        self.rules.replace(rules)?;
        for (at, declared) in self.instances.iter_mut().enumerate() {
            if let Some(declared) = declared {
                declared.rules = bound.remove(&(at as u32)).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Publishes the changes of rules. Returns the table that the workers' classifiers adopt after the
    /// commands.
    pub fn publish_rules(&mut self) -> Published {
        self.rules.publish()
    }

    /// Returns the rules' owner, for lists and counters.
    pub fn rules(&self) -> &Owner {
        &self.rules
    }

    /// Returns the rules that another rule covers completely, so that they never match.
    pub fn covered_rules(&self) -> Vec<Covered> {
        let rules: Vec<Rule> = self.rules.rules().into_iter().map(|(rule, _)| rule.clone()).collect();
        covered_rules(&rules)
    }

    /// Returns the instance of this name.
    pub fn instance(&self, name: &str) -> Result<InstanceId, ManagerError> {
        let named =
            |declared: &Option<Declared>| declared.as_ref().is_some_and(|declared| declared.name == name);
        let at = self.instances.iter().position(named);
        let names = || self.instances.iter().flatten().map(|declared| declared.name.as_str());
        at.map(|at| InstanceId(at as u32)).ok_or_else(|| unknown(ObjectKind::Instance, name, names()))
    }

    /// Returns an instance that is known to exist.
    fn declared(&self, id: InstanceId) -> &Declared {
        self.instances[id.0 as usize].as_ref().expect("instances of connections, rules and names exist")
    }

    fn module(&self, name: &str) -> Result<&Module, ManagerError> {
        if supplied::is_supplied(name) {
            return Ok(&SUPPLIED);
        }
        self.modules.get(name).ok_or_else(|| unknown(ObjectKind::Module, name, self.modules.keys().copied()))
    }

    fn environment(&self, name: &str) -> Result<EnvironmentId, ManagerError> {
        let at = self.environments.iter().position(|environment| environment.name == name);
        let names = || self.environments.iter().map(|environment| environment.name.as_str());
        at.map(|at| EnvironmentId(at as u16)).ok_or_else(|| unknown(ObjectKind::Environment, name, names()))
    }

    fn port(&self, instance: &str, output: u8) -> Result<Port, ManagerError> {
        let id = self.instance(instance)?;
        let module = &self.declared(id).module;
        let declared = self.supply.as_ref().and_then(|supply| supply.outputs(module));
        let outputs = declared.unwrap_or(self.module(module)?.outputs).min(OUTPUTS_MAX as u8);
        if output >= outputs {
            return Err(ManagerError::Output { instance: instance.into(), outputs, output });
        }
        Ok(Port { instance: id, output })
    }

    fn parse_settings(&self, module: &Module, settings: &[(&str, &str)]) -> Result<Settings, ManagerError> {
        Ok(Settings::parse(module.parameters, settings, |name| self.instance(name).ok())?)
    }

    fn broadcast(&mut self, command: impl Fn() -> Command) {
        self.commands.iter_mut().for_each(|commands| commands.push_back(command()));
    }
}

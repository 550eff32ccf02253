//! The control thread's part of packet plug-ins: the manager, the commands to workers, and the requests to
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use csp_api::plugins as api;
use csp_classify::multifield::{HitCount, InstanceId, Rule};
use csp_daemon::clock;
use csp_daemon::query::Workers;
use csp_plugin_modules::PluginModules;
use csp_plugins::remote::{write_hosted, write_module};
use csp_plugins::text::MatchText;
use csp_plugins::{
    Answer, Binding, Desired, EnvironmentId, Fallback, HashKey, InstanceCount, Level, Manager, ROWS_MAX,
    is_supplied, pcap,
};
use csp_policy::{PluginHost, plugin_manager};
use csp_telemetry::MailboxError;

use crate::core::{DriverRules, PluginChange, PluginCounts};
use crate::links::HostInstances;

use super::data_thread::Question;
use super::driver::DriverControl;
use super::host_calls::{self, Outcome};
use super::plugin_held::AbsentHosts;
use super::plugin_metrics::{Numbers, Shared};
use super::plugin_places::Placing;
use super::plugin_views::{add, row, supplied, totals};

/// Timeout for a worker to apply a change or to execute an operation.
pub const WORKER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the counters for metrics are read.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time that a frame passed by the driver waits in a LAN port's queue for a worker.
const DRAIN_TIME: Duration = Duration::from_millis(20);

/// A checked operation.
#[derive(Debug)]
pub struct PreparedCall {
    /// The instance's name.
    pub name: String,
    /// The operation.
    pub operation: &'static str,
    /// Its arguments.
    pub settings: csp_plugins::Settings,
}

/// Why an operation was not executed.
#[derive(Debug, thiserror::Error)]
pub enum CallFailure {
    /// It is impossible: the instance, operation or argument does not exist, or the instance refuses it.
    #[error("{0}")]
    Refused(String),
    /// The plug-in host does not run, or answers incorrectly.
    #[error("the plug-in host: {0}")]
    Absent(String),
    /// A worker did not answer.
    #[error("a data worker: {0}")]
    Unanswered(#[from] MailboxError),
}

/// The combined answer of all workers.
#[derive(Debug)]
pub enum CallResult {
    /// Rows.
    Rows(api::CallAnswer),
    /// A capture.
    Bytes(Vec<u8>),
}

/// The manager and the connection to its workers. One task at a time uses it.
pub struct PluginControl {
    pub(super) manager: Manager,
    /// Supplied modules.
    modules: Arc<PluginModules>,
    pub(super) workers: Workers<Question>,
    /// Generation of the rule table that the workers have.
    generation: u64,
    /// Offset from monotonic time to time since 1970, in nanoseconds.
    clock_offset_ns: u64,
    numbers: Shared,
    pub(super) driver: DriverControl,
    /// The rules of level 1 as last sent to the workers.
    driver_rules: DriverRules,
    /// The plug-in hosts of the policy.
    hosts: Vec<PluginHost>,
    /// Instances whose level the node chooses.
    pub(super) placing: Placing,
}

/// A handle that the control loop, the admin routes and the refreshing task share.
pub type Plugins = Arc<tokio::sync::Mutex<PluginControl>>;

impl PluginControl {
    /// Creates a manager without instances and rules. Its counters are stored in `numbers`.
    pub fn new(
        workers: Workers<Question>,
        numbers: Shared,
        driver: DriverControl,
        modules: Arc<PluginModules>,
        placing: Placing,
    ) -> Plugins {
        let hash_key = HashKey(rand::random(), rand::random());
        let unix_ns = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unix_ns = unix_ns.map_or(0, |since| since.as_nanos() as u64);
        let mut manager = plugin_manager(workers.mailboxes.len(), hash_key);
        manager.set_supply(modules.clone());
        Arc::new(tokio::sync::Mutex::new(PluginControl {
            manager,
            modules,
            workers,
            generation: 0,
            clock_offset_ns: unix_ns.saturating_sub(clock::now().as_nanos()),
            numbers,
            driver,
            driver_rules: DriverRules::default(),
            hosts: Vec::new(),
            placing,
        }))
    }

    /// Puts instances and rules into force. Each worker applies them between two turns.
    pub async fn apply(&mut self, mut desired: Desired, hosts: &[PluginHost]) -> Result<(), String> {
        self.hosts = hosts.to_vec();
        self.modules.set_active(&desired);
        for instance in desired.instances.iter_mut().filter(|instance| instance.module == "capture") {
            if instance.settings.iter().all(|(name, _)| name != "clock_offset_ns") {
                instance.settings.push(("clock_offset_ns".to_owned(), self.clock_offset_ns.to_string()));
            }
        }
        let result = self.reconcile(desired);
        // Also after an error, since the workers must match the manager.
        self.put_into_force().await?;
        result?;
        for covered in self.manager.covered_rules() {
            tracing::warn!(rule = %covered.rule, by = %covered.by, "the rule is never matched: another one covers it");
        }
        Ok(())
    }

    /// Changes workers and driver so that every packet is processed. First the workers leave to the driver
    /// only those rules that it has and will keep. Then the driver changes. When the packets that it had
    /// passed are processed, the workers leave all its rules to it.
    pub(super) async fn put_into_force(&mut self) -> Result<(), String> {
        self.load_objects().await;
        let table = self.manager.publish_rules();
        let Some(plan) = self.driver.plan(&self.manager, &table.table) else {
            return self.send(&table, DriverRules::default()).await;
        };
        let both = self.driver.rules_of_both(&plan);
        self.send(&table, both).await?;
        let mut lists = BTreeMap::new();
        for name in self.driver.new_lists(&plan, &self.manager) {
            // Without these rows the driver would start with an empty list, so its rules stay at level 2.
            let rows = self.rows_of(&name).await?;
            lists.insert(name, rows);
        }
        self.driver.apply(&plan, &self.manager, lists);
        if !plan.is_empty() {
            tokio::time::sleep(DRAIN_TIME).await;
        }
        self.send(&table, self.driver.rules(&plan)).await?;
        for (name, prefix, time, from) in self.driver.taken_over() {
            let arguments =
                [("prefix", prefix), ("time", time), ("from", from)].map(|(k, v)| (k.to_owned(), v));
            if let Err(error) = self.call_workers(&name, "add", &BTreeMap::from(arguments)).await {
                tracing::warn!(plugin = name, error = %error.0, "the workers do not have a block that the driver has");
            }
        }
        Ok(())
    }

    /// Returns the rows of a block list of the workers, without duplicates.
    async fn rows_of(&mut self, name: &str) -> Result<Vec<csp_plugins::Row>, String> {
        match self.call_workers(name, "dump", &BTreeMap::new()).await {
            Ok((_, Answer::Rows(rows), _)) => Ok(rows),
            Ok(_) => Ok(Vec::new()),
            Err((error, _)) => {
                Err(format!("the entries of {name} could not be read of the workers: {error}"))
            }
        }
    }

    /// Detaches the program from the driver if the configuration says so.
    pub fn stop(&mut self) {
        self.driver.stop();
    }

    async fn send(
        &mut self,
        table: &csp_classify::multifield::Published,
        driver: DriverRules,
    ) -> Result<(), String> {
        let changed = table.generation != self.generation || driver != self.driver_rules;
        let directions = directions(self.manager.rules().rules().iter().map(|(rule, _)| *rule));
        for (worker, mailbox) in self.workers.mailboxes.iter().enumerate() {
            let failed = |error| format!("a data worker did not apply the packet plug-ins: {error}");
            // A command that was taken from the manager must reach the worker.
            mailbox.room(WORKER_TIMEOUT).await.map_err(failed)?;
            let commands: Vec<_> = std::iter::from_fn(|| self.manager.poll_command(worker)).collect();
            if commands.is_empty() && !changed {
                continue;
            }
            let retired = Vec::with_capacity(commands.len());
            let table = Some(table.clone());
            let driver = driver.clone();
            let change = Box::new(PluginChange { commands, table, directions, driver, retired });
            // The returned parts are freed here.
            let hosted = self.hosted();
            let done = mailbox.ask(WORKER_TIMEOUT, |reply| Question::Plugins(change, hosted, reply)).await;
            match done {
                // On a timeout the worker has the change and applies it later.
                Ok(_) | Err(MailboxError::Timeout) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        (self.generation, self.driver_rules) = (table.generation, driver);
        Ok(())
    }

    /// Returns the instances of each environment of level 3.
    fn hosted(&self) -> Vec<HostInstances> {
        let of = |(environment, name): (EnvironmentId, &str)| {
            let instances = self.manager.instances().filter(|(.., at)| *at == name);
            let modules: BTreeSet<&str> = instances.map(|(_, _, module, _)| module).collect();
            let mut text = String::new();
            for module in modules.into_iter().filter(|module| is_supplied(module)) {
                if let Some(bytes) = self.modules.bytes(module) {
                    write_module(&mut text, module, &bytes);
                }
            }
            // The environment exists, since its name was just read.
            text += &write_hosted(&self.manager, name).unwrap_or_default();
            HostInstances { environment, text: text.into() }
        };
        self.host_environments().map(of).collect()
    }

    fn host_environments(&self) -> impl Iterator<Item = (EnvironmentId, &str)> {
        let all = self.manager.environments().iter().enumerate();
        all.filter(|(_, known)| known.level == Level::Host)
            .map(|(at, known)| (EnvironmentId(at as u16), known.name.as_str()))
    }

    /// Returns the plug-in hosts that are to run instances, each with its environment.
    pub fn hosts(&self) -> Vec<(EnvironmentId, PluginHost)> {
        let used = |name: &str| self.manager.instances().any(|(.., environment)| environment == name);
        let host = |(at, name): (EnvironmentId, &str)| {
            let host = self.hosts.iter().find(|host| host.name == name)?;
            used(name).then(|| (at, host.clone()))
        };
        self.host_environments().filter_map(host).collect()
    }

    /// Executes an operation of an instance at all workers and in the driver.
    pub async fn call(
        &mut self,
        name: &str,
        operation: &str,
        arguments: &BTreeMap<String, String>,
    ) -> Result<CallResult, CallFailure> {
        let words: Vec<(&str, &str)> = arguments.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let prepared = self.manager.prepare_call(name, operation, &words);
        let (id, checked, _) = prepared.map_err(|error| CallFailure::Refused(error.to_string()))?;
        if let Some(host) = self.host_of(id) {
            return host_calls::call(&self.workers, (host, id), checked, &words).await;
        }
        let (merged, files) = match self.call_workers(name, operation, arguments).await {
            Ok((call, merged, files)) => match self.driver.call(&self.manager, &call) {
                Ok(Some(own)) => (csp_xdp::merge(merged, own), files),
                Ok(None) => (merged, files),
                // A worker had the entry.
                Err(_) if operation == "remove" => (merged, files),
                Err(error) => return Err(error),
            },
            // The driver may have an entry that the workers lack, from before the daemon's start.
            Err((error, Some(call))) if operation == "remove" => match self.driver.call(&self.manager, &call)
            {
                Ok(Some(own)) => (own, Vec::new()),
                _ => return Err(error),
            },
            Err((error, _)) => return Err(error),
        };
        if !files.is_empty() {
            let file = pcap::merge(&files).unwrap_or_else(|| files.concat());
            return Ok(CallResult::Bytes(file));
        }
        let mut answer = api::CallAnswer::default();
        if let Answer::Rows(rows) = merged {
            answer.truncated = rows.len() > ROWS_MAX;
            answer.rows = rows.into_iter().take(ROWS_MAX).map(row).collect();
        }
        Ok(CallResult::Rows(answer))
    }

    /// Executes an operation at all workers. Returns the checked call, the combined answer, and captures.
    async fn call_workers(
        &mut self,
        name: &str,
        operation: &str,
        arguments: &BTreeMap<String, String>,
    ) -> Result<(PreparedCall, Answer, Vec<Vec<u8>>), (CallFailure, Option<PreparedCall>)> {
        let arguments: Vec<(&str, &str)> = arguments.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let prepared = self.manager.prepare_call(name, operation, &arguments);
        let (id, operation, settings) =
            prepared.map_err(|error| (CallFailure::Refused(error.to_string()), None))?;
        let call = PreparedCall { name: name.to_owned(), operation, settings };
        let (mut merged, mut files, mut outcome) = (Answer::Done, Vec::new(), Outcome::of(call.operation));
        for mailbox in &self.workers.mailboxes {
            let settings = Box::new(call.settings.clone());
            let asked = |reply| Question::PluginCall(id, operation, settings, reply);
            let answer = mailbox.ask(WORKER_TIMEOUT, asked).await.map_err(|error| (error.into(), None))?;
            match answer {
                Ok(Answer::Bytes(file)) => files.push(file),
                Ok(other) => {
                    outcome.done();
                    merged = merged.merge(other);
                }
                Err(error) => {
                    if let Err(failure) = outcome.refused(error.to_string()) {
                        return Err((failure, Some(call)));
                    }
                }
            }
        }
        match outcome.end() {
            Ok(()) => Ok((call, merged, files)),
            Err(failure) => Err((failure, Some(call))),
        }
    }

    /// Returns the environment of an instance on a plug-in host.
    fn host_of(&self, id: InstanceId) -> Option<EnvironmentId> {
        let (.., environment) = self.manager.instances().find(|(known, ..)| *known == id)?;
        self.host_environments().find(|(_, name)| *name == environment).map(|(at, _)| at)
    }

    /// Returns the request for the counters of all rules and instances.
    fn asked(&self) -> PluginCounts {
        let rules = self.manager.rules().rules();
        PluginCounts {
            rules: rules.iter().map(|(_, handle)| (*handle, HitCount::default())).collect(),
            instances: self.manager.instances().map(|(id, ..)| (id, InstanceCount::default())).collect(),
            environments: (0..self.manager.environments().len())
                .map(|at| (EnvironmentId(at as u16), true))
                .collect(),
            ..PluginCounts::default()
        }
    }

    async fn counts(&mut self) -> Result<PluginCounts, MailboxError> {
        let asked = self.asked();
        let mut sum = asked.clone();
        for mailbox in &self.workers.mailboxes {
            let counts = Box::new(asked.clone());
            add(
                &mut sum,
                &*mailbox.ask(WORKER_TIMEOUT, |reply| Question::PluginCounts(counts, reply)).await?,
            );
        }
        self.driver.add_counts(&self.manager, &mut sum);
        Ok(sum)
    }

    /// Returns what `/v1/plugins` shows.
    pub async fn describe(&mut self) -> Result<api::Plugins, MailboxError> {
        let counts = self.counts().await?;
        let absent = self.absent_hosts(&counts.environments).await?;
        let covered = self.manager.covered_rules();
        let covered: BTreeMap<&str, &str> = covered.iter().map(|c| (&*c.rule, &*c.by)).collect();
        let rules = self.manager.rules().rules();
        let rules = rules.iter().zip(&counts.rules).map(|((rule, at), (_, hits))| {
            let level = if self.driver.decides(*at) { Level::Driver } else { Level::Worker };
            api::Rule { level: level as u8, ..self.rule(rule, *hits, &covered) }
        });
        let environments = self.manager.environments().iter().zip(&counts.environments);
        let environment = |(known, (_, running)): (&csp_plugins::Environment, &(_, bool))| api::Environment {
            name: (&known.name).into(),
            level: known.level as u8,
            running: *running,
        };
        Ok(api::Plugins {
            environments: environments.map(environment).collect(),
            instances: self.instances(&counts.instances, &absent),
            rules: rules.collect(),
            totals: totals(&counts),
        })
    }

    fn rule(&self, rule: &Rule, hits: HitCount, covered: &BTreeMap<&str, &str>) -> api::Rule {
        let Binding { instance, fallback } = Binding::decode(rule.instance);
        api::Rule {
            name: (&*rule.name).into(),
            priority: rule.priority,
            conditions: MatchText(&rule.fields).to_string().into(),
            plugin: self.manager.name_of(instance).unwrap_or_default().into(),
            fallback: if fallback == Fallback::Drop { "drop" } else { "pass" }.into(),
            level: Level::Worker as u8,
            covered_by: covered.get(&*rule.name).map(|by| (*by).into()),
            packets_total: hits.packets,
            bytes_total: hits.bytes,
        }
    }

    fn instances(&self, counts: &[(InstanceId, InstanceCount)], absent: &AbsentHosts) -> Vec<api::Instance> {
        let connected = self.manager.connected();
        let status = self.modules.status();
        let instance = |(id, name, module, environment): (InstanceId, &str, &str, &str)| {
            let count = counts.iter().find(|(counted, _)| *counted == id).map(|(_, count)| *count);
            let InstanceCount { packets, bytes, dropped } = count.unwrap_or_default();
            let outputs = connected.iter().filter(|(from, ..)| from == name);
            let settings = self.manager.settings_of(name).map(|(_, settings)| settings);
            let setting = |(name, value): &(&'static str, csp_plugins::Value)| api::Setting {
                name: (*name).into(),
                value: match value {
                    csp_plugins::Value::Instance(id) => self.manager.name_of(*id).unwrap_or_default().into(),
                    other => other.to_string().into(),
                },
            };
            let is_object = environment == csp_plugins::DRIVER && is_supplied(module);
            let held = self.held(name, environment, absent);
            api::Instance {
                name: name.into(),
                module: module.into(),
                environment: environment.into(),
                settings: settings.iter().flat_map(|settings| settings.iter()).map(setting).collect(),
                outputs: outputs
                    .map(|(_, output, to)| api::Connection { output: *output, to: to.into() })
                    .collect(),
                packets_total: packets,
                bytes_total: bytes,
                dropped_total: dropped,
                // The state of an object replaces the reason why it is not at level 2.
                held: held.clone().filter(|_| !is_object).map(Into::into),
                auto: self.placing.shown(name),
                supplied: status.iter().find(|of| of.instance == name && of.module == module).map(|status| {
                    let mut shown = supplied(status);
                    if is_object {
                        self.driver.describe_object(name, held, &mut shown);
                    }
                    shown
                }),
            }
        };
        self.manager.instances().map(instance).collect()
    }

    /// Reads the counters for metrics, and moves the instances whose level the node chooses.
    async fn refresh(&mut self) {
        let Ok(counts) = self.counts().await else { return };
        self.place_by_rate(&counts).await;
        let name = |id| self.manager.name_of(id).unwrap_or_default().to_owned();
        let rules = self.manager.rules().rules();
        let rules = rules.iter().zip(&counts.rules).map(|((rule, _), (_, hits))| {
            (rule.name.to_string(), name(Binding::decode(rule.instance).instance), *hits)
        });
        let instances = self.manager.instances().zip(&counts.instances);
        let instances =
            instances.map(|((_, name, module, _), (_, count))| (name.to_owned(), module.to_owned(), *count));
        let numbers = Numbers {
            rules: rules.collect(),
            instances: instances.collect(),
            moves: self.placing.moves(),
            totals: totals(&counts),
            refused: counts.hosts.violations(),
            supplied: self.modules.status(),
        };
        *self.numbers.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }
}

/// Reads the counters for metrics at intervals while the daemon runs.
pub async fn refresh(plugins: Plugins) {
    let mut beat = tokio::time::interval(REFRESH_INTERVAL);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let mut plugins = plugins.lock().await;
        plugins.driver.expire();
        plugins.use_verified_object().await;
        if plugins.generation > 0 {
            plugins.refresh().await;
        }
    }
}

/// Returns whether rules exist for received packets, and whether rules for transmitted packets do.
fn directions<'a>(rules: impl Iterator<Item = &'a Rule>) -> (bool, bool) {
    use csp_classify::multifield::Direction;
    rules.fold((false, false), |(ingress, egress), rule| {
        let of = |direction| rule.fields.direction.is_none_or(|own| own == direction);
        (ingress || of(Direction::Ingress), egress || of(Direction::Egress))
    })
}

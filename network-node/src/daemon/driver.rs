//! The control thread's part of level 1: which rules the driver's program decides on, and its life on the LAN ports.
//!
//! Level 1 never prevents a policy: what it cannot do stays at level 2, and the node logs why.
//!
//! At AF_XDP ports the program is there from the beginning, also without rules: it gives the workers their frames.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use csp_classify::multifield::{RuleHandle, Table};
use csp_daemon::{DaemonError, clock};
use csp_lan::tap::Tap;
use csp_plugin_modules::PluginModules;
use csp_plugins::{Answer, Manager, Row};
use csp_types::MacAddr;
use csp_xdp::{Driver, DriverError, Loaded, Plan, PortConfig, Stay, Taking};

use crate::core::{DriverRules, PluginCounts};

use super::config::{Config, LanSection, OnStop, PortKind};
use super::plugins::{CallFailure, PreparedCall};
use super::verification::Verification;
use super::workers::PortSocket;

/// Blocks of an earlier daemon that workers get, too; the driver has all.
const TAKEN_OVER_MAX: usize = 4096;

/// A block: the list's name, and the arguments of its operation `add`.
pub type TakenOver = (String, String, String, String);

/// A LAN port.
#[derive(Debug)]
struct Port {
    interface: String,
    mac: MacAddr,
    has_sockets: bool,
}

impl Port {
    fn config(&self) -> Option<PortConfig> {
        PortConfig::of(&self.interface, self.mac, self.has_sockets)
    }

    /// The program has to see the tags of VLANs, whose frames are not the port's.
    fn leave_vlan_tags(&self) {
        let interface = &self.interface;
        match csp_lan::leave_vlan_tags(interface) {
            Ok(true) => {
                tracing::info!(
                    interface,
                    "the device leaves VLAN tags in received frames from now on (rxvlan off)"
                );
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(interface, %error, "if the device takes out VLAN tags, the program takes frames of VLANs for the port's own");
            }
        }
    }
}

/// The program, once a rule or an AF_XDP port has needed it.
#[derive(Debug)]
pub struct DriverControl {
    folder: PathBuf,
    on_stop: OnStop,
    /// By port number.
    ports: Vec<Port>,
    pub(super) driver: Option<Driver>,
    /// Supplied objects.
    pub(super) modules: Option<Arc<PluginModules>>,
    /// Why instances of supplied objects do not run, by name.
    pub(super) idle: HashMap<String, String>,
    pub(super) verification: Verification<Loaded>,
    /// Why objects were not loaded for the next plan, by instance; and what of that was logged last.
    pub(super) refused_objects: HashMap<String, String>,
    pub(super) logged_objects: HashMap<String, String>,
    /// Ports whose rules are the program's, a bit for each.
    attached: u32,
    /// Rules that it decides on.
    rules: HashSet<RuleHandle>,
    /// What an earlier daemon left, and workers lack.
    taken_over: Vec<TakenOver>,
    /// What was logged last, so that it is not logged again.
    logged: String,
    /// Rules of level 1 that level 2 decides on.
    stays: Vec<Stay>,
    /// LAN ports that do not take the program, each with why.
    refused: Vec<String>,
    /// Why level 1 was not to be had, since [`retry`](Self::retry).
    unavailable: Option<String>,
}

impl DriverControl {
    /// Remembers the ports; does nothing else before [`begin`](Self::begin) or a policy.
    pub fn new(config: &Config, macs: &[MacAddr]) -> Self {
        let port = |(lan, mac): (&LanSection, &MacAddr)| Port {
            interface: lan.interface.clone(),
            mac: *mac,
            has_sockets: lan.port == PortKind::AfXdp,
        };
        DriverControl {
            folder: config.driver.folder.join(config.node.id.to_string()),
            on_stop: config.driver.on_stop,
            ports: config.lan.iter().zip(macs).map(port).collect(),
            driver: None,
            modules: None,
            idle: HashMap::new(),
            verification: Verification::new(),
            refused_objects: HashMap::new(),
            logged_objects: HashMap::new(),
            attached: 0,
            rules: HashSet::new(),
            taken_over: Vec::new(),
            logged: String::new(),
            stays: Vec::new(),
            refused: Vec::new(),
            unavailable: None,
        }
    }

    /// Sets where the objects of supplied plug-ins are.
    pub fn set_modules(&mut self, modules: Arc<PluginModules>) {
        self.modules = Some(modules);
    }

    /// Returns whether an instance is in the program that LAN ports have.
    pub(super) fn has(&self, name: &str) -> bool {
        self.attached != 0 && self.driver.as_ref().is_some_and(|driver| driver.slots().has(name))
    }

    /// Returns why level 1 is not to be had, as far as that was tried.
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// Returns the rules of level 1 that level 2 decides on.
    pub fn stays(&self) -> &[Stay] {
        &self.stays
    }

    /// Returns the LAN ports at which level 2 has the rules of level 1, each with why.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Has level 1 tried again where it was not to be had.
    pub fn retry(&mut self) {
        self.unavailable = None;
    }

    /// Loads the program, if it is not loaded. Returns false, and logs why, if it is not to be had.
    pub fn prepare(&mut self) -> bool {
        if self.driver.is_none() {
            match self.open() {
                Ok(driver) => self.driver = Some(driver),
                Err(error) => {
                    self.warn(format!("level 1 is not available, its rules stay at level 2: {error}"));
                    self.unavailable = Some(error.to_string());
                }
            }
        }
        self.driver.is_some()
    }

    /// Loads the program if an earlier daemon has left something.
    pub fn take_over(&mut self) {
        if self.folder.exists() {
            self.prepare();
        }
    }

    /// Returns whether the driver has a place for an instance of this name.
    pub fn has_place_of(&self, name: &str) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.slots().has(name))
    }

    /// Puts the program at AF_XDP ports, if there are any, with their sockets. It gives them nothing before
    /// [`set_addresses`](Self::set_addresses).
    ///
    /// # Errors
    /// The program is not to be had: such a port would receive nothing.
    pub fn begin(&mut self, sockets: &[PortSocket], ways_back: &[Option<Tap>]) -> Result<(), DaemonError> {
        if self.ports.iter().all(|port| !port.has_sockets) {
            return Ok(());
        }
        let unavailable =
            |error| DaemonError::Unavailable(format!("lan: the program of AF_XDP ports: {error}"));
        let driver = self.open().or_else(|error| {
            tracing::warn!(%error, "nothing can be pinned: the program of AF_XDP ports ends with this process");
            self.set_up(Driver::open(None)?)
        });
        let driver = self.driver.insert(driver.map_err(unavailable)?);
        for PortSocket { port, queue, socket } in sockets {
            driver.set_socket(*port, *queue, socket.as_raw_fd()).map_err(unavailable)?;
        }
        let bit = |(at, back): (usize, &Option<Tap>)| u32::from(back.is_some()) << at;
        driver.set_ways_back(ways_back.iter().enumerate().map(bit).sum()).map_err(unavailable)?;
        for port in self.ports.iter().filter(|port| port.has_sockets) {
            if let Some(known) = port.config() {
                port.leave_vlan_tags();
                driver.attach(known.ifindex).map_err(unavailable)?;
            }
        }
        Ok(())
    }

    /// Sets the addresses whose frames AF_XDP ports get.
    pub fn set_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        if let Some(driver) = self.driver.as_mut().filter(|_| self.ports.iter().any(|port| port.has_sockets))
            && let Err(error) = driver.set_addresses(addresses)
        {
            tracing::error!(%error, "AF_XDP ports do not receive the frames of all addresses");
        }
    }

    /// Returns what the program is to do, after [`load_objects`](Self::load_objects); `None` if there is none, or cannot be: all rules are
    /// level 2's.
    pub fn plan(&mut self, manager: &Manager, table: &Table) -> Option<Plan> {
        let refused = std::mem::take(&mut self.refused_objects);
        let before = self.driver.as_ref()?.slots().clone();
        match Plan::without(manager, table, &before, &refused) {
            Ok(plan) => {
                self.idle.clone_from(&plan.idle);
                let stays = plan
                    .stays
                    .iter()
                    .map(|stay| format!("rule {} stays at level 2: {}", stay.rule, stay.reason));
                let stays: Vec<String> = stays.collect();
                self.warn(stays.join("; "));
                self.stays.clone_from(&plan.stays);
                Some(plan)
            }
            Err(error) => {
                self.warn(format!("the rules of level 1 stay at level 2: {error}"));
                self.unavailable = Some(error.to_string());
                Some(Plan::without_rules(&before))
            }
        }
    }

    fn warn(&mut self, text: String) {
        if !text.is_empty() && text != self.logged {
            tracing::warn!("packet plug-ins: {text}");
        }
        self.logged = text;
    }

    /// Loads the program, and takes over what an earlier daemon left.
    fn open(&mut self) -> Result<Driver, DriverError> {
        let driver = Driver::open(Some(&self.folder))?;
        self.set_up(driver)
    }

    fn set_up(&mut self, mut driver: Driver) -> Result<Driver, DriverError> {
        let blocked = driver.blocked(clock::now());
        let rows = blocked.iter().flat_map(|(name, rows)| rows.iter().map(move |row| (name, row)));
        self.taken_over = rows
            .take(TAKEN_OVER_MAX)
            .map(|(name, row)| {
                let left =
                    row.numbers.iter().find(|(name, _)| *name == "seconds_left").map_or(0, |(_, left)| *left);
                let time = if left == 0 { "forever".to_owned() } else { format!("{left}s") };
                (name.clone(), row.key.clone(), time, row.note.to_string())
            })
            .collect();
        let known: Vec<Option<PortConfig>> = self.ports.iter().map(Port::config).collect();
        driver.set_ports(&known)?;
        Ok(driver)
    }

    /// What both the former and the next plan leave to the program.
    pub fn rules_of_both(&self, plan: &Plan) -> DriverRules {
        let both = plan.rules().iter().filter(|rule| self.rules.contains(rule));
        DriverRules { ports: self.attached, complete: false, rules: bits(both) }
    }

    /// What workers leave to the program from now on.
    pub fn rules(&self, plan: &Plan) -> DriverRules {
        let none = self.attached == 0;
        let complete = plan.is_complete() && !none;
        DriverRules { ports: self.attached, complete, rules: if none { Vec::new() } else { plan.slots() } }
    }

    /// Returns whether a rule is decided on in the driver.
    pub fn decides(&self, rule: RuleHandle) -> bool {
        self.attached != 0 && self.rules.contains(&rule)
    }

    /// The block lists that begin in the driver with what workers have.
    pub fn new_lists(&self, plan: &Plan, manager: &Manager) -> Vec<String> {
        let Some(driver) = &self.driver else { return Vec::new() };
        let new = |name: &str| plan.has(name) && !driver.slots().has(name);
        let lists = manager.instances().filter(|(_, name, module, _)| *module == "block-list" && new(name));
        lists.map(|(_, name, ..)| name.to_owned()).collect()
    }

    /// Puts a plan into force, and the program at the ports as long as it has rules.
    pub fn apply(&mut self, plan: &Plan, manager: &Manager, lists: BTreeMap<String, Vec<Row>>) {
        let Some(driver) = &mut self.driver else { return };
        let lists: HashMap<String, Vec<Row>> = lists.into_iter().collect();
        let known: HashSet<RuleHandle> = manager.rules().rules().into_iter().map(|(_, rule)| rule).collect();
        if let Err(error) = driver.apply(plan, clock::now(), &lists) {
            self.fail(&format!("the rules of level 1 were not changed: {error}"));
            return;
        }
        driver.keep(|rule| known.contains(&rule), |name| manager.instance(name).is_ok());
        self.rules = plan.rules().iter().copied().collect();
        match plan.is_empty() {
            true => self.leave(),
            false if self.attached == 0 => self.attach(),
            false => {}
        }
        if self.attached != 0 {
            self.unavailable = None;
        }
    }

    fn attach(&mut self) {
        let Some(driver) = &mut self.driver else { return };
        self.refused.clear();
        for (at, port) in self.ports.iter().enumerate() {
            let interface = &port.interface;
            let attach = |known: PortConfig| match port.has_sockets {
                true => Ok(()),
                false => {
                    port.leave_vlan_tags();
                    driver.attach(known.ifindex)
                }
            };
            match port.config().map(attach) {
                Some(Ok(())) => self.attached |= 1 << at,
                Some(Err(error)) => {
                    tracing::warn!(interface, %error, "level 1 is not available at this port; its rules are level 2's there");
                    self.refused.push(format!("{interface}: {error}"));
                }
                None => {
                    tracing::warn!(interface, "there is no such interface any more");
                    self.refused.push(format!("{interface}: there is no such interface any more"));
                }
            }
        }
        if self.attached == 0 {
            self.unavailable = Some("no LAN port takes the program".to_owned());
        }
        tracing::info!(ports = self.attached.count_ones(), "packet plug-ins run in the driver");
    }

    /// The kernel has neither the former rules nor the next ones for sure: the program classifies nothing more. Workers with a way back get
    /// everything.
    fn fail(&mut self, text: &str) {
        tracing::error!("packet plug-ins: {text}; all rules are level 2's");
        self.unavailable = Some(text.to_owned());
        self.rules.clear();
        if let Some(Err(error)) = self.driver.as_mut().map(|driver| driver.classify(false, Taking::All)) {
            tracing::error!(%error, "packet plug-ins: the rules of level 1 stay in force at AF_XDP ports");
        }
        self.leave();
    }

    /// Removes the program and what it has, but for ports that need it for their frames.
    fn leave(&mut self) {
        self.attached = 0;
        let kept = self.ports.iter().filter(|port| port.has_sockets).filter_map(Port::config);
        let kept: Vec<u32> = kept.map(|port| port.ifindex).collect();
        if let Some(Err(error)) = self.driver.as_mut().map(|driver| driver.detach_ports(&kept)) {
            tracing::warn!(%error, "the program was not removed from all ports");
        }
    }

    /// At the end of the daemon.
    pub fn stop(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        if self.on_stop == OnStop::Detach
            && let Err(error) = driver.detach()
        {
            tracing::warn!(%error, "packet plug-ins stay in the driver");
        }
    }

    /// Removes blocks whose time is over.
    pub fn expire(&mut self) {
        if let Some(driver) = &mut self.driver {
            driver.expire(clock::now());
        }
    }

    /// Executes an operation; `None` if the driver has nothing of the instance.
    pub fn call(&mut self, manager: &Manager, call: &PreparedCall) -> Result<Option<Answer>, CallFailure> {
        let Some(driver) = &mut self.driver else { return Ok(None) };
        let module = manager.settings_of(&call.name).map_or("", |(module, _)| module);
        let answer = driver.call(clock::now(), &call.name, module, call.operation, &call.settings);
        answer.map_err(|error| CallFailure::Refused(error.to_string()))
    }

    /// Returns, once, the blocks that an earlier daemon left in the driver.
    pub fn taken_over(&mut self) -> Vec<TakenOver> {
        core::mem::take(&mut self.taken_over)
    }

    /// Adds what the driver has counted.
    pub fn add_counts(&self, manager: &Manager, sum: &mut PluginCounts) {
        let Some(Ok(counts)) = self.driver.as_ref().map(Driver::counts) else { return };
        for (rule, hits) in &mut sum.rules {
            *hits = *hits + counts.rules.get(rule).copied().unwrap_or_default();
        }
        for (id, count) in &mut sum.instances {
            let own =
                manager.name_of(*id).and_then(|name| counts.instances.get(name)).copied().unwrap_or_default();
            count.packets += own.packets;
            count.bytes += own.bytes;
            count.dropped += own.dropped;
        }
        let totals = counts.totals;
        sum.graph.entered += totals.passed + totals.dropped + totals.redirected + totals.broken;
        sum.graph.passed += totals.passed;
        sum.graph.dropped += totals.dropped + totals.broken;
        sum.graph.transmitted += totals.redirected;
    }
}

fn bits<'a>(rules: impl Iterator<Item = &'a RuleHandle>) -> Vec<u64> {
    let mut bits = Vec::new();
    for rule in rules {
        let word = rule.slot as usize / 64;
        if bits.len() <= word {
            bits.resize(word + 1, 0);
        }
        bits[word] |= 1 << (rule.slot % 64);
    }
    bits
}

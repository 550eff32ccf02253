//! The control thread's part of level 1: selects the rules that the driver's program decides, and attaches
//! the program to the LAN ports.
//!
//! Level 1 never prevents a policy: rules that it cannot run stay at level 2, and the node logs the reason.
//!
//! On AF_XDP ports the program is attached from the start, even without rules, since it delivers the frames
//! to the workers.

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
use csp_xdp::{Demoted, Diverted, Driver, DriverError, Loaded, Plan, PortConfig};

use crate::core::{DriverRules, PluginCounts};

use super::config::{Config, LanSection, OnStop, PortKind};
use super::lan::PortSocket;
use super::plugins::{CallFailure, PreparedCall};
use super::verification::Verification;

/// Largest number of an earlier daemon's blocks that are copied to the workers. The driver has all of them.
const TAKEN_OVER_MAX: usize = 4096;

/// A block-list entry: the list's name, and the arguments of its operation `add`.
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

    /// Makes the device leave VLAN tags in frames: the program has to see them, since frames of VLANs are not
    /// the port's.
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

/// The program, loaded once a rule or an AF_XDP port needs it.
#[derive(Debug)]
pub struct DriverControl {
    folder: PathBuf,
    on_stop: OnStop,
    /// Indexed by port number.
    ports: Vec<Port>,
    pub(super) driver: Option<Driver>,
    /// Supplied objects.
    pub(super) modules: Option<Arc<PluginModules>>,
    /// Why instances of supplied objects do not run, by instance name.
    pub(super) idle: HashMap<String, String>,
    pub(super) verification: Verification<Loaded>,
    /// Why objects were not loaded for the next plan, by instance, and which of these reasons were logged
    /// last.
    pub(super) refused_objects: HashMap<String, String>,
    pub(super) logged_objects: HashMap<String, String>,
    /// Ports on which the program decides rules, one bit each.
    attached: u32,
    /// Rules that the program decides.
    rules: HashSet<RuleHandle>,
    /// Block-list entries of an earlier daemon that the workers do not have yet.
    taken_over: Vec<TakenOver>,
    /// The message that was logged last, so that it is not repeated.
    logged: String,
    /// Rules of level 1 that level 2 decides instead.
    demoted: Vec<Demoted>,
    /// LAN ports to which the program could not be attached, each with the reason.
    refused: Vec<String>,
    /// Why level 1 is unavailable, since the last [`retry`](Self::retry); `None` if it is available or was
    /// not tried.
    unavailable: Option<String>,
    /// Why no program may be loaded; `None` if that may be tried.
    no_programs: Option<&'static str>,
}

impl DriverControl {
    /// Creates the controller for the ports of `config`. Loads nothing before [`begin`](Self::begin) or a
    /// policy.
    pub fn new(config: &Config, macs: &[MacAddr], no_programs: Option<&'static str>) -> Self {
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
            demoted: Vec::new(),
            refused: Vec::new(),
            unavailable: None,
            no_programs,
        }
    }

    /// Sets the store of supplied objects.
    pub fn set_modules(&mut self, modules: Arc<PluginModules>) {
        self.modules = Some(modules);
    }

    /// Returns whether an instance is part of the program that is attached to LAN ports.
    pub(super) fn has(&self, name: &str) -> bool {
        self.attached != 0 && self.driver.as_ref().is_some_and(|driver| driver.slots().has(name))
    }

    /// Returns why level 1 is unavailable; `None` if it is available or was not tried.
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// Returns the rules of level 1 that level 2 decides instead.
    pub fn demoted(&self) -> &[Demoted] {
        &self.demoted
    }

    /// Returns the LAN ports on which level 2 decides the rules of level 1, each with the reason.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Clears the record that level 1 is unavailable, so that it is tried again.
    pub fn retry(&mut self) {
        self.unavailable = None;
    }

    /// Loads the program unless it is loaded. Returns false, and logs the reason, if level 1 is unavailable.
    pub fn prepare(&mut self) -> bool {
        if self.driver.is_none() {
            let opened = match self.no_programs {
                None => self.open().map_err(|error| error.to_string()),
                Some(why) => Err(why.to_owned()),
            };
            match opened {
                Ok(driver) => self.driver = Some(driver),
                Err(error) => {
                    self.warn(format!("level 1 is not available, its rules stay at level 2: {error}"));
                    self.unavailable = Some(error);
                }
            }
        }
        self.driver.is_some()
    }

    /// Loads the program if an earlier daemon has left pinned objects.
    pub fn take_over(&mut self) {
        if self.folder.exists() {
            self.prepare();
        }
    }

    /// Returns whether the driver has a slot for an instance of this name.
    pub fn has_place_of(&self, name: &str) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.slots().has(name))
    }

    /// Attaches the program to the AF_XDP ports, if there are any, and registers their sockets. The sockets
    /// receive no frames before [`set_addresses`](Self::set_addresses).
    ///
    /// # Errors
    /// The program cannot be loaded or attached: such a port would receive nothing.
    pub fn begin(&mut self, sockets: &[PortSocket], reinjection: &[Option<Tap>]) -> Result<(), DaemonError> {
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
        driver.set_reinjection_ports(reinjection.iter().enumerate().map(bit).sum()).map_err(unavailable)?;
        for port in self.ports.iter().filter(|port| port.has_sockets) {
            if let Some(known) = port.config() {
                port.leave_vlan_tags();
                driver.attach(known.ifindex).map_err(unavailable)?;
            }
        }
        Ok(())
    }

    /// Sets the addresses whose frames AF_XDP ports receive.
    pub fn set_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        if let Some(driver) = self.driver.as_mut().filter(|_| self.ports.iter().any(|port| port.has_sockets))
            && let Err(error) = driver.set_addresses(addresses)
        {
            tracing::error!(%error, "AF_XDP ports do not receive the frames of all addresses");
        }
    }

    /// Returns the plan for the program, after [`load_objects`](Self::load_objects). Returns `None` if there
    /// is nothing to do or level 1 is unavailable; level 2 then decides all rules.
    pub fn plan(&mut self, manager: &Manager, table: &Table) -> Option<Plan> {
        let refused = std::mem::take(&mut self.refused_objects);
        let before = self.driver.as_ref()?.slots().clone();
        match Plan::without(manager, table, &before, &refused) {
            Ok(plan) => {
                self.idle.clone_from(&plan.idle);
                let demoted = plan
                    .demoted
                    .iter()
                    .map(|demoted| format!("rule {} stays at level 2: {}", demoted.rule, demoted.reason));
                let demoted: Vec<String> = demoted.collect();
                self.warn(demoted.join("; "));
                self.demoted.clone_from(&plan.demoted);
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

    /// Loads the program and takes over the objects that an earlier daemon has pinned.
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

    /// Returns the rules that the program decides under both the former and the next plan.
    pub fn rules_of_both(&self, plan: &Plan) -> DriverRules {
        let both = plan.rules().iter().filter(|rule| self.rules.contains(rule));
        DriverRules { ports: self.attached, complete: false, rules: bits(both) }
    }

    /// Returns the rules that workers leave to the program from now on.
    pub fn rules(&self, plan: &Plan) -> DriverRules {
        let none = self.attached == 0;
        let complete = plan.is_complete() && !none;
        DriverRules { ports: self.attached, complete, rules: if none { Vec::new() } else { plan.slots() } }
    }

    /// Returns whether the driver decides a rule.
    pub fn decides(&self, rule: RuleHandle) -> bool {
        self.attached != 0 && self.rules.contains(&rule)
    }

    /// Returns the block lists that are new in the driver and start with the workers' entries.
    pub fn new_lists(&self, plan: &Plan, manager: &Manager) -> Vec<String> {
        let Some(driver) = &self.driver else { return Vec::new() };
        let new = |name: &str| plan.has(name) && !driver.slots().has(name);
        let lists = manager.instances().filter(|(_, name, module, _)| *module == "block-list" && new(name));
        lists.map(|(_, name, ..)| name.to_owned()).collect()
    }

    /// Puts a plan into force, and attaches the program to the ports while it has rules.
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

    /// Handles a failed change: it is unknown whether the kernel has the former or the next rules, so the
    /// program stops classifying. Workers with a path back to the kernel then receive all frames.
    fn fail(&mut self, text: &str) {
        tracing::error!("packet plug-ins: {text}; all rules are level 2's");
        self.unavailable = Some(text.to_owned());
        self.rules.clear();
        if let Some(Err(error)) = self.driver.as_mut().map(|driver| driver.classify(false, Diverted::All)) {
            tracing::error!(%error, "packet plug-ins: the rules of level 1 stay in force at AF_XDP ports");
        }
        self.leave();
    }

    /// Detaches the program and unpins its maps, except on AF_XDP ports, which depend on it to receive
    /// frames.
    fn leave(&mut self) {
        self.attached = 0;
        let kept = self.ports.iter().filter(|port| port.has_sockets).filter_map(Port::config);
        let kept: Vec<u32> = kept.map(|port| port.ifindex).collect();
        if let Some(Err(error)) = self.driver.as_mut().map(|driver| driver.detach_ports(&kept)) {
            tracing::warn!(%error, "the program was not removed from all ports");
        }
    }

    /// Ends the driver's work when the daemon stops.
    pub fn stop(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        if self.on_stop == OnStop::Detach
            && let Err(error) = driver.detach()
        {
            tracing::warn!(%error, "packet plug-ins stay in the driver");
        }
    }

    /// Removes expired blocks.
    pub fn expire(&mut self) {
        if let Some(driver) = &mut self.driver {
            driver.expire(clock::now());
        }
    }

    /// Executes an operation. Returns `None` if the driver does not have the instance.
    pub fn call(&mut self, manager: &Manager, call: &PreparedCall) -> Result<Option<Answer>, CallFailure> {
        let Some(driver) = &mut self.driver else { return Ok(None) };
        let module = manager.settings_of(&call.name).map_or("", |(module, _)| module);
        let answer = driver.call(clock::now(), &call.name, module, call.operation, &call.settings);
        answer.map_err(|error| CallFailure::Refused(error.to_string()))
    }

    /// Returns the block-list entries that an earlier daemon left in the driver. They are returned once.
    pub fn taken_over(&mut self) -> Vec<TakenOver> {
        core::mem::take(&mut self.taken_over)
    }

    /// Adds the driver's counters to `sum`.
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

//! The program in the kernel: loading it, taking over pinned objects of an earlier process, tables, ports,
//! counters.

mod calls;
mod counts;
mod links;
mod run;
mod sockets;
mod supplied;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::xdp::{DevMap, XdpMapError};
use aya::maps::{Array, ArrayOfMaps, Map, MapData, MapError, PerCpuArray, XskMap};
use aya::pin::PinError;
use aya::programs::links::LinkError;
use aya::programs::xdp::XdpLinkId;
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfError, EbpfLoader};
use csp_classify::multifield::{HitCount, RuleHandle};
use csp_plugins::{InstanceCount, Row};
use csp_types::{Instant, MacAddr};

use crate::lists::{BlockMap, List, NetworkMap};
use crate::maps::{AddressKey, Config, Count, HAS_SOCKETS, Name, Port, RawTotals, State, TableValue};
use crate::plan::{Diverted, Plan};
use crate::slots::{Kind, Slots, Wanted};
use crate::{INSTANCES_MAX, LAYOUT_VERSION, PORTS_MAX};

use counts::since;
use supplied::Supplied;
pub use supplied::{Loaded, Loading};

/// Names of the program's maps.
const MAPS: [&str; 14] = [
    "tables",
    "blocks",
    "networks",
    "config",
    "rule_counts",
    "states",
    "totals",
    "ports",
    "sockets",
    "owned",
    "supplied",
    "csp_continue",
    "resume",
    "passages",
];
/// Name of the map of instance names, which only this crate reads.
const NAMES: &str = "names";

/// Why an operation in the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The object file was not loaded.
    #[error("the program was not loaded: {0}")]
    Load(#[from] EbpfError),
    /// The verifier rejected the program, or it could not be attached.
    #[error("{0}")]
    Program(#[from] ProgramError),
    /// An operation on a map failed.
    #[error("a map: {0}")]
    Map(#[from] MapError),
    /// An operation on the map of ports failed.
    #[error("the map of ports: {0}")]
    Ports(#[from] XdpMapError),
    /// An object could not be pinned.
    #[error("{0}")]
    Pin(#[from] PinError),
    /// An operation on a link failed.
    #[error("a link: {0}")]
    Link(#[from] LinkError),
    /// A folder below /sys/fs/bpf cannot be used.
    #[error("{}: {source}; it has to be in a BPF file system (mount -t bpf bpf /sys/fs/bpf)", .path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A map is missing in the object file, or pinned with another layout.
    #[error("the map {0} is missing or of another kind")]
    Missing(&'static str),
}

/// A LAN port, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Number of the interface.
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// Whether the node's frames go to AF_XDP sockets ([`Driver::set_socket`]).
    pub has_sockets: bool,
}

impl PortConfig {
    /// Returns the configuration of the interface with this name in the calling thread's network namespace.
    pub fn of(interface: &str, mac: MacAddr, has_sockets: bool) -> Option<Self> {
        let name = std::ffi::CString::new(interface).ok()?;
        // SAFETY: the name ends with a zero and lives until the call returns.
        let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
        (ifindex != 0).then_some(PortConfig { ifindex, mac, has_sockets })
    }
}

/// Counts of frames by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Frames for the node on ports with the program.
    pub seen: u64,
    /// Frames among these that are not plain IP packets, and that level 2 classifies.
    pub unclassified: u64,
    /// Frames that no rule matches.
    pub unmatched: u64,
    /// Frames that a rule of level 2 decides.
    pub level2: u64,
    /// Frames that passed the plug-ins of level 1.
    pub passed: u64,
    /// Frames that a plug-in dropped.
    pub dropped: u64,
    /// Frames that a plug-in redirected to another port.
    pub redirected: u64,
    /// Frames that were dropped because a supplied program did not run, returned a frame that it had not
    /// received, or returned one that the next plug-in cannot process.
    pub broken: u64,
}

/// Counters of level 1.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Hits of every rule that was ever decided here.
    pub rules: HashMap<RuleHandle, HitCount>,
    /// By instance name.
    pub instances: HashMap<String, InstanceCount>,
    /// Of all frames.
    pub totals: Totals,
}

/// The program and its maps.
pub struct Driver {
    ebpf: Ebpf,
    tables: ArrayOfMaps<MapData, Array<MapData, TableValue>>,
    /// The table that this process has put into force.
    table: Option<Array<MapData, TableValue>>,
    supplied: Supplied,
    blocks: ArrayOfMaps<MapData, BlockMap>,
    networks: ArrayOfMaps<MapData, NetworkMap>,
    config: Array<MapData, Config>,
    rule_counts: PerCpuArray<MapData, Count>,
    states: PerCpuArray<MapData, State>,
    totals: PerCpuArray<MapData, RawTotals>,
    ports: DevMap<MapData>,
    sockets: XskMap<MapData>,
    owned: aya::maps::HashMap<MapData, AddressKey, u32>,
    names: Array<MapData, Name>,
    /// The folder in which everything is pinned. `None`: nothing outlives the process.
    folder: Option<PathBuf>,
    config_now: Config,
    /// Whether level 1 has rules, or may have those of an earlier process.
    classifies: bool,
    /// Which packets for addresses of others the sockets receive, on ports with a path back to the kernel.
    diverted: Diverted,
    /// Ports with a path back to the kernel, one bit each.
    reinjection_ports: u32,
    slots: Slots,
    /// Indexed by slot.
    lists: Vec<List>,
    /// The rules of the table, with the counter values from before.
    rules: HashMap<RuleHandle, Count>,
    /// Counts of rules and instances from before they left level 1.
    carried: Counts,
    /// Counts by network of counter instances from before they left level 1.
    carried_rows: HashMap<String, Vec<Row>>,
    /// Links by interface. Links that are not pinned end with the program.
    links: Vec<(u32, XdpLinkId)>,
}

impl core::fmt::Debug for Driver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Driver({:?}, {} rules)", self.folder, self.rules.len())
    }
}

fn take<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, DriverError>
where
    T: TryFrom<Map>,
{
    let map = ebpf.take_map(name).ok_or(DriverError::Missing(name))?;
    T::try_from(map).map_err(|_| DriverError::Missing(name))
}

fn folder_error(path: &Path) -> impl FnOnce(io::Error) -> DriverError {
    let path = path.to_owned();
    move |source| DriverError::Folder { path, source }
}

impl Driver {
    /// Loads the program. With a folder in a BPF file system, maps pinned there are taken over, with the
    /// slots and tables of their instances; missing maps are created and pinned. The program attached to
    /// ports is not replaced until [`attach`](Self::attach).
    pub fn open(folder: Option<&Path>) -> Result<Self, DriverError> {
        Self::open_program(folder, crate::PROGRAM)
    }

    /// Like [`open`](Self::open), with another object file that has the same maps.
    #[doc(hidden)]
    pub fn open_program(folder: Option<&Path>, program: &[u8]) -> Result<Self, DriverError> {
        let folder = folder.map(|folder| folder.join(format!("v{LAYOUT_VERSION}")));
        let mut loader = EbpfLoader::new();
        if let Some(folder) = &folder {
            make_folder(folder)?;
            MAPS.iter().for_each(|name| {
                loader.map_pin_path(name, folder.join(name));
            });
        }
        let mut ebpf = loader.load(program)?;
        let names = match &folder {
            Some(folder) if folder.join(NAMES).exists() => {
                Map::Array(MapData::from_pin(folder.join(NAMES))?).try_into()?
            }
            Some(folder) => {
                let names: Array<MapData, Name> = Array::create(INSTANCES_MAX as u32, 0)?;
                names.pin(folder.join(NAMES))?;
                Map::Array(MapData::from_pin(folder.join(NAMES))?).try_into()?
            }
            None => Array::create(INSTANCES_MAX as u32, 0)?,
        };
        let config: Array<MapData, Config> = take(&mut ebpf, "config")?;
        let mut driver = Driver {
            config_now: Config { table: config.get(&0, 0)?.table, ..Config::default() },
            supplied: Supplied::new(&mut ebpf)?,
            tables: take(&mut ebpf, "tables")?,
            table: None,
            blocks: take(&mut ebpf, "blocks")?,
            networks: take(&mut ebpf, "networks")?,
            config,
            rule_counts: take(&mut ebpf, "rule_counts")?,
            states: take(&mut ebpf, "states")?,
            totals: take(&mut ebpf, "totals")?,
            ports: take(&mut ebpf, "ports")?,
            sockets: take(&mut ebpf, "sockets")?,
            owned: take(&mut ebpf, "owned")?,
            ebpf,
            names,
            folder,
            classifies: true,
            diverted: Diverted::Nothing,
            reinjection_ports: 0,
            slots: Slots::default(),
            lists: (0..INSTANCES_MAX).map(|_| List::None).collect(),
            rules: HashMap::new(),
            carried: Counts::default(),
            carried_rows: HashMap::new(),
            links: Vec::new(),
        };
        driver.program("csp_level1")?.load()?;
        driver.take_over()?;
        Ok(driver)
    }

    fn program(&mut self, name: &'static str) -> Result<&mut Xdp, DriverError> {
        let program = self.ebpf.program_mut(name).ok_or(DriverError::Missing(name))?;
        Ok(program.try_into()?)
    }

    /// Reads the slots of instances that an earlier process has recorded, and opens their tables.
    fn take_over(&mut self) -> Result<(), DriverError> {
        for at in 0..INSTANCES_MAX {
            let Name(bytes) = self.names.get(&(at as u32), 0)?;
            let Some(wanted) = Wanted::decode(&bytes) else { continue };
            let Some(folder) = &self.folder else { return Ok(()) };
            self.lists[at] = List::from_pin(&wanted.kind, &list_path(folder, at))?;
            self.take_over_supplied(at)?;
            self.slots.0[at] = Some(wanted);
        }
        Ok(())
    }

    /// Returns the slots of instances.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Sets the LAN ports, indexed by number. The program passes frames of other interfaces; an earlier
    /// process's program is detached from them.
    pub fn set_ports(&mut self, ports: &[Option<PortConfig>]) -> Result<(), DriverError> {
        self.config_now.ports = Default::default();
        self.unpin_links(|ifindex| ports.iter().flatten().any(|port| port.ifindex == ifindex))?;
        for (at, port) in ports.iter().enumerate().take(PORTS_MAX) {
            let Some(PortConfig { ifindex, mac: MacAddr(mac), has_sockets }) = *port else { continue };
            let number = at as u16 | if has_sockets { HAS_SOCKETS } else { 0 };
            self.config_now.ports[at] = Port { ifindex, mac, number };
            self.ports.set(at as u32, ifindex, None, 0)?;
        }
        self.classify(self.classifies, self.diverted)
    }

    /// Sets the time that the program uses, for tests.
    #[doc(hidden)]
    pub fn set_now(&mut self, now: Instant) -> Result<(), DriverError> {
        self.config_now.now = now.as_nanos();
        Ok(self.config.set(0, self.config_now, 0)?)
    }

    /// Puts a plan into force: first the tables of its instances, then all rules at once. `lists` has the
    /// initial entries of block lists that are new here, by name, as rows of their operation `list`.
    pub fn apply(
        &mut self,
        plan: &Plan,
        now: Instant,
        lists: &HashMap<String, Vec<Row>>,
    ) -> Result<(), DriverError> {
        let before = self.slots.clone();
        for at in 0..INSTANCES_MAX {
            if plan.slots.0[at] != before.0[at]
                && let Some(wanted) = plan.slots.0[at].clone()
            {
                if let Some(gone) = &before.0[at] {
                    self.carry_instance(at, &gone.name)?;
                }
                // If the plan fails here, no instance must look prepared.
                self.slots.0[at] = None;
                self.prepare(at, &wanted, now, lists)?;
                self.slots.0[at] = Some(wanted);
            }
        }
        let mut rules = HashMap::new();
        for rule in &plan.rules {
            let base = match self.rules.get(rule) {
                Some(base) => *base,
                None => self.rule_count(rule.slot)?,
            };
            rules.insert(*rule, base);
        }
        self.swap(&plan.table)?;
        self.slots = plan.slots.clone();
        self.set_parameters(&plan.parameters)?;
        self.keep_ready(&plan.idle);
        self.classify(!plan.is_empty(), plan.diverted)?;
        for (rule, base) in core::mem::replace(&mut self.rules, rules) {
            if !self.rules.contains_key(&rule) {
                let count = self.rule_count(rule.slot)?;
                let carried = self.carried.rules.entry(rule).or_default();
                *carried = *carried + since(count, base);
            }
        }
        for at in 0..INSTANCES_MAX {
            if let (None, Some(gone)) = (&self.slots.0[at], &before.0[at]) {
                self.carry_instance(at, &gone.name.clone())?;
                if self.slots.place(&gone.name).is_some() {
                    // The slot now counts another instance.
                    self.carried_rows.remove(&gone.name);
                }
                self.lists[at] = List::None;
                // First, so that a daemon killed here leaves no slot that looks occupied.
                self.names.set(at as u32, Name([0; crate::maps::NAME_LEN]), 0)?;
                self.remove_supplied(at);
                if let Some(folder) = &self.folder {
                    let _ = fs::remove_file(list_path(folder, at));
                }
            }
        }
        Ok(())
    }

    /// Discards the counts of rules and instances that no longer exist.
    pub fn keep(&mut self, rules: impl Fn(RuleHandle) -> bool, instances: impl Fn(&str) -> bool) {
        self.carried.rules.retain(|rule, _| rules(*rule));
        self.carried.instances.retain(|name, _| instances(name));
        self.carried_rows.retain(|name, _| instances(name));
    }

    /// Replaces the table. When this returns, no program uses the former one.
    fn swap(&mut self, table: &[u8]) -> Result<(), DriverError> {
        let value: Box<TableValue> =
            table.to_vec().into_boxed_slice().try_into().map_err(|_| DriverError::Missing("tables"))?;
        let mut map: Array<MapData, TableValue> = Array::create(1, 0)?;
        #[expect(
            clippy::needless_borrows_for_generic_args,
            reason = "by value a table would lie on the stack"
        )]
        map.set(0, &*value, 0)?;
        // Packets in supplied programs continue with the table that led them there, which stays until none is
        // left.
        let next = 1 - (self.config_now.table & 1);
        self.tables.set(next, &map, 0)?;
        self.config_now.table = next;
        self.config.set(0, self.config_now, 0)?;
        self.table = Some(map);
        self.wait_for_packets()
    }

    /// Returns when every packet that was being processed at the call has left. The kernel waits for them
    /// when an array of maps changes.
    fn wait_for_packets(&mut self) -> Result<(), DriverError> {
        match &self.table {
            Some(table) => Ok(self.tables.set(self.config_now.table & 1, table, 0)?),
            None => Ok(()),
        }
    }

    /// Creates the state and the table of an instance in a slot that the program does not use.
    fn prepare(
        &mut self,
        at: usize,
        wanted: &Wanted,
        now: Instant,
        lists: &HashMap<String, Vec<Row>>,
    ) -> Result<(), DriverError> {
        let key = at as u32;
        let cpus = aya::util::nr_cpus()
            .map_err(|(path, source)| DriverError::Folder { path: path.into(), source })?;
        let zero = vec![State::default(); cpus];
        self.states.set(key, zero.try_into().map_err(folder_error(Path::new("states")))?, 0)?;
        let path = self.folder.as_ref().map(|folder| list_path(folder, at));
        if let Some(path) = &path {
            let _ = fs::remove_file(path);
        }
        self.lists[at] = List::create(&wanted.kind, path.as_deref())?;
        match wanted.kind {
            Kind::Supplied(_) => self.place_supplied(at, wanted)?,
            _ => self.remove_supplied(at),
        }
        match &self.lists[at] {
            List::None => {}
            List::Blocks(list) => self.blocks.set(key, &list.map, 0)?,
            List::Networks(list) => self.networks.set(key, &list.map, 0)?,
        }
        for row in lists.get(&wanted.name).into_iter().flatten() {
            self.lists[at].restore(now, row)?;
        }
        Ok(self.names.set(key, Name(wanted.encode()), 0)?)
    }

    /// Removes expired blocks.
    pub fn expire(&mut self, now: Instant) {
        self.lists.iter_mut().for_each(|list| {
            if let List::Blocks(list) = list {
                list.expire(now);
            }
        });
    }

    /// Returns the entries of each block list, as rows of its operation `list`.
    pub fn blocked(&self, now: Instant) -> HashMap<String, Vec<Row>> {
        let slots = self.slots.0.iter().zip(&self.lists);
        let lists = slots.filter_map(|(wanted, list)| match (wanted, list) {
            (Some(wanted), List::Blocks(list)) => Some((wanted.name.clone(), list.rows(now, usize::MAX))),
            _ => None,
        });
        lists.collect()
    }

    #[doc(hidden)]
    pub fn take_map<T: TryFrom<Map>>(&mut self, name: &'static str) -> Result<T, DriverError> {
        take(&mut self.ebpf, name)
    }
}

fn list_path(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!("list-{at}"))
}

/// Creates the folder of this layout, and removes those of other layouts, whose programs read other tables.
fn make_folder(folder: &Path) -> Result<(), DriverError> {
    fs::create_dir_all(folder).map_err(folder_error(folder))?;
    let Some(parent) = folder.parent() else { return Ok(()) };
    for entry in fs::read_dir(parent).map_err(folder_error(parent))?.flatten() {
        if entry.path() != folder {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<(), DriverError> {
    fs::remove_dir_all(folder).map_err(folder_error(folder))
}

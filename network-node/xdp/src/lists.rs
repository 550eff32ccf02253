//! The tables of single instances (networks of a block list, counts of a counter) and their operations.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapData, MapError, PerCpuHashMap};
use csp_plugins::{Answer, CallError, FOREVER, ROWS_MAX, Row, Settings, Value};
use csp_types::{Instant, Prefix};

use crate::driver::DriverError;
use crate::maps::{Block, BlockData, Count, NetworkKey, State};
use crate::slots::Kind;

/// BPF_F_NO_PREALLOC: entries are allocated on insertion, as the kernel requires for LPM tries.
const NO_PREALLOC: u32 = 1;
/// Longest note of a block, in bytes.
const FROM_LEN: usize = 44;

pub(crate) type BlockMap = LpmTrie<MapData, BlockData, Block>;
pub(crate) type NetworkMap = PerCpuHashMap<MapData, NetworkKey, Count>;

/// The table of an instance, if it has one.
pub(crate) enum List {
    None,
    Blocks(Blocks),
    Networks(Networks),
}

impl List {
    /// Creates an empty table and pins it.
    pub fn create(kind: &Kind, path: Option<&Path>) -> Result<Self, DriverError> {
        Ok(match kind {
            Kind::Plain(_) | Kind::Supplied(_) => List::None,
            Kind::Blocks(most) => {
                let map = BlockMap::create(*most, NO_PREALLOC)?;
                let map = match path {
                    Some(path) => {
                        map.pin(path)?;
                        Map::LpmTrie(MapData::from_pin(path)?).try_into()?
                    }
                    None => map,
                };
                List::Blocks(Blocks::new(map, *most as usize))
            }
            Kind::Networks(most, by) => {
                let map = NetworkMap::create(*most, 0)?;
                let map = match path {
                    Some(path) => {
                        map.pin(path)?;
                        Map::PerCpuHashMap(MapData::from_pin(path)?).try_into()?
                    }
                    None => map,
                };
                List::Networks(Networks { map, lengths: lengths_of(*by) })
            }
        })
    }

    /// Opens the table that an earlier process has pinned.
    pub fn from_pin(kind: &Kind, path: &Path) -> Result<Self, DriverError> {
        Ok(match kind {
            Kind::Plain(_) | Kind::Supplied(_) => List::None,
            Kind::Blocks(most) => {
                let map: BlockMap = Map::LpmTrie(MapData::from_pin(path)?).try_into()?;
                let mut blocks = Blocks::new(map, *most as usize);
                blocks.read_all()?;
                List::Blocks(blocks)
            }
            Kind::Networks(_, by) => {
                let map = Map::PerCpuHashMap(MapData::from_pin(path)?).try_into()?;
                List::Networks(Networks { map, lengths: lengths_of(*by) })
            }
        })
    }

    /// Adds the entry that a row of the operation `list` describes.
    pub fn restore(&mut self, now: Instant, row: &Row) -> Result<(), DriverError> {
        let (List::Blocks(blocks), Ok(prefix)) = (self, row.key.parse::<Prefix>()) else { return Ok(()) };
        let left = row.numbers.iter().find(|(name, _)| *name == "seconds_left").map_or(0, |(_, left)| *left);
        let until = if left == 0 { Instant::FAR_FUTURE } else { now + csp_types::Duration::from_secs(left) };
        match blocks.insert(prefix, until, &row.note) {
            Err(CallError::Full { .. }) | Ok(()) => Ok(()),
            Err(error) => {
                Err(DriverError::Folder { path: "a block list".into(), source: std::io::Error::other(error) })
            }
        }
    }
}

/// Time of expiry of a network.
type Expiry = Reverse<(Instant, IpAddr, u8)>;

/// The blocked networks. The kernel's map is authoritative; the entries are also kept here, without packet
/// counts.
pub(crate) struct Blocks {
    pub map: BlockMap,
    entries: HashMap<Prefix, (Instant, String)>,
    expiries: BinaryHeap<Expiry>,
    capacity: usize,
    expired: u64,
    refused: u64,
}

fn key_of(prefix: &Prefix) -> Key<BlockData> {
    let mut data: BlockData = [0; 20];
    match prefix.address() {
        IpAddr::V4(address) => {
            data[0] = 4;
            data[1..5].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            data[0] = 6;
            data[1..17].copy_from_slice(&address.octets());
        }
    }
    Key::new(8 + u32::from(prefix.length()), data)
}

fn prefix_of(key: &Key<BlockData>) -> Option<Prefix> {
    let data = key.data();
    let address = match data[0] {
        4 => IpAddr::from(*data[1..].first_chunk::<4>()?),
        6 => IpAddr::from(*data[1..].first_chunk::<16>()?),
        _ => return None,
    };
    Prefix::new(address, u8::try_from(key.prefix_len().checked_sub(8)?).ok()?).ok()
}

impl Blocks {
    fn new(map: BlockMap, capacity: usize) -> Self {
        let (entries, expiries) = (HashMap::new(), BinaryHeap::new());
        Blocks { map, entries, expiries, capacity, expired: 0, refused: 0 }
    }

    fn read_all(&mut self) -> Result<(), MapError> {
        let all: Vec<(Key<BlockData>, Block)> = self.map.iter().collect::<Result<_, _>>()?;
        for (key, block) in all {
            let Some(prefix) = prefix_of(&key) else { continue };
            let len = block.from.iter().position(|byte| *byte == 0).unwrap_or(FROM_LEN);
            let from = String::from_utf8_lossy(&block.from[..len]).into_owned();
            let until = Instant::from_nanos(block.until);
            self.entries.insert(prefix, (until, from));
            self.note(prefix, until);
        }
        Ok(())
    }

    fn note(&mut self, prefix: Prefix, until: Instant) {
        if until == Instant::FAR_FUTURE {
            return;
        }
        // Expiries of entries that were added again stay in the queue until their time. They are removed when
        // the queue exceeds twice the list's capacity.
        if self.expiries.len() >= 2 * self.capacity {
            let timed = self.entries.iter().filter(|(_, (until, _))| *until != Instant::FAR_FUTURE);
            self.expiries = timed
                .map(|(prefix, (until, _))| Reverse((*until, prefix.address(), prefix.length())))
                .collect();
        } else {
            self.expiries.push(Reverse((until, prefix.address(), prefix.length())));
        }
    }

    /// Removes expired entries.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&Reverse((until, address, length))) = self.expiries.peek() {
            if until > now {
                return;
            }
            self.expiries.pop();
            if let Ok(prefix) = Prefix::new(address, length)
                && self.entries.get(&prefix).is_some_and(|(own, _)| *own == until)
            {
                self.remove(&prefix);
                self.expired += 1;
            }
        }
    }

    fn remove(&mut self, prefix: &Prefix) -> bool {
        // The kernel's map may lack the entry because it was full.
        let _ = self.map.remove(&key_of(prefix));
        self.entries.remove(prefix).is_some()
    }

    fn insert(&mut self, prefix: Prefix, until: Instant, note: &str) -> Result<(), CallError> {
        let present = self.entries.contains_key(&prefix);
        if !present && self.entries.len() >= self.capacity {
            self.refused += 1;
            return Err(CallError::Full { capacity: self.capacity });
        }
        let packets = if present { self.packets(&prefix) } else { 0 };
        let mut from = [0; FROM_LEN];
        let len = (0..=note.len().min(FROM_LEN)).rev().find(|len| note.is_char_boundary(*len)).unwrap_or(0);
        from[..len].copy_from_slice(&note.as_bytes()[..len]);
        let block = Block { until: until.as_nanos(), packets, length: prefix.length().into(), from };
        let inserted = self.map.insert(&key_of(&prefix), block, 0);
        inserted.map_err(|error| CallError::NotFound(format!("the kernel's map: {error}")))?;
        self.entries.insert(prefix, (until, note.to_owned()));
        self.note(prefix, until);
        Ok(())
    }

    /// Returns the packets that an entry has dropped. The longest entry for its first address under its own
    /// length is the entry itself.
    fn packets(&self, prefix: &Prefix) -> u64 {
        self.map.get(&key_of(prefix), 0).map_or(0, |block| block.packets)
    }

    /// Returns the first `limit` live entries, in order.
    pub fn rows(&self, now: Instant, limit: usize) -> Vec<Row> {
        let mut live: Vec<&Prefix> =
            self.entries.iter().filter(|(_, (until, _))| *until > now).map(|(prefix, _)| prefix).collect();
        live.sort_by_key(|prefix| (prefix.address(), prefix.length()));
        live.into_iter().take(limit).map(|prefix| self.row(now, prefix)).collect()
    }

    fn row(&self, now: Instant, prefix: &Prefix) -> Row {
        let (until, from) = self.entries.get(prefix).cloned().unwrap_or((Instant::FAR_FUTURE, String::new()));
        let left = match until == Instant::FAR_FUTURE {
            true => 0,
            false => until.saturating_since(now).as_secs().max(1),
        };
        let numbers = vec![("seconds_left", left), ("packets", self.packets(prefix))];
        Row { key: prefix.to_string(), note: from.into(), numbers }
    }

    pub fn call(
        &mut self,
        now: Instant,
        operation: &str,
        arguments: &Settings,
        state: &State,
    ) -> Result<Answer, CallError> {
        self.expire(now);
        match operation {
            "add" => {
                let Some(prefix) = arguments.prefix("prefix") else { return Ok(Answer::Done) };
                let time = arguments.duration("time");
                let until = if time == FOREVER { Instant::FAR_FUTURE } else { now + time };
                let from = match arguments.value("from") {
                    Some(Value::Text(text)) => text.to_string(),
                    _ => "plug-in".to_owned(),
                };
                self.insert(prefix, until, &from)?;
                Ok(Answer::Done)
            }
            "remove" => {
                let prefix = arguments.prefix("prefix");
                let removed = prefix.is_some_and(|prefix| self.remove(&prefix));
                let name = prefix.map_or(String::new(), |prefix| prefix.to_string());
                if removed { Ok(Answer::Done) } else { Err(CallError::NotFound(name)) }
            }
            "find" => {
                let found = arguments.prefix("address").and_then(|prefix| self.find(now, prefix.address()));
                Ok(Answer::Rows(found.into_iter().map(|prefix| self.row(now, &prefix)).collect()))
            }
            "list" => Ok(Answer::Rows(self.rows(now, ROWS_MAX + 1))),
            "dump" => Ok(Answer::Rows(self.rows(now, usize::MAX))),
            "read" => {
                let numbers = vec![
                    ("prefixes", self.entries.len() as u64),
                    ("dropped_packets", state.first.packets),
                    ("dropped_bytes", state.first.bytes),
                    ("expired", self.expired),
                    ("refused", self.refused),
                ];
                Ok(Answer::Rows(vec![Row { numbers, ..Row::default() }]))
            }
            other => Err(CallError::NoOperation(other.into())),
        }
    }

    /// Returns the longest live entry that contains the address.
    fn find(&self, now: Instant, address: IpAddr) -> Option<Prefix> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (0..=bits).rev().find_map(|length| {
            let prefix = masked(address, length)?;
            self.entries.get(&prefix).filter(|(until, _)| *until > now).map(|_| prefix)
        })
    }
}

fn masked(address: IpAddr, length: u8) -> Option<Prefix> {
    let address = match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    };
    Prefix::new(address, length).ok()
}

/// Packet counts by network.
pub(crate) struct Networks {
    pub map: NetworkMap,
    /// Prefix lengths for IPv4 and IPv6.
    lengths: (u8, u8),
}

fn lengths_of(by: u32) -> (u8, u8) {
    ((by >> 8) as u8, by as u8)
}

impl Networks {
    /// Returns rows as the module's operation `read` has them.
    pub fn read(&self, state: &State) -> Result<Vec<Row>, DriverError> {
        let mut rows = Vec::new();
        for entry in self.map.iter() {
            let (key, counts) = entry?;
            let sum = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.packets, sum.1 + count.bytes));
            let (address, length) = match key.family {
                4 => (IpAddr::from(((key.high >> 32) as u32).to_be_bytes()), self.lengths.0),
                _ => (
                    Ipv6Addr::from_bits(u128::from(key.high) << 64 | u128::from(key.low)).into(),
                    self.lengths.1,
                ),
            };
            if let Ok(prefix) = Prefix::new(address, length) {
                rows.push((Some((address, length)), count_row(prefix.to_string(), sum)));
            }
        }
        rows.sort_by_key(|(place, _)| *place);
        let mut rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
        if state.first.packets > 0 {
            rows.push(count_row("other".into(), (state.first.packets, state.first.bytes)));
        }
        Ok(rows)
    }

    /// Removes all entries.
    pub fn reset(&mut self) {
        let keys: Vec<NetworkKey> = self.map.keys().filter_map(Result::ok).collect();
        for key in keys {
            // The program may be using the entry at this moment; its last counts are lost with the entry.
            let _ = self.map.remove(&key);
        }
    }
}

fn count_row(key: String, (packets, bytes): (u64, u64)) -> Row {
    Row { key, numbers: vec![("packets", packets), ("bytes", bytes)], ..Row::default() }
}

/// Returns the answer of a policer.
pub(crate) fn policer_row(state: &State) -> Row {
    let numbers = vec![
        ("conforming_packets", state.first.packets),
        ("conforming_bytes", state.first.bytes),
        ("exceeding_packets", state.second.packets),
        ("exceeding_bytes", state.second.bytes),
    ];
    Row { numbers, ..Row::default() }
}

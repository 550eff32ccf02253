//! The slots of instances at level 1. An instance that is kept keeps its slot, and with it its state, also
//! across a restart of the process, since slots are recorded in a map.

use csp_plugins::{Settings, Value, is_supplied};

use crate::INSTANCES_MAX;
use crate::maps::NAME_LEN;

/// An instance that needs a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub name: String,
    pub kind: Kind,
}

/// The kind of an instance's own table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// No table.
    Plain(u8),
    /// Blocked networks, with the largest number.
    Blocks(u32),
    /// Counts by network: the largest number of networks, and a code of the field and prefix lengths by which
    /// packets are counted.
    Networks(u32, u32),
    /// A supplied program, by the SHA-256 of its object.
    Supplied([u8; 32]),
}

impl Wanted {
    pub fn new(name: &str, module: &str, settings: &Settings) -> Self {
        if let Some(supplied) = Self::supplied(name, module) {
            return supplied;
        }
        let most = settings.iter().find_map(|(name, value)| match value {
            Value::Number(number) if *name == "prefixes_max" => Some(*number as u32),
            _ => None,
        });
        let kind = match (module, most) {
            ("block-list", Some(most)) => Kind::Blocks(most),
            ("counter", Some(most)) => {
                let destination = u32::from(settings.text("field") == "destination");
                let lengths = settings.number("length_v4") << 8 | settings.number("length_v6");
                Kind::Networks(most, destination << 16 | lengths as u32)
            }
            _ => Kind::Plain(module.bytes().fold(0, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte))),
        };
        Wanted { name: name.to_owned(), kind }
    }

    /// Returns the entry for an instance of a supplied module, whose name is 64 hex digits.
    pub fn supplied(name: &str, module: &str) -> Option<Self> {
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(module.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        is_supplied(module).then(|| Wanted { name: name.to_owned(), kind: Kind::Supplied(hash) })
    }

    /// Encodes the entry for the map: lengths, kind and name, and for a supplied program the SHA-256.
    pub fn encode(&self) -> [u8; NAME_LEN] {
        let mut bytes = [0; NAME_LEN];
        if let Kind::Supplied(hash) = &self.kind {
            bytes[80..].copy_from_slice(hash);
        }
        let (kind, a, b) = match self.kind {
            Kind::Plain(module) => (1u32, u32::from(module), 0),
            Kind::Blocks(most) => (2, most, 0),
            Kind::Networks(most, by) => (3, most, by),
            Kind::Supplied(_) => (4, 0, 0),
        };
        for (at, number) in [kind, a, b, self.name.len() as u32].into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        bytes[16..16 + self.name.len().min(64)]
            .copy_from_slice(&self.name.as_bytes()[..self.name.len().min(64)]);
        bytes
    }

    pub fn decode(bytes: &[u8; NAME_LEN]) -> Option<Self> {
        let number =
            |at: usize| bytes[4 * at..].first_chunk::<4>().map_or(0, |four| u32::from_ne_bytes(*four));
        let name = core::str::from_utf8(bytes.get(16..16 + number(3) as usize)?).ok()?;
        let kind = match number(0) {
            1 => Kind::Plain(number(1) as u8),
            2 => Kind::Blocks(number(1)),
            3 => Kind::Networks(number(1), number(2)),
            4 => Kind::Supplied(*bytes.last_chunk()?),
            _ => return None,
        };
        Some(Wanted { name: name.to_owned(), kind })
    }
}

/// The instance in each slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slots(pub(crate) Vec<Option<Wanted>>);

impl Default for Slots {
    fn default() -> Self {
        Slots(vec![None; INSTANCES_MAX])
    }
}

impl Slots {
    /// Assigns a slot to each instance: its present one, or a free one that was not in use before. Instances
    /// beyond [`INSTANCES_MAX`] get none.
    pub(crate) fn assign(&self, wanted: impl Iterator<Item = Wanted>) -> Slots {
        let (mut slots, mut new) = (Slots::default(), Vec::new());
        for wanted in wanted {
            match self.0.iter().position(|slot| slot.as_ref() == Some(&wanted)) {
                Some(at) => slots.0[at] = Some(wanted),
                None => new.push(wanted),
            }
        }
        // The slot of a removed instance is in use until the table is replaced. It is assigned only if no
        // other is left.
        let mut free: Vec<usize> = (0..INSTANCES_MAX).filter(|at| slots.0[*at].is_none()).collect();
        free.sort_by_key(|at| self.0[*at].is_some());
        for (wanted, at) in new.into_iter().zip(free) {
            slots.0[at] = Some(wanted);
        }
        slots
    }

    /// Returns whether an instance of this name has a slot.
    pub fn has(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    /// Returns the slot of the instance of this name.
    pub(crate) fn place(&self, name: &str) -> Option<u8> {
        let named = |slot: &Option<Wanted>| slot.as_ref().is_some_and(|wanted| wanted.name == name);
        self.0.iter().position(named).map(|at| at as u8)
    }
}

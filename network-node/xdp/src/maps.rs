//! The values of maps, as defined in `program/level1.h`.

use aya::Pod;
use csp_plugins::{OBJECT_NUMBERS_MAX, OBJECT_PARAMETERS_LEN_MAX};

use crate::PORTS_MAX;

/// Bytes of an instance's entry in the map of names.
pub(crate) const NAME_LEN: usize = 112;

/// Bytes of a block list's key after its prefix length.
pub(crate) type BlockData = [u8; 20];

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Port {
    pub ifindex: u32,
    pub mac: [u8; 6],
    /// The port's number, combined with [`HAS_SOCKETS`], [`NO_RULES`], [`TAKES_MATCHED`] and [`TAKES_ALL`].
    pub number: u16,
}

/// Flag of a port: the node's frames go to AF_XDP sockets.
pub(crate) const HAS_SOCKETS: u16 = 0x8000;
/// Flag of a port: level 1 has no rules.
pub(crate) const NO_RULES: u16 = 0x4000;
/// Flag of a port: the sockets also receive packets that rules of level 2 decide, and packets that are not
/// plain.
pub(crate) const TAKES_MATCHED: u16 = 0x2000;
/// Flag of a port, with [`TAKES_MATCHED`]: the sockets receive every IP packet.
pub(crate) const TAKES_ALL: u16 = 0x1000;

/// An address of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(C)]
pub(crate) struct AddressKey {
    /// 4 or 6.
    pub family: u32,
    pub address: [u8; 16],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Config {
    /// The time used instead of the kernel's; 0: the kernel's.
    pub now: u64,
    pub ports: [Port; PORTS_MAX],
    /// Index of the table in force.
    pub table: u32,
    pub unused: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Count {
    pub packets: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct State {
    pub processed: Count,
    pub dropped: u64,
    pub tokens: u64,
    pub filled: u64,
    pub first: Count,
    pub second: Count,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawTotals {
    pub seen: u64,
    pub unclassified: u64,
    pub unmatched: u64,
    pub level2: u64,
    pub passed: u64,
    pub dropped: u64,
    pub redirected: u64,
    pub broken: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Block {
    pub until: u64,
    pub packets: u64,
    pub length: u32,
    pub from: [u8; 44],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct NetworkKey {
    pub family: u64,
    pub high: u64,
    pub low: u64,
}

/// The parameters of a supplied program, as `include/csp_xdp.h` has them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawParameters {
    /// In the last element: the index of the element in force.
    pub length: u32,
    pub count: u32,
    pub numbers: [u64; OBJECT_NUMBERS_MAX],
    pub text: [u8; OBJECT_PARAMETERS_LEN_MAX],
}

impl Default for RawParameters {
    fn default() -> Self {
        RawParameters {
            length: 0,
            count: 0,
            numbers: [0; OBJECT_NUMBERS_MAX],
            text: [0; OBJECT_PARAMETERS_LEN_MAX],
        }
    }
}

/// The inner map of `tables`: one value, a table.
pub(crate) type TableValue = [u8; crate::layout::TABLE_LEN + crate::layout::TABLE_TAIL];

/// The entry of an instance.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Name(pub [u8; NAME_LEN]);

// SAFETY: these are C structures of integers and arrays of them, without padding: every bit pattern is a
// value.
unsafe impl Pod for Config {}
// SAFETY: as above.
unsafe impl Pod for Count {}
// SAFETY: as above.
unsafe impl Pod for State {}
// SAFETY: as above.
unsafe impl Pod for RawTotals {}
// SAFETY: as above.
unsafe impl Pod for Block {}
// SAFETY: as above.
unsafe impl Pod for NetworkKey {}
// SAFETY: as above.
unsafe impl Pod for Name {}
// SAFETY: as above.
unsafe impl Pod for AddressKey {}
// SAFETY: as above.
unsafe impl Pod for RawParameters {}

const _: () = assert!(size_of::<Port>() == 12 && size_of::<Config>() == 16 + 12 * PORTS_MAX);
const _: () = assert!(size_of::<RawParameters>() == 8 + 64 + 256);
const _: () = assert!(size_of::<State>() == 72 && size_of::<Block>() == 64 && size_of::<NetworkKey>() == 24);

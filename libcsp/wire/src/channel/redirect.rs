//! The reason of a refused CONNECT whose address belongs to another proxy worker.

use csp_types::{NodeId, Owner};

/// The argument of REFUSED that names the worker to connect through. Bit 31 distinguishes it from error
/// numbers.
///
/// ```text
///  31: 1 | 24..30: 0 | 16..23: worker | 0..15: NodeId::tag of its proxy
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redirect {
    tag: u16,
    worker: u8,
}

const MARK: u32 = 1 << 31;
const RESERVED: u32 = 0x7f << 24;

impl Redirect {
    /// Returns the reference to this worker.
    pub fn at(owner: &Owner) -> Self {
        Redirect { tag: owner.proxy.tag(), worker: owner.worker }
    }

    /// Returns whether it refers to this worker. Proxies with equal tags are not distinguished.
    pub fn names(self, proxy: &NodeId, worker: u8) -> bool {
        (self.tag, self.worker) == (proxy.tag(), worker)
    }

    /// Returns the argument.
    pub const fn to_argument(self) -> u32 {
        MARK | (self.worker as u32) << 16 | self.tag as u32
    }

    /// Parses the argument of REFUSED; `None` if it is another reason.
    pub const fn from_argument(argument: u32) -> Option<Self> {
        if argument & (MARK | RESERVED) != MARK {
            return None;
        }
        Some(Redirect { tag: argument as u16, worker: (argument >> 16) as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_a_worker_and_is_no_error_number() {
        let proxy: NodeId = "pn-7".parse().unwrap();
        let there = Redirect::at(&Owner { proxy, worker: 200 });
        assert_eq!(Redirect::from_argument(there.to_argument()), Some(there));
        assert!(there.names(&proxy, 200) && !there.names(&proxy, 201));
        assert!(!there.names(&"pn-8".parse().unwrap(), 200));
        for other in [0, 13, 111, u32::MAX, there.to_argument() & !MARK, there.to_argument() | 1 << 24] {
            assert_eq!(Redirect::from_argument(other), None, "{other:#x}");
        }
    }
}

//! The addresses that a member's listeners are bound to, and which listeners receive the connections to an
//! address. As in the kernel, the most specific ones do: bound to the address, else to all addresses of its
//! family, else to all of the other family (a dual-stack socket), else to any other address.

use std::net::IpAddr;

/// How specifically a listener's address matches that of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Closeness {
    /// Bound to another address.
    OtherAddress,
    /// Bound to all addresses of the other family; the socket may be a dual-stack one.
    OtherFamily,
    /// Bound to all addresses of the family.
    Family,
    /// Bound to this address.
    Exact,
}

impl Closeness {
    /// Returns how specifically a listener bound to `bound` matches connections to `local`.
    pub(super) fn of(bound: IpAddr, local: IpAddr) -> Closeness {
        match (bound.is_unspecified(), bound.is_ipv4() == local.is_ipv4()) {
            (true, true) => Closeness::Family,
            (true, false) => Closeness::OtherFamily,
            (false, _) if bound == local => Closeness::Exact,
            (false, _) => Closeness::OtherAddress,
        }
    }
}

/// The addresses that a member's listeners are bound to, each with their number.
#[derive(Clone, Debug, Default)]
pub(super) struct Bound(Vec<(IpAddr, usize)>);

impl Bound {
    /// Adds a listener bound to `address`.
    pub(super) fn add(&mut self, address: IpAddr) {
        match self.0.iter_mut().find(|(bound, _)| *bound == address) {
            Some((_, count)) => *count += 1,
            None => self.0.push((address, 1)),
        }
    }

    /// Removes a listener bound to `address`.
    pub(super) fn remove(&mut self, address: IpAddr) {
        if let Some((_, count)) = self.0.iter_mut().find(|(bound, _)| *bound == address) {
            *count -= 1;
        }
        self.0.retain(|(_, count)| *count > 0);
    }

    /// Returns how closely a listener must match to receive connections to `local`: as closely as the best of
    /// all listeners. `None` if all are bound to the same address.
    pub(super) fn wanted(&self, local: IpAddr) -> Option<Closeness> {
        let closeness = |(bound, _): &(IpAddr, usize)| Closeness::of(*bound, local);
        (self.0.len() > 1).then(|| self.0.iter().map(closeness).max()).flatten()
    }
}

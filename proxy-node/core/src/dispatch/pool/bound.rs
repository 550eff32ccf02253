//! Where the listeners of a member are bound, and which of them get the connections to an address. As in the kernel, that is the most
//! specific: bound to the address, then to all addresses of its family, then to all of the other family (a socket for both), then any.

use std::net::IpAddr;

/// How close the address that a listener is bound to is to that of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Closeness {
    /// Another address.
    Elsewhere,
    /// All addresses of the other family: it may be a socket for both.
    OtherFamily,
    /// All addresses of the family.
    Family,
    /// This address.
    Exact,
}

impl Closeness {
    /// Of a listener that is bound to `bound`, for connections to `local`.
    pub(super) fn of(bound: IpAddr, local: IpAddr) -> Closeness {
        match (bound.is_unspecified(), bound.is_ipv4() == local.is_ipv4()) {
            (true, true) => Closeness::Family,
            (true, false) => Closeness::OtherFamily,
            (false, _) if bound == local => Closeness::Exact,
            (false, _) => Closeness::Elsewhere,
        }
    }
}

/// The addresses that a member's listeners are bound to, each with how many there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Bound(Vec<(IpAddr, usize)>);

impl Bound {
    /// One more listener is bound there.
    pub(super) fn add(&mut self, address: IpAddr) {
        match self.0.iter_mut().find(|(bound, _)| *bound == address) {
            Some((_, count)) => *count += 1,
            None => self.0.push((address, 1)),
        }
    }

    /// One listener fewer is bound there.
    pub(super) fn remove(&mut self, address: IpAddr) {
        if let Some((_, count)) = self.0.iter_mut().find(|(bound, _)| *bound == address) {
            *count -= 1;
        }
        self.0.retain(|(_, count)| *count > 0);
    }

    /// How close a listener must be bound to `local` to get its connections: as close as any is. `None` where all are bound alike.
    pub(super) fn wanted(&self, local: IpAddr) -> Option<Closeness> {
        let closeness = |(bound, _): &(IpAddr, usize)| Closeness::of(*bound, local);
        (self.0.len() > 1).then(|| self.0.iter().map(closeness).max()).flatten()
    }
}

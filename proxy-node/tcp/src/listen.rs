//! The table of listening addresses.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::api::ListenError;
use crate::config::ConnectionOptions;

/// Parameters of connections to a listening address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    pub service: u32,
    pub options: ConnectionOptions,
    /// The backlog is full: as many of its connections as permitted wait for the application.
    pub backlog_full: bool,
}

/// Listeners in the order of their addresses.
#[derive(Debug)]
pub(crate) struct Listeners {
    sorted: Vec<(SocketAddr, Listener)>,
    capacity: usize,
}

impl Listeners {
    pub fn new(capacity: usize) -> Self {
        Listeners { sorted: Vec::with_capacity(capacity), capacity }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    fn find(&self, address: &SocketAddr) -> Result<usize, usize> {
        self.sorted.binary_search_by(|(listed, _)| listed.cmp(address))
    }

    /// Adds an address.
    ///
    /// # Errors
    /// The port is 0, the address is listed, or the table is full.
    pub fn insert(&mut self, address: SocketAddr, listener: Listener) -> Result<(), ListenError> {
        if address.port() == 0 {
            return Err(ListenError::BadAddress);
        }
        let Err(at) = self.find(&address) else { return Err(ListenError::InUse) };
        if self.sorted.len() >= self.capacity {
            return Err(ListenError::TableFull);
        }
        self.sorted.insert(at, (address, listener));
        Ok(())
    }

    /// Removes an address; `false` if it was not in the table.
    pub fn remove(&mut self, address: &SocketAddr) -> bool {
        self.find(address).map(|at| self.sorted.remove(at)).is_ok()
    }

    /// Sets whether the backlog of an address is full. Does nothing if the address is not in the table.
    pub fn set_backlog_full(&mut self, address: &SocketAddr, full: bool) {
        if let Ok(at) = self.find(address)
            && let Some((_, listener)) = self.sorted.get_mut(at)
        {
            listener.backlog_full = full;
        }
    }

    /// The listener on `address`, or else that on the unspecified address of its family.
    pub fn get(&self, address: &SocketAddr) -> Option<Listener> {
        let any = match address.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let exact = self.find(address).or_else(|_| self.find(&SocketAddr::new(any, address.port())));
        exact.ok().and_then(|at| self.sorted.get(at)).map(|&(_, listener)| listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StackConfig;

    #[test]
    fn an_exact_address_wins_over_the_unspecified_one() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let options = StackConfig::default().connection_options();
        let listener = |service| Listener { service, options, backlog_full: false };
        let mut listeners = Listeners::new(2);
        listeners.insert(address("0.0.0.0:80"), listener(1)).unwrap();
        listeners.insert(address("10.0.0.1:80"), listener(2)).unwrap();
        assert_eq!(listeners.insert(address("10.0.0.1:80"), listener(3)), Err(ListenError::InUse));
        assert_eq!(listeners.insert(address("10.0.0.1:81"), listener(3)), Err(ListenError::TableFull));
        assert_eq!(listeners.insert(address("10.0.0.1:0"), listener(3)), Err(ListenError::BadAddress));
        let check = |listeners: &Listeners, text, service| {
            assert_eq!(listeners.get(&address(text)).map(|l| l.service), service);
        };
        check(&listeners, "10.0.0.1:80", Some(2));
        check(&listeners, "10.0.0.2:80", Some(1));
        check(&listeners, "[fd00::1]:80", None);
        assert!(listeners.remove(&address("0.0.0.0:80")) && !listeners.remove(&address("0.0.0.0:80")));
        check(&listeners, "10.0.0.2:80", None);
    }
}

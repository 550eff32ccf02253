//! AF_XDP sockets, the frames that they receive, and whether frames are classified.

use std::net::IpAddr;
use std::os::fd::RawFd;

use super::{Driver, DriverError};
use crate::maps::{AddressKey, NO_RULES, TAKES_ALL, TAKES_MATCHED};
use crate::plan::Diverted;
use crate::{PORTS_MAX, QUEUES_MAX};

impl Driver {
    /// Sets whether level 1 classifies frames, which costs time for each frame and is off without rules.
    /// `diverted` selects the IP packets for addresses of others that the sockets receive, on ports with a
    /// path back to the kernel.
    pub fn classify(&mut self, classifies: bool, diverted: Diverted) -> Result<(), DriverError> {
        (self.classifies, self.diverted) = (classifies, diverted);
        for (at, port) in self.config_now.ports.iter_mut().enumerate() {
            let takes = match diverted {
                _ if self.reinjection_ports >> at & 1 == 0 => 0,
                Diverted::Nothing => 0,
                Diverted::Matched => TAKES_MATCHED,
                Diverted::All => TAKES_MATCHED | TAKES_ALL,
            };
            let rules = if classifies { 0 } else { NO_RULES };
            port.number = port.number & !(NO_RULES | TAKES_MATCHED | TAKES_ALL) | rules | takes;
        }
        Ok(self.config.set(0, self.config_now, 0)?)
    }

    /// Sets the ports whose workers can return frames to the kernel, one bit each.
    pub fn set_reinjection_ports(&mut self, ports: u32) -> Result<(), DriverError> {
        self.reinjection_ports = ports;
        self.classify(self.classifies, self.diverted)
    }

    /// Directs the frames of a port's receive queue to a socket that is bound to it. The entry ends with the
    /// socket; the kernel's stack then receives the frames. Queues and ports beyond [`QUEUES_MAX`] and
    /// [`PORTS_MAX`] stay with the kernel.
    pub fn set_socket(&mut self, port: usize, queue: u32, socket: RawFd) -> Result<(), DriverError> {
        if port >= PORTS_MAX || queue >= QUEUES_MAX {
            return Ok(());
        }
        Ok(self.sockets.set(port as u32 * QUEUES_MAX + queue, socket, 0)?)
    }

    /// Replaces the addresses whose frames go to sockets: VIPs, and source addresses of connections that
    /// applications open.
    ///
    /// # Errors
    /// There are more than the map holds, 32,768. The first ones are in force.
    pub fn set_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) -> Result<(), DriverError> {
        let mut wanted: Vec<AddressKey> = addresses.map(key_of).collect();
        wanted.sort_unstable();
        let known: Vec<AddressKey> = self.owned.keys().collect::<Result<_, _>>()?;
        for gone in known.iter().filter(|key| wanted.binary_search(key).is_err()) {
            self.owned.remove(gone)?;
        }
        for key in wanted {
            self.owned.insert(key, 0, 0)?;
        }
        Ok(())
    }
}

fn key_of(address: IpAddr) -> AddressKey {
    let mut key = AddressKey::default();
    match address {
        IpAddr::V4(address) => {
            key.family = 4;
            key.address[..4].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => (key.family, key.address) = (6, address.octets()),
    }
    key
}

//! A deterministic LAN in one process: ports on a hub, each with a bounded queue. For tests and the
//! simulation.
//!
//! The hub behaves like a wire, not like a virtual device: it performs checksum and segmentation offloads, so
//! that receivers get segments with complete checksums and detect corruption as a real peer would.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csp_types::MacAddr;
use csp_wire::offload::{Frame, TxOffload};

use crate::port::{
    LanPort, LanReceiver, LanTransmitter, PortInfo, RECEIVE_BATCH_MAX, ReceiveCounters, TransmitCounters,
    TransmitError,
};
use crate::{segment, steering};

struct Station {
    mac: MacAddr,
    /// Workers of one node share its frames: the index of their first port, and the number of their ports.
    group: (usize, usize),
    queue: VecDeque<Vec<u8>>,
    overrun: u64,
    /// MTU of a router behind which the station is, and the identification of the next packet that this
    /// router fragments.
    narrow: Option<(u16, u16)>,
}

struct State {
    stations: Vec<Station>,
    queue_capacity: usize,
}

impl State {
    /// Delivers `frame`, in fragments if its sender is behind a router with a small MTU.
    fn deliver(&mut self, from: usize, frame: &[u8]) {
        let Some((mtu, identification)) = self.stations.get_mut(from).and_then(|s| s.narrow.as_mut()) else {
            return self.deliver_one(from, frame);
        };
        let whole = frame.len() <= segment::ETHERNET_LEN + usize::from(*mtu);
        if whole || frame.get(12..14) != Some(&[0x08, 0x00]) {
            return self.deliver_one(from, frame);
        }
        *identification = identification.wrapping_add(1);
        for fragment in fragments(frame, *mtu, *identification) {
            self.deliver_one(from, &fragment);
        }
    }

    /// Queues `frame` at every station that it is addressed to, except its sender.
    fn deliver_one(&mut self, from: usize, frame: &[u8]) {
        let Some(destination) = frame.first_chunk::<6>().map(|m| MacAddr(*m)) else { return };
        for (at, station) in self.stations.iter_mut().enumerate() {
            let (first, workers) = station.group;
            let own = (first..first + workers).contains(&from);
            if own || !(destination.is_multicast() || destination == station.mac) {
                continue;
            }
            if at != first + steering::worker_of(frame, workers) && !steering::is_shared(frame) {
                continue;
            }
            if station.queue.len() == self.queue_capacity {
                station.overrun += 1;
            } else {
                station.queue.push_back(frame.to_vec());
            }
        }
    }
}

/// Fragments an IPv4 packet without options, as a router does that ignores DF (RFC 791 §3.2).
fn fragments(frame: &[u8], mtu: u16, identification: u16) -> Vec<Vec<u8>> {
    const HEADER_LEN: usize = 20;
    let Some((headers, payload)) = frame.split_at_checked(segment::ETHERNET_LEN + HEADER_LEN) else {
        return Vec::new();
    };
    let len = (usize::from(mtu).saturating_sub(HEADER_LEN) & !7).max(8);
    let count = payload.len().div_ceil(len);
    let fragment = |(at, part): (usize, &[u8])| {
        let mut bytes = headers.to_vec();
        let ip = &mut bytes[segment::ETHERNET_LEN..];
        ip[2..4].copy_from_slice(&((HEADER_LEN + part.len()) as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&identification.to_be_bytes());
        let more = u16::from(at + 1 < count) << 13;
        ip[6..8].copy_from_slice(&((at * len / 8) as u16 | more).to_be_bytes());
        ip[10..12].fill(0);
        let sum = csp_wire::checksum::checksum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend_from_slice(part);
        bytes
    };
    payload.chunks(len).enumerate().map(fragment).collect()
}

/// The hub that memory ports are attached to. Clones refer to the same hub.
#[derive(Clone)]
pub struct Hub {
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Creates a hub whose ports queue at most `queue_capacity` frames each.
    pub fn new(queue_capacity: usize) -> Self {
        Hub { state: Arc::new(Mutex::new(State { stations: Vec::new(), queue_capacity })) }
    }

    /// Creates a port on the hub.
    pub fn attach(&self, name: &str, mac: MacAddr, mtu: u16) -> LanPort {
        let first = lock(&self.state).stations.len();
        self.attach_at(first, 1, name, mac, mtu)
    }

    /// New ports of one node on the hub, one for each of its `workers`, which share the frames to `mac` out
    /// ([`steering`]).
    pub fn attach_workers(&self, workers: usize, name: &str, mac: MacAddr, mtu: u16) -> Vec<LanPort> {
        let first = lock(&self.state).stations.len();
        (0..workers).map(|_| self.attach_at(first, workers, name, mac, mtu)).collect()
    }

    fn attach_at(&self, first: usize, workers: usize, name: &str, mac: MacAddr, mtu: u16) -> LanPort {
        let mut state = lock(&self.state);
        let (queue, group) = (VecDeque::new(), (first, workers));
        state.stations.push(Station { mac, group, queue, overrun: 0, narrow: None });
        let at = state.stations.len() - 1;
        LanPort {
            info: PortInfo { name: name.to_owned(), mac, mtu },
            receiver: Box::new(Receiver { hub: self.clone(), at, counters: ReceiveCounters::default() }),
            transmitter: Box::new(Transmitter {
                hub: self.clone(),
                at,
                mtu,
                whole: Vec::new(),
                counters: TransmitCounters::default(),
            }),
        }
    }

    /// Puts a router with this MTU in front of the stations with an Ethernet address. It fragments their
    /// longer IPv4 packets even if DF is set.
    pub fn fragment(&self, mac: MacAddr, mtu: u16) {
        let mut state = lock(&self.state);
        state.stations.iter_mut().filter(|s| s.mac == mac).for_each(|s| s.narrow = Some((mtu, 0)));
    }

    /// Returns the number of queued frames on all ports together.
    pub fn waiting(&self) -> usize {
        lock(&self.state).stations.iter().map(|s| s.queue.len()).sum()
    }
}

/// Creates a hub with two ports.
pub fn pair(queue_capacity: usize, mtu: u16, macs: [MacAddr; 2]) -> (LanPort, LanPort) {
    let hub = Hub::new(queue_capacity);
    (hub.attach("mem0", macs[0], mtu), hub.attach("mem1", macs[1], mtu))
}

struct Receiver {
    hub: Hub,
    at: usize,
    counters: ReceiveCounters,
}

impl LanReceiver for Receiver {
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize {
        for taken in 0..RECEIVE_BATCH_MAX {
            // The lock is released before the callback, which may transmit on the same hub.
            let frame = lock(&self.hub.state).stations.get_mut(self.at).and_then(|s| s.queue.pop_front());
            let Some(frame) = frame else { return taken };
            self.counters.frames += 1;
            self.counters.bytes += frame.len() as u64;
            each(Frame::plain(&frame));
        }
        RECEIVE_BATCH_MAX
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        [None; 2]
    }

    fn counters(&mut self) -> ReceiveCounters {
        self.counters.overrun = lock(&self.hub.state).stations.get(self.at).map_or(0, |s| s.overrun);
        self.counters
    }
}

struct Transmitter {
    hub: Hub,
    at: usize,
    mtu: u16,
    whole: Vec<u8>,
    counters: TransmitCounters,
}

impl LanTransmitter for Transmitter {
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError> {
        self.whole.clear();
        parts.iter().for_each(|part| self.whole.extend_from_slice(part));
        let (at, limit) = (self.at, usize::from(self.mtu) + segment::ETHERNET_LEN);
        let mut state = lock(&self.hub.state);
        let mut too_long = false;
        let cut = segment::for_each_segment(&mut self.whole, offload, &mut |frame| {
            too_long |= frame.len() > limit;
            if frame.len() <= limit {
                state.deliver(at, frame);
            }
        });
        if cut.is_err() || too_long {
            self.counters.too_long += 1;
            return Err(TransmitError::TooLong);
        }
        self.counters.frames += 1;
        self.counters.bytes += self.whole.len() as u64;
        Ok(())
    }

    fn flush(&mut self) {}

    fn counters(&self) -> TransmitCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

    fn frame(to: MacAddr, tag: u8) -> Vec<u8> {
        let mut frame = to.0.to_vec();
        frame.extend_from_slice(&[0; 8]);
        frame.push(tag);
        frame
    }

    fn tags(port: &mut LanPort) -> Vec<u8> {
        let mut tags = Vec::new();
        port.receiver.receive(&mut |f| tags.push(f.bytes[14]));
        tags
    }

    #[test]
    fn frames_reach_the_addressed_stations_in_order() {
        let hub = Hub::new(4);
        let (mut a, mut b, mut c) =
            (hub.attach("a", A, 1500), hub.attach("b", B, 1500), hub.attach("c", C, 1500));
        for (to, tag) in [(B, 1), (MacAddr::BROADCAST, 2), (C, 3)] {
            a.transmitter.transmit(&[&frame(to, tag)], None).unwrap();
        }
        assert_eq!((tags(&mut a), tags(&mut b), tags(&mut c)), (vec![], vec![1, 2], vec![2, 3]));
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (mut a, mut b) = pair(2, 1500, [A, B]);
        for tag in 0..5 {
            a.transmitter.transmit(&[&frame(B, tag)], None).unwrap();
        }
        assert_eq!(tags(&mut b), [0, 1]);
        assert_eq!(b.receiver.counters().overrun, 3);
    }

    #[test]
    fn a_frame_beyond_the_mtu_is_refused() {
        let (mut a, mut b) = pair(2, 100, [A, B]);
        let mut long = frame(B, 0);
        long.resize(115, 0);
        assert_eq!(a.transmitter.transmit(&[&long], None), Err(TransmitError::TooLong));
        assert_eq!((tags(&mut b).len(), a.transmitter.counters().too_long), (0, 1));
    }
}

//! A wrapper of a LAN port that cuts it off, and counts the frames in which it claims an address.

use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csp_lan::{Frame, LanPort, LanReceiver, LanTransmitter};
use csp_lan::{ReceiveCounters, TransmitCounters, TransmitError, TxOffload};
use csp_wire::arp;
use csp_wire::ethernet::{self, EtherType};

#[derive(Default)]
struct State {
    cut: bool,
    claims: u64,
}

/// Controls the tapped ports of a network node.
#[derive(Clone, Default)]
pub(super) struct Tap(Arc<Mutex<State>>);

impl Tap {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the ports off (`true`): frames of both directions are lost.
    pub(super) fn cut(&self, cut: bool) {
        self.lock().cut = cut;
    }

    /// Returns the number of ARP packets since the last call that named `address` as their sender's.
    pub(super) fn take_claims(&self) -> u64 {
        std::mem::take(&mut self.lock().claims)
    }

    /// Taps a port. Frames whose sender claims `address` count.
    pub(super) fn wrap(&self, port: LanPort, address: Ipv4Addr) -> LanPort {
        let LanPort { info, receiver, transmitter } = port;
        let receiver = Box::new(Receiver { inner: receiver, tap: self.clone() });
        let transmitter = Box::new(Transmitter { inner: transmitter, tap: self.clone(), address });
        LanPort { info, receiver, transmitter }
    }
}

struct Receiver {
    inner: Box<dyn LanReceiver>,
    tap: Tap,
}

impl LanReceiver for Receiver {
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize {
        if !self.tap.lock().cut {
            return self.inner.receive(each);
        }
        while self.inner.receive(&mut |_| {}) > 0 {}
        0
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        self.inner.fds()
    }

    fn counters(&mut self) -> ReceiveCounters {
        self.inner.counters()
    }
}

struct Transmitter {
    inner: Box<dyn LanTransmitter>,
    tap: Tap,
    address: Ipv4Addr,
}

impl LanTransmitter for Transmitter {
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError> {
        let mut state = self.tap.lock();
        state.claims += u64::from(claimed(parts) == Some(self.address));
        if state.cut {
            return Ok(());
        }
        drop(state);
        self.inner.transmit(parts, offload)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn counters(&self) -> TransmitCounters {
        self.inner.counters()
    }
}

/// Returns the address that the sender of an ARP packet claims.
fn claimed(parts: &[&[u8]]) -> Option<Ipv4Addr> {
    let mut bytes = [0; ethernet::HEADER_LEN + arp::PACKET_LEN];
    for (byte, of_frame) in bytes.iter_mut().zip(parts.iter().copied().flatten()) {
        *byte = *of_frame;
    }
    let frame = ethernet::Frame::parse(&bytes).ok()?;
    if frame.ether_type() != Some(EtherType::Arp) {
        return None;
    }
    Some(arp::Repr::parse(&arp::Packet::parse(frame.payload()).ok()?).sender_ip)
}

//! The receiving half. Frames are lent in the shared memory, and their chunks are returned to the kernel
//! after each batch.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use csp_wire::checksum::Checksum as Sum;
use csp_wire::offload::{Checksum, Frame};

use super::check;
use super::handoff::{Destination, End};
use super::socket::{ReceiveRings, Socket};
use crate::af_packet::socket::Socket as RawSocket;
use crate::port::{LanReceiver, RECEIVE_BATCH_MAX, ReceiveCounters};
use crate::segment::ETHERNET_LEN;

/// Protocols whose checksum a device can complete: number, offset of the checksum, and length of the header.
const TCP: (u8, u16, usize) = (6, 16, 20);
const UDP: (u8, u16, usize) = (17, 6, 8);

/// A receive queue.
pub(super) struct Queue {
    socket: Arc<Socket>,
    rings: ReceiveRings,
}

impl Queue {
    pub(super) fn new(socket: Arc<Socket>, rings: ReceiveRings) -> Self {
        Queue { socket, rings }
    }

    /// Calls `each` for the frames that have arrived, at most a batch. Returns their number, and the number
    /// of invalid descriptors from the kernel.
    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> (usize, u64) {
        let (mut count, mut wrong) = (0, 0);
        while count < RECEIVE_BATCH_MAX {
            let Some(entry) = self.rings.filled.pop() else { break };
            count += 1;
            let Some((at, len, chunk)) = self.socket.umem.received(entry.addr, entry.len) else {
                wrong += 1;
                continue;
            };
            // SAFETY: `received` has checked the range, and the chunk came by the RX ring just now; it goes
            // to the fill ring below.
            each(unsafe { self.socket.umem.frame(at, len) });
            self.rings.free.push(chunk);
        }
        if count > 0 {
            self.rings.filled.release();
            self.rings.free.publish();
        }
        if self.rings.free.needs_wakeup() {
            self.socket.kick_receive();
        }
        (count, wrong)
    }
}

pub(super) struct Receiver {
    queues: Vec<Queue>,
    handoff: Option<End>,
    /// With several queues: a descriptor that is readable while one of them has frames.
    all: Option<OwnedFd>,
    /// Whether the interface is a veth, whose peer may leave checksums to it.
    may_be_partial: bool,
    /// Keeps the interface a member of all multicast groups.
    _membership: Arc<RawSocket>,
    counters: ReceiveCounters,
    /// Frames dropped because other workers had no room for them.
    not_handed: u64,
}

impl Receiver {
    pub(super) fn new(
        queues: Vec<Queue>,
        handoff: Option<End>,
        may_be_partial: bool,
        membership: Arc<RawSocket>,
    ) -> io::Result<Self> {
        let all = if queues.len() > 1 { Some(together(&queues)?) } else { None };
        Ok(Receiver {
            queues,
            handoff,
            all,
            may_be_partial,
            _membership: membership,
            counters: ReceiveCounters::default(),
            not_handed: 0,
        })
    }
}

/// Returns a descriptor that is readable while one of the queues has frames.
fn together(queues: &[Queue]) -> io::Result<OwnedFd> {
    // SAFETY: epoll_create1 takes no pointers; its result is checked.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let all = unsafe { OwnedFd::from_raw_fd(fd) };
    for queue in queues {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` is a local that outlives the call; both descriptors are open.
        check(unsafe {
            libc::epoll_ctl(all.as_raw_fd(), libc::EPOLL_CTL_ADD, queue.socket.fd(), &raw mut event)
        })?;
    }
    Ok(all)
}

/// Counts a frame and lends it to `each`.
fn lend(counters: &mut ReceiveCounters, may_be_partial: bool, bytes: &[u8], each: &mut dyn FnMut(Frame<'_>)) {
    counters.frames += 1;
    counters.bytes += bytes.len() as u64;
    let partial = if may_be_partial { partial(bytes) } else { None };
    each(Frame { bytes, checksum: partial.unwrap_or(Checksum::Unchecked), gso: None });
}

impl LanReceiver for Receiver {
    fn receive(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> usize {
        let Receiver { queues, handoff, counters, not_handed, may_be_partial, .. } = self;
        let mut total = 0;
        for queue in queues {
            let (count, wrong) = queue.receive(&mut |bytes| {
                let place =
                    handoff.as_mut().map_or(Destination::Own, |handoff| handoff.place(bytes, not_handed));
                if place == Destination::Own {
                    lend(counters, *may_be_partial, bytes, each);
                }
            });
            total += count;
            counters.errors += wrong;
        }
        let Some(handoff) = handoff else { return total };
        handoff.wake_others();
        total + handoff.receive(total, &mut |bytes| lend(counters, *may_be_partial, bytes, each))
    }

    fn fds(&self) -> [Option<RawFd>; 2] {
        let queue = self.queues.first().map(|queue| queue.socket.fd());
        let all = self.all.as_ref().map(AsRawFd::as_raw_fd);
        [all.or(queue), self.handoff.as_ref().map(End::fd)]
    }

    fn counters(&mut self) -> ReceiveCounters {
        let dropped: u64 = self.queues.iter().map(|queue| queue.socket.dropped()).sum();
        ReceiveCounters { overrun: dropped + self.not_handed, ..self.counters }
    }
}

/// Recognises a TCP segment or UDP datagram whose sender has left the checksum to the device: the field holds
/// the sum of the pseudo header (RFC 9293 §3.1, RFC 768, RFC 8200 §8.1). A veth passes such frames on
/// unchanged, and AF_XDP does not mark them. One in 65,536 wrong checksums equals that sum, just as one
/// equals the correct checksum; on a veth there is no wire that corrupts bytes.
fn partial(frame: &[u8]) -> Option<Checksum> {
    let packet = frame.get(ETHERNET_LEN..)?;
    let half = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    let of = |protocol: u8| [TCP, UDP].into_iter().find(|known| known.0 == protocol);
    let (addresses, ip_len, len, (protocol, checksum_at, header_len)) = match frame[12..14] {
        [0x08, 0x00] => {
            let ip_len = usize::from(packet.first()? & 0x0f) * 4;
            let is_first = half(6)? & 0x3fff == 0;
            let len = usize::from(half(2)?).checked_sub(ip_len)?;
            (packet.get(12..20).filter(|_| is_first)?, ip_len, len, of(packet[9])?)
        }
        [0x86, 0xdd] => (packet.get(8..40)?, 40, usize::from(half(4)?), of(packet[6])?),
        _ => return None,
    };
    let field = half(ip_len + usize::from(checksum_at)).filter(|_| packet.len() >= ip_len + header_len)?;
    let mut sum = Sum::new();
    sum.add(addresses);
    sum.add_u16(protocol.into());
    sum.add_u16(len as u16);
    (sum.partial() == field)
        .then_some(Checksum::Partial { start: (ETHERNET_LEN + ip_len) as u16, offset: checksum_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_left_to_the_device_is_recognised_and_others_are_not() {
        let mut frame = vec![0; 14 + 20 + 20 + 5];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[16..18].copy_from_slice(&45u16.to_be_bytes());
        frame[23] = TCP.0;
        frame[26..34].copy_from_slice(&[10, 9, 9, 1, 10, 9, 9, 2]);
        let sum = 0x0a09 + 0x0901 + 0x0a09 + 0x0902 + 6 + 25;
        frame[50..52].copy_from_slice(&(sum as u16).to_be_bytes());
        assert_eq!(partial(&frame), Some(Checksum::Partial { start: 34, offset: 16 }));
        for (at, what) in
            [(51, "another sum"), (23, "another protocol"), (20, "a fragment"), (12, "no IP"), (15, "")]
        {
            let mut other = frame.clone();
            other[at] ^= 0x21;
            assert_eq!(partial(&other).is_some(), what.is_empty(), "{what}");
        }
        for len in 0..54 {
            assert_eq!(partial(&frame[..len]), None, "{len} bytes");
        }
        (frame[23], frame[50], frame[51]) = (UDP.0, 0, 0);
        frame[40..42].copy_from_slice(&(sum as u16 + 11).to_be_bytes());
        assert_eq!(partial(&frame), Some(Checksum::Partial { start: 34, offset: 6 }));
        frame[41] ^= 1;
        assert_eq!(partial(&frame), None, "a complete checksum");
    }
}

//! Opens AF_XDP sockets and queries their interface (linux/if_xdp.h).

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::ring::{Consumer, Producer};
use super::umem::{RECEIVE_CHUNKS, TRANSMIT_CHUNKS, Umem};
use super::{CHUNK_LEN, QUEUES_MAX, check};
use crate::af_packet::OpenError;
use crate::ethtool::Ethtool;

/// Largest number of bytes in transmission that the kernel allows a socket in copy mode.
const SEND_BUFFER_LEN: libc::c_int = 16 << 20;

/// An interface.
pub(super) struct Link {
    name: String,
    index: u32,
    /// Number of receive queues.
    pub(super) queues: usize,
    /// Whether it is a veth, whose peer on this host may leave checksums to it.
    pub(super) is_veth: bool,
}

impl Link {
    pub(super) fn of(name: &str) -> Result<Self, OpenError> {
        let no_interface = || OpenError::NoInterface(name.to_owned());
        let text = std::ffi::CString::new(name).map_err(|_| no_interface())?;
        // SAFETY: the name ends with a zero and lives until the call returns.
        let index = unsafe { libc::if_nametoindex(text.as_ptr()) };
        let mut link = Link { name: name.to_owned(), index, queues: 1, is_veth: false };
        if index == 0 {
            return Err(no_interface());
        }
        let driver = Ethtool::of(name).map_err(link.failed("socket"))?;
        // A driver that does not report its queues has one.
        link.queues = driver.receive_queues().map_or(1, |queues| queues.clamp(1, QUEUES_MAX));
        link.is_veth = driver.is_veth();
        Ok(link)
    }

    /// Returns the error of a failed call on the interface.
    pub(super) fn failed(&self, call: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        let interface = self.name.clone();
        move |source| OpenError::System { call, interface, source }
    }
}

/// A socket with its memory, shared by both halves of a port.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    pub(super) umem: Umem,
}

/// The rings of the receiving half.
#[derive(Debug)]
pub(super) struct ReceiveRings {
    pub(super) filled: Consumer<libc::xdp_desc>,
    pub(super) free: Producer<u64>,
}

/// The rings of the transmitting half.
#[derive(Debug)]
pub(super) struct TransmitRings {
    pub(super) waiting: Producer<libc::xdp_desc>,
    pub(super) done: Consumer<u64>,
}

impl Socket {
    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is a reference to `len` readable bytes, which the kernel only reads, during the
        // call.
        check(unsafe { libc::setsockopt(self.fd(), level, option, std::ptr::from_ref(value).cast(), len) })
            .map(drop)
    }

    /// Reads an option of at most the size of `value`, for which all bit patterns are valid.
    fn query<T: Copy>(&self, option: libc::c_int, mut value: T) -> io::Result<T> {
        let mut len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is a local of `len` writable bytes, a C structure of integers; both outlive the
        // call.
        let done = unsafe {
            libc::getsockopt(self.fd(), libc::SOL_XDP, option, (&raw mut value).cast(), &raw mut len)
        };
        check(done).map(|_| value)
    }

    pub(super) fn is_zero_copy(&self) -> io::Result<bool> {
        let options = self.query(libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Returns the number of frames that the kernel has dropped since the socket was opened, because the ring
    /// was full, no chunk was free, or a frame exceeded a chunk. In copy mode the kernel counts the last two
    /// together. With zero-copy its count of an empty fill ring is no loss, since the driver has chunks of
    /// its own.
    pub(super) fn dropped(&self) -> u64 {
        // SAFETY: all-zero bytes are valid: integers.
        let zero: libc::xdp_statistics = unsafe { mem::zeroed() };
        let statistics = self.query(libc::XDP_STATISTICS, zero);
        statistics.map_or(0, |statistics| statistics.rx_ring_full + statistics.rx_dropped)
    }

    /// Makes the kernel process the TX ring.
    pub(super) fn kick_transmit(&self) -> io::Result<()> {
        // SAFETY: without a buffer the call takes no pointers.
        let sent =
            unsafe { libc::sendto(self.fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes the kernel process the fill ring.
    pub(super) fn kick_receive(&self) {
        // SAFETY: without a buffer the call takes no pointers.
        let _ = unsafe {
            libc::recvfrom(
                self.fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
    }
}

/// Opens a socket on a receive queue of an interface, with rings and memory. All receive chunks are given to
/// the kernel.
pub(super) fn open(link: &Link, queue: u32) -> Result<(Socket, ReceiveRings, TransmitRings), OpenError> {
    // SAFETY: socket takes no pointers; its result is checked.
    let fd = check(unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) });
    let fd = fd.map_err(link.failed("socket(AF_XDP)"))?;
    let umem = Umem::new().map_err(link.failed("mmap"))?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let socket = Socket { fd: unsafe { OwnedFd::from_raw_fd(fd) }, umem };
    register(&socket, link)?;
    // SAFETY: all-zero bytes are valid: integers.
    let zero: libc::xdp_mmap_offsets = unsafe { mem::zeroed() };
    let offsets = socket.query(libc::XDP_MMAP_OFFSETS, zero).map_err(link.failed("XDP_MMAP_OFFSETS"))?;
    let (fd, received, sent) = (socket.fd(), RECEIVE_CHUNKS as u32, TRANSMIT_CHUNKS as u32);
    let failed = |error| link.failed("mmap of a ring")(error);
    let (fill_at, done_at) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
    let mut receiving = ReceiveRings {
        filled: Consumer::map(fd, libc::XDP_PGOFF_RX_RING, offsets.rx, received).map_err(failed)?,
        free: Producer::map(fd, fill_at as libc::off_t, offsets.fr, received).map_err(failed)?,
    };
    let transmitting = TransmitRings {
        waiting: Producer::map(fd, libc::XDP_PGOFF_TX_RING, offsets.tx, sent).map_err(failed)?,
        done: Consumer::map(fd, done_at as libc::off_t, offsets.cr, sent).map_err(failed)?,
    };
    for chunk in 0..RECEIVE_CHUNKS {
        receiving.free.push((chunk * CHUNK_LEN) as u64);
    }
    receiving.free.publish();
    bind(&socket, link, queue)?;
    Ok((socket, receiving, transmitting))
}

/// Registers the memory and the lengths of the rings with the kernel.
fn register(socket: &Socket, link: &Link) -> Result<(), OpenError> {
    let memory = libc::xdp_umem_reg {
        addr: socket.umem.at().as_ptr() as u64,
        len: socket.umem.len() as u64,
        chunk_size: CHUNK_LEN as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let set = socket.set(libc::SOL_XDP, libc::XDP_UMEM_REG, &memory);
    set.map_err(link.failed("XDP_UMEM_REG (locked memory: LimitMEMLOCK, CAP_IPC_LOCK)"))?;
    for (option, len, name) in [
        (libc::XDP_UMEM_FILL_RING, RECEIVE_CHUNKS, "XDP_UMEM_FILL_RING"),
        (libc::XDP_UMEM_COMPLETION_RING, TRANSMIT_CHUNKS, "XDP_UMEM_COMPLETION_RING"),
        (libc::XDP_RX_RING, RECEIVE_CHUNKS, "XDP_RX_RING"),
        (libc::XDP_TX_RING, TRANSMIT_CHUNKS, "XDP_TX_RING"),
    ] {
        socket.set(libc::SOL_XDP, option, &(len as u32)).map_err(link.failed(name))?;
    }
    // In copy mode the kernel accounts for frames in transmission. Without CAP_NET_ADMIN the system's limit
    // applies.
    let _ = socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_LEN);
    Ok(())
}

/// Binds to a queue: zero-copy if the driver supports it, else in copy mode.
fn bind(socket: &Socket, link: &Link, queue: u32) -> Result<(), OpenError> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: link.index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = mem::size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: `address` is a local of `len` readable bytes that outlives the call.
    check(unsafe { libc::bind(socket.fd(), (&raw const address).cast(), len) })
        .map(drop)
        .map_err(link.failed("bind (is another AF_XDP socket on this queue?)"))
}

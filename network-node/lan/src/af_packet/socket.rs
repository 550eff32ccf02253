//! Opening and querying the raw socket.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use csp_types::MacAddr;

use super::{AfPacketConfig, Fanout, OpenError};
use crate::port::PortInfo;
use crate::steering::program;

/// Constants of packet(7) and ARP that the libc crate does not define on every target.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_FANOUT_DATA: libc::c_int = 22;
const PACKET_FANOUT_CBPF: libc::c_int = 6;
const ARPHRD_ETHER: u16 = 1;

/// A bound raw socket.
pub(crate) struct Socket {
    fd: OwnedFd,
}

impl Socket {
    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns the number of frames dropped since the last call because the receive queue was full. (The
    /// kernel resets the count on reading.)
    pub(super) fn overruns(&self) -> u64 {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = mem::size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: `statistics` is a local of `len` writable bytes and `len` a local socklen_t; both outlive
        // the call.
        let done = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut len,
            )
        };
        if done == 0 { u64::from(statistics.tp_drops) } else { 0 }
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: `value` is a reference to `size_of::<T>()` readable bytes, which the kernel only reads,
        // during the call.
        let done = unsafe {
            libc::setsockopt(
                self.fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                mem::size_of::<T>() as libc::socklen_t,
            )
        };
        check(done).map(drop)
    }

    /// Sets an option whose value is a classic BPF program.
    fn set_program(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        program: &mut [libc::sock_filter],
    ) -> io::Result<()> {
        // The kernel copies the program during the call, and only reads it.
        let value = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        self.set(level, option, &value)
    }

    fn interface_request(&self, name: &[u8; libc::IFNAMSIZ], what: libc::Ioctl) -> io::Result<libc::ifreq> {
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = *from as libc::c_char;
        }
        // SAFETY: `request` is a local that outlives the call, and the requests used here read and write one
        // ifreq.
        check(unsafe { libc::ioctl(self.fd(), what, &raw mut request) })?;
        Ok(request)
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the error of a failed `call` on the port's interface.
fn failed(config: &AfPacketConfig, call: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    let interface = config.interface.clone();
    move |source| OpenError::System { call, interface, source }
}

/// Creates a socket with the virtio-net header. It receives nothing until it is bound, so no frame of another
/// interface gets in.
fn create(config: &AfPacketConfig) -> Result<Socket, OpenError> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers; its result is checked.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) }).map_err(failed(config, "socket"))?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let socket = Socket { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
    socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32).map_err(failed(config, "PACKET_VNET_HDR"))?;
    let ignored = socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32);
    ignored.map_err(failed(config, "PACKET_IGNORE_OUTGOING"))?;
    Ok(socket)
}

/// Opens the socket, queries the interface and binds.
pub(super) fn open(config: &AfPacketConfig) -> Result<(Socket, PortInfo), OpenError> {
    let failed = |call| failed(config, call);
    let socket = create(config)?;
    let name = interface_name(&config.interface)?;
    let index = index_of(&socket, &name, config)?;
    let info = describe(&socket, &name, config)?;

    set_buffers(&socket, config)?;
    let set = socket.set_program(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &mut program::untagged());
    set.map_err(failed("SO_ATTACH_FILTER"))?;
    bind(&socket, index, libc::ETH_P_ALL as u16).map_err(failed("bind"))?;
    join_multicast(&socket, index).map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
    if let Some(Fanout { group, .. }) = config.fanout {
        let value = i32::from(group) | PACKET_FANOUT_CBPF << 16;
        socket.set(libc::SOL_PACKET, libc::PACKET_FANOUT, &value).map_err(failed("PACKET_FANOUT"))?;
        let set = socket.set_program(libc::SOL_PACKET, PACKET_FANOUT_DATA, &mut program::worker());
        set.map_err(failed("PACKET_FANOUT_DATA"))?;
    }
    Ok((socket, info))
}

fn set_buffers(socket: &Socket, config: &AfPacketConfig) -> Result<(), OpenError> {
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        let len = config.socket_buffer_len.min(i32::MAX as u32 / 2) as i32;
        // The FORCE options need CAP_NET_ADMIN; without it the system's limit applies.
        if socket.set(libc::SOL_SOCKET, forced, &len).is_err() {
            let set = socket.set(libc::SOL_SOCKET, plain, &len);
            set.map_err(failed(config, "SO_RCVBUF or SO_SNDBUF"))?;
        }
    }
    Ok(())
}

/// Opens a socket that receives no frames, but is a member of all multicast groups and can transmit.
pub(super) fn open_silent(config: &AfPacketConfig) -> Result<(Socket, PortInfo), OpenError> {
    let socket = create(config)?;
    let name = interface_name(&config.interface)?;
    let index = index_of(&socket, &name, config)?;
    let info = describe(&socket, &name, config)?;
    set_buffers(&socket, config)?;
    bind(&socket, index, 0).map_err(failed(config, "bind"))?;
    join_multicast(&socket, index).map_err(failed(config, "PACKET_ADD_MEMBERSHIP"))?;
    Ok((socket, info))
}

/// Opens the socket for frames that every worker of the fanout group receives. Worker 0 needs none: the
/// group's program delivers these frames to it.
pub(super) fn open_shared(config: &AfPacketConfig) -> Result<Option<Socket>, OpenError> {
    if config.fanout.is_none_or(|fanout| fanout.worker == 0) {
        return Ok(None);
    }
    let socket = create(config)?;
    let index = index_of(&socket, &interface_name(&config.interface)?, config)?;
    let set = socket.set_program(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &mut program::shared());
    set.map_err(failed(config, "SO_ATTACH_FILTER"))?;
    bind(&socket, index, libc::ETH_P_ALL as u16).map_err(failed(config, "bind"))?;
    Ok(Some(socket))
}

fn interface_name(name: &str) -> Result<[u8; libc::IFNAMSIZ], OpenError> {
    let mut bytes = [0; libc::IFNAMSIZ];
    // One byte is needed for the terminating zero.
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains('\0') {
        return Err(OpenError::NoInterface(name.to_owned()));
    }
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    Ok(bytes)
}

fn index_of(socket: &Socket, name: &[u8; libc::IFNAMSIZ], config: &AfPacketConfig) -> Result<i32, OpenError> {
    let request = socket
        .interface_request(name, libc::SIOCGIFINDEX)
        .map_err(|_| OpenError::NoInterface(config.interface.clone()))?;
    // SAFETY: SIOCGIFINDEX has written this field of the union; any bytes are a valid integer.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

fn describe(
    socket: &Socket,
    name: &[u8; libc::IFNAMSIZ],
    config: &AfPacketConfig,
) -> Result<PortInfo, OpenError> {
    let failed = |call| failed(config, call);
    let request = socket.interface_request(name, libc::SIOCGIFHWADDR).map_err(failed("SIOCGIFHWADDR"))?;
    // SAFETY: SIOCGIFHWADDR has written this field of the union; any bytes are a valid sockaddr.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    if address.sa_family != ARPHRD_ETHER {
        return Err(OpenError::NotEthernet(config.interface.clone()));
    }
    let mut mac = MacAddr::default();
    for (to, from) in mac.0.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    let request = socket.interface_request(name, libc::SIOCGIFMTU).map_err(failed("SIOCGIFMTU"))?;
    // SAFETY: SIOCGIFMTU has written this field of the union; any bytes are a valid integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(PortInfo { name: config.interface.clone(), mac, mtu: u16::try_from(mtu).unwrap_or(u16::MAX) })
}

fn bind(socket: &Socket, index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let len = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a local of `len` readable bytes that outlives the call.
    check(unsafe { libc::bind(socket.fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Joins all multicast groups: neighbour solicitations are sent to a group derived from each IPv6 service
/// address (RFC 4291 §2.7.1).
fn join_multicast(socket: &Socket, index: i32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_ALLMULTI as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    socket.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

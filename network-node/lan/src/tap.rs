//! The way back to the kernel: a TAP device. What is written to it, the kernel receives as a frame of a
//! port's interface.
//!
//! ```text
//!   AF_XDP port ─▶ worker ─▶ plug-ins ─▶ write ─▶ TAP device ─▶ traffic control (redirect) ─▶ the port's interface ─▶ the host's stack
//! ```
//! The kernel's stack sees the port as the interface that has received the frame, so that addresses of the
//! link, firewall rules, bridges and reverse-path filters hold as for a frame that never left it. An XDP
//! program at the port does not see the frame again: one in the driver is before this place, and a generic
//! one passes over what was redirected.
//!
//! The device is named after the port's interface and ends with its last descriptor. It has no address and
//! takes no part in routing: its MTU is below what IPv6 needs, so that the kernel puts no IPv6 on it, and it
//! does not answer ARP. The MTU does not bound what is written.

mod redirect;

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use csp_wire::offload::TxOffload;

use crate::af_packet::{OpenError, vnet};
use crate::port::{FRAME_PARTS_MAX, LanTransmitter, TransmitCounters, TransmitError};

const DEVICE: &str = "/dev/net/tun";
/// Longest name of an interface (IFNAMSIZ without its terminating zero).
const NAME_LEN_MAX: usize = 15;
/// Below the minimum MTU of IPv6, 1,280 (RFC 8200 §5), and not below that of IPv4, 68.
const MTU: libc::c_int = 576;
/// Longest frame: Ethernet and the largest IP packet.
const FRAME_LEN_MAX: usize = 14 + 65_535;

/// An open device.
#[derive(Debug)]
pub struct Tap {
    name: String,
    device: Arc<File>,
}

/// Returns the device name for an interface: `csp-` with the interface's name if that fits, else with its
/// number.
fn name_of(interface: &str, index: u32) -> String {
    let name = format!("csp-{interface}");
    if name.len() <= NAME_LEN_MAX { name } else { format!("csp-{index}") }
}

impl Tap {
    /// Creates the device of an interface, in the calling thread's network namespace. Requires /dev/net/tun
    /// and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The device file is missing or not permitted, an interface with the device's name exists, the kernel
    /// lacks traffic control with `cls_bpf` and `act_mirred`, or a system call failed.
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        let port = index_of(interface)?;
        let name = name_of(interface, port);
        let failed = |call| {
            let interface = name.clone();
            move |source| OpenError::System { call, interface, source }
        };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let device = options.open(DEVICE).map_err(failed("open /dev/net/tun"))?;
        let mut request = request(&name)?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq; `request` is a local that outlives the call.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        check(made).map_err(failed("TUNSETIFF"))?;
        ask(&name, libc::SIOCSIFMTU, |request| request.ifr_ifru.ifru_mtu = MTU)?;
        // The kernel compares the destination with the device's own Ethernet address to decide whether a
        // frame is for the host.
        let of_port = ask(interface, libc::SIOCGIFHWADDR, |_| {})?;
        ask(&name, libc::SIOCSIFHWADDR, |request| request.ifr_ifru = of_port.ifr_ifru)?;
        redirect::redirect(index_of(&name)?, port).map_err(failed("redirection (cls_bpf, act_mirred)"))?;
        let flags = (libc::IFF_UP | libc::IFF_NOARP) as libc::c_short;
        ask(&name, libc::SIOCSIFFLAGS, |request| request.ifr_ifru.ifru_flags = flags)?;
        Ok(Tap { name, device: Arc::new(device) })
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a transmitter that writes each frame to the device at once. Several threads may each have one.
    /// A write returns when the kernel has processed the frame.
    pub fn transmitter(&self) -> Box<dyn LanTransmitter> {
        Box::new(Transmitter { device: Arc::clone(&self.device), counters: TransmitCounters::default() })
    }
}

fn index_of(interface: &str) -> Result<u32, OpenError> {
    let no_interface = || OpenError::NoInterface(interface.to_owned());
    let name = std::ffi::CString::new(interface).map_err(|_| no_interface())?;
    // SAFETY: the name ends with a zero and lives until the call returns.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(no_interface()),
        index => Ok(index),
    }
}

/// Returns a request about an interface.
fn request(name: &str) -> Result<libc::ifreq, OpenError> {
    if name.len() > NAME_LEN_MAX {
        return Err(OpenError::NoInterface(name.to_owned()));
    }
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Sets or reads a property of an interface.
fn ask(name: &str, what: libc::Ioctl, fill: impl FnOnce(&mut libc::ifreq)) -> Result<libc::ifreq, OpenError> {
    let failed = |source| OpenError::System { call: "ioctl", interface: name.to_owned(), source };
    // SAFETY: socket takes no pointers; its result is checked.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) });
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd.map_err(failed)?) };
    let mut request = request(name)?;
    fill(&mut request);
    // SAFETY: the requests used here read or write one ifreq; `request` is a local that outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) }).map_err(failed)?;
    Ok(request)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

struct Transmitter {
    device: Arc<File>,
    counters: TransmitCounters,
}

impl LanTransmitter for Transmitter {
    fn transmit(&mut self, parts: &[&[u8]], offload: Option<TxOffload>) -> Result<(), TransmitError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > FRAME_LEN_MAX || parts.len() > FRAME_PARTS_MAX {
            self.counters.too_long += 1;
            return Err(TransmitError::TooLong);
        }
        let header = vnet::emit(offload);
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut vectors = [empty; FRAME_PARTS_MAX + 1];
        let all = std::iter::once(&header[..]).chain(parts.iter().copied());
        for (vector, part) in vectors.iter_mut().zip(all) {
            *vector = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        let count = parts.len() as libc::c_int + 1;
        // SAFETY: the first `count` elements of `vectors` were set above (`parts` has at most
        // FRAME_PARTS_MAX), each to a slice that outlives the call; the kernel only reads them.
        let written = unsafe { libc::writev(self.device.as_raw_fd(), vectors.as_ptr(), count) };
        if written < 0 {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            return Err(match errno {
                libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => {
                    self.counters.full += 1;
                    TransmitError::Full
                }
                _ => {
                    self.counters.errors += 1;
                    TransmitError::Device(errno)
                }
            });
        }
        self.counters.frames += 1;
        self.counters.bytes += len as u64;
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

    #[test]
    fn names_fit() {
        assert_eq!(name_of("lan0", 3), "csp-lan0");
        assert_eq!(name_of("enp130s0f0", 3), "csp-enp130s0f0");
        assert_eq!(name_of("enp130s0f0np0", 1_000_003), "csp-1000003");
    }
}

//! Queries and settings of an interface's driver (linux/ethtool.h).

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const GDRVINFO: u32 = 0x03;
const GLINK: u32 = 0x0a;
const GFLAGS: u32 = 0x25;
const SFLAGS: u32 = 0x26;
const GCHANNELS: u32 = 0x3c;
/// ETH_FLAG_RXVLAN: the device removes VLAN tags from received frames.
const TAKES_TAGS: u32 = 1 << 8;

/// An interface, by name.
pub(crate) struct Ethtool {
    socket: OwnedFd,
    name: CString,
}

impl Ethtool {
    /// # Errors
    /// The name is invalid, or no socket could be opened.
    pub(crate) fn of(name: &str) -> io::Result<Self> {
        let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: socket takes no pointers; its result is checked.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Ethtool { socket: unsafe { OwnedFd::from_raw_fd(fd) }, name })
    }

    /// Returns the number of receive queues; `None` if the driver does not report it.
    pub(crate) fn receive_queues(&self) -> Option<usize> {
        // struct ethtool_channels: command, four maxima, then received, transmitted, other and combined ones.
        let mut channels = [GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        self.ask(&mut channels).ok()?;
        Some((channels[5] + channels[8]) as usize)
    }

    /// Returns whether the driver is veth.
    pub(crate) fn is_veth(&self) -> bool {
        // struct ethtool_drvinfo: command, name, and 160 bytes of other texts and numbers.
        let mut driver = [0u32; 49];
        driver[0] = GDRVINFO;
        self.ask(&mut driver).is_ok() && driver[1..3] == [u32::from_ne_bytes(*b"veth"), 0]
    }

    /// Returns whether the interface is up and has a carrier.
    fn has_link(&self) -> io::Result<bool> {
        let mut link = [GLINK, 0];
        self.ask(&mut link)?;
        Ok(link[1] != 0)
    }

    /// Makes the device leave VLAN tags in received frames. Returns whether this changed the setting.
    fn leave_tags(&self) -> io::Result<bool> {
        let mut flags = [GFLAGS, 0];
        self.ask(&mut flags)?;
        let takes = flags[1] & TAKES_TAGS != 0;
        if takes {
            self.ask(&mut [SFLAGS, flags[1] & !TAKES_TAGS])?;
        }
        Ok(takes)
    }

    fn ask<const N: usize>(&self, question: &mut [u32; N]) -> io::Result<()> {
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.as_bytes()).take(libc::IFNAMSIZ - 1) {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = question.as_mut_ptr().cast();
        // SAFETY: `request` and `question` outlive the call; the kernel reads the command and reads or writes
        // the structure that belongs to it, whose length `question` has.
        let done = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns whether an interface is up and has a carrier.
///
/// # Errors
/// There is no such interface, or its driver does not say.
pub fn has_link(interface: &str) -> io::Result<bool> {
    Ethtool::of(interface)?.has_link()
}

/// Makes a device leave VLAN tags in received frames. A program in the driver does not see tags that the
/// device has removed, and would treat frames of VLANs as the interface's own. Returns whether this changed
/// the setting.
///
/// # Errors
/// The driver does not allow it.
pub fn leave_vlan_tags(interface: &str) -> io::Result<bool> {
    Ethtool::of(interface)?.leave_tags()
}

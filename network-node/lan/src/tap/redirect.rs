//! Has the kernel's traffic control redirect what an interface receives to the ingress of another one, by
//! rtnetlink(7) and tc-mirred(8):
//!
//! ```text
//!   tc qdisc add dev TAP clsact
//!   tc filter add dev TAP ingress bpf bytecode '1,6 0 0 4294967295' action mirred ingress redirect dev PORT
//! ```
//! The action marks the frame as redirected, so that a generic XDP program at the other interface passes over
//! it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::check;

/// linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h, linux/tc_act/tc_mirred.h.
const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_ACT: u16 = 1;
const TCA_BPF_OPS_LEN: u16 = 4;
const TCA_BPF_OPS: u16 = 5;
const FIRST_ACTION: u16 = 1;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_STOLEN: u32 = 4;
const TCA_INGRESS_REDIR: u32 = 3;
/// Classic BPF that matches every frame: return −1.
const MATCH_ALL: [u8; 8] = {
    let code = 6u16.to_ne_bytes();
    [code[0], code[1], 0, 0, 0xff, 0xff, 0xff, 0xff]
};

const HEADER_LEN: usize = 16;

/// Redirects what interface `from` receives to the ingress of `to`. The redirection ends with interface
/// `from`.
pub(super) fn redirect(from: u32, to: u32) -> io::Result<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers; its result is checked.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let discipline = Message::new(libc::RTM_NEWQDISC, from, (CLSACT_HANDLE, CLSACT, 0));
    discipline.attribute(TCA_KIND, b"clsact\0").send(&socket)?;
    let all = u32::from((libc::ETH_P_ALL as u16).to_be());
    let filter = Message::new(libc::RTM_NEWTFILTER, from, (0, CLSACT_INGRESS, 1 << 16 | all));
    filter.attribute(TCA_KIND, b"bpf\0").attribute(TCA_OPTIONS, &options(to)).send(&socket)
}

/// Returns the filter: it matches every frame, and its action redirects.
fn options(to: u32) -> Vec<u8> {
    // struct tc_mirred: index, capabilities, action, two counts; what to do, and where.
    let parameters = [0, 0, TC_ACT_STOLEN, 0, 0, TCA_INGRESS_REDIR, to].map(u32::to_ne_bytes).concat();
    let mut action = attribute(TCA_ACT_KIND, b"mirred\0");
    action.extend(attribute(TCA_ACT_OPTIONS, &attribute(TCA_MIRRED_PARMS, &parameters)));
    let mut options = attribute(TCA_BPF_ACT, &attribute(FIRST_ACTION, &action));
    options.extend(attribute(TCA_BPF_OPS_LEN, &1u16.to_ne_bytes()));
    options.extend(attribute(TCA_BPF_OPS, &MATCH_ALL));
    options
}

/// Returns an attribute (struct rtattr) with its padding.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A request (struct nlmsghdr, struct tcmsg, attributes).
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, interface: u32, (handle, parent, info): (u32, u32, u32)) -> Self {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags as u16).to_ne_bytes());
        bytes.extend([1, 0].map(u32::to_ne_bytes).concat());
        bytes.extend([0, interface, handle, parent, info].map(u32::to_ne_bytes).concat());
        Message(bytes)
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute(kind, value));
        self
    }

    /// Sends the request and waits for the kernel's acknowledgement.
    fn send(mut self, socket: &OwnedFd) -> io::Result<()> {
        let len = (self.0.len() as u32).to_ne_bytes();
        self.0[..4].copy_from_slice(&len);
        // SAFETY: the bytes outlive the call, and the kernel only reads them. Without an address it is the
        // one that gets them.
        let sent = unsafe { libc::send(socket.as_raw_fd(), self.0.as_ptr().cast(), self.0.len(), 0) };
        check(sent as libc::c_int)?;
        let mut answer = [0u8; 4096];
        // SAFETY: `answer` has as many writable bytes as given, and outlives the call.
        let len = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        let len = check(len as libc::c_int)? as usize;
        let kind = answer[4..6].try_into().map_or(0, u16::from_ne_bytes);
        let number = answer[HEADER_LEN..HEADER_LEN + 4].try_into().map_or(0, i32::from_ne_bytes);
        if len < HEADER_LEN + 4 || libc::c_int::from(kind) != libc::NLMSG_ERROR {
            return Err(io::Error::other("the kernel has not acknowledged the request"));
        }
        if number == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-number)) }
    }
}

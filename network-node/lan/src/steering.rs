//! Which worker of a network node receives a frame.
//!
//! Workers share nothing, so each flow must stay with one of them, and the replies to connections that applications
//! open must arrive at the worker that the proxy sends through. Hence one rule, known to both ends:
//!
//! ```text
//!  TCP to a port below 49,152           (last 4 bytes of the source address + both ports) × 0x9e3779b1 >> 16, modulo workers
//!  everything else: TCP to the ports that applications connect from, ARP, ICMP, fragments                           worker 0
//! ```
//! The kernel applies it as a classic BPF program of a fanout group (packet(7)), the memory hub by [`worker_of`].

use csp_types::limits::EGRESS_PORT_FIRST;

/// 2³² divided by the golden ratio (Knuth, vol. 3, §6.4).
const MULTIPLIER: u32 = 0x9e37_79b1;
const SHIFT: u32 = 16;
const ETHERNET_LEN: usize = 14;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
const TCP: u8 = 6;
/// More fragments, and the fragment's offset (RFC 791 §3.1).
const FRAGMENT: u16 = 0x3fff;
const V6_LEN: u8 = 40;

/// Returns which of `workers` workers receives this Ethernet frame. Truncated frames go to worker 0.
pub fn worker_of(frame: &[u8], workers: usize) -> usize {
    frame.get(ETHERNET_LEN..).and_then(|packet| hash(ethertype(frame)?, packet)).unwrap_or(0) as usize
        % workers.max(1)
}

fn ethertype(frame: &[u8]) -> Option<u16> {
    half(frame, 12)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn hash(ethertype: u16, packet: &[u8]) -> Option<u32> {
    let (source, header_len) = match ethertype {
        ETHERTYPE_V4 => {
            if *packet.get(9)? != TCP || half(packet, 6)? & FRAGMENT != 0 {
                return None;
            }
            (word(packet, 12)?, (packet.first()? & 0x0f) << 2)
        }
        ETHERTYPE_V6 if *packet.get(6)? == TCP => (word(packet, 20)?, V6_LEN),
        _ => return None,
    };
    let at = usize::from(header_len);
    if half(packet, at + 2)? >= EGRESS_PORT_FIRST {
        return None;
    }
    Some(word(packet, at)?.wrapping_add(source).wrapping_mul(MULTIPLIER) >> SHIFT)
}

/// Returns the same rule as a classic BPF program: (code, jump if true, jump if false, operand). The kernel takes its
/// result modulo the group's members.
pub(crate) fn program() -> [libc::sock_filter; 28] {
    // linux/filter.h: offsets from the network header, and of the frame's metadata.
    const NET: u32 = -0x10_0000_i32 as u32;
    const PROTOCOL: u32 = -0x1000_i32 as u32;
    use libc::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE,
        BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL, BPF_RET, BPF_RSH,
        BPF_ST, BPF_TAX, BPF_W, BPF_X,
    };
    let line = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    [
        line(BPF_LD | BPF_H | BPF_ABS, 0, 0, PROTOCOL), //  0
        line(BPF_JMP | BPF_JEQ | BPF_K, 12, 0, ETHERTYPE_V6.into()), //  1 to 14
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 24, ETHERTYPE_V4.into()), //  2 else 27
        line(BPF_LD | BPF_B | BPF_ABS, 0, 0, NET.wrapping_add(9)), //  3
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 22, TCP.into()), //  4 else 27
        line(BPF_LD | BPF_H | BPF_ABS, 0, 0, NET.wrapping_add(6)), //  5
        line(BPF_JMP | BPF_JSET | BPF_K, 20, 0, FRAGMENT.into()), //  6 to 27
        line(BPF_LD | BPF_W | BPF_ABS, 0, 0, NET.wrapping_add(12)), //  7
        line(BPF_ST, 0, 0, 0),                          //  8
        line(BPF_LD | BPF_B | BPF_ABS, 0, 0, NET),      //  9
        line(BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x0f),    // 10
        line(BPF_ALU | BPF_LSH | BPF_K, 0, 0, 2),       // 11
        line(BPF_MISC | BPF_TAX, 0, 0, 0),              // 12
        line(BPF_JMP | BPF_JA, 0, 0, 5),                // 13 to 19
        line(BPF_LD | BPF_B | BPF_ABS, 0, 0, NET.wrapping_add(6)), // 14
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 11, TCP.into()), // 15 else 27
        line(BPF_LD | BPF_W | BPF_ABS, 0, 0, NET.wrapping_add(20)), // 16
        line(BPF_ST, 0, 0, 0),                          // 17
        line(BPF_LDX | BPF_IMM, 0, 0, V6_LEN.into()),   // 18
        line(BPF_LD | BPF_H | BPF_IND, 0, 0, NET.wrapping_add(2)), // 19
        line(BPF_JMP | BPF_JGE | BPF_K, 6, 0, EGRESS_PORT_FIRST.into()), // 20 to 27
        line(BPF_LD | BPF_W | BPF_IND, 0, 0, NET),      // 21
        line(BPF_LDX | BPF_MEM, 0, 0, 0),               // 22
        line(BPF_ALU | BPF_ADD | BPF_X, 0, 0, 0),       // 23
        line(BPF_ALU | BPF_MUL | BPF_K, 0, 0, MULTIPLIER), // 24
        line(BPF_ALU | BPF_RSH | BPF_K, 0, 0, SHIFT),   // 25
        line(BPF_RET | BPF_A, 0, 0, 0),                 // 26
        line(BPF_RET | BPF_K, 0, 0, 0),                 // 27
    ]
}

//! The steering rule as classic BPF programs for the kernel (linux/filter.h): that of the fanout group, whose
//! result the kernel takes modulo the number of members, and the filter of a socket for frames that all
//! workers receive.

use libc::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE,
    BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL, BPF_RET, BPF_RSH, BPF_ST,
    BPF_TAX, BPF_W, BPF_X,
};

use super::{
    ARP_REPLY, ERRORS_V4, ETHERTYPE_ARP, ETHERTYPE_V4, ETHERTYPE_V6, FRAGMENT, ICMP_LEN, ICMP_V4, ICMP_V6,
    INFORMATIONAL_V6, MULTIPLIER, NEIGHBOUR_ADVERTISEMENT, SHIFT, TCP, UDP, V6_FRAGMENT, V6_LEN,
    V6_OFFSET_AND_MORE,
};

/// Offsets from the network header, and the frame's EtherType (linux/filter.h: SKF_NET_OFF, SKF_AD_OFF).
const NET: u32 = -0x10_0000_i32 as u32;
const PROTOCOL: u32 = -0x1000_i32 as u32;
/// Whether the frame had a VLAN tag, which the kernel has removed (linux/filter.h: SKF_AD_VLAN_TAG_PRESENT).
const TAGGED: u32 = PROTOCOL.wrapping_add(48);
/// Offset of the quoted packet from the end of the IP header.
const QUOTED: u32 = NET.wrapping_add(ICMP_LEN as u32);

/// An instruction. Jumps name labels.
enum Line {
    Label(&'static str),
    Do(u32, u32),
    /// Jump to the label unless the condition holds.
    Unless(u32, u32, &'static str),
    /// Jump to the label if the condition holds.
    If(u32, u32, &'static str),
    Jump(&'static str),
}
use Line::{Do, If, Jump, Label, Unless};

/// Replaces labels by distances. A jump to a missing label leads to the end, which returns 0. The kernel
/// rejects backward jumps.
fn assemble(lines: &[Line]) -> Vec<libc::sock_filter> {
    let at = |label: &str| {
        let before = lines.iter().take_while(|line| !matches!(line, Label(name) if *name == label));
        before.filter(|line| !matches!(line, Label(_))).count()
    };
    let mut program: Vec<libc::sock_filter> = Vec::with_capacity(lines.len() + 1);
    for line in lines {
        let distance = |label: &str| (at(label) - program.len() - 1) as u32;
        let (code, jt, jf, k) = match *line {
            Label(_) => continue,
            Do(code, k) => (code, 0, 0, k),
            Unless(test, k, label) => (BPF_JMP | BPF_K | test, 0, distance(label), k),
            If(test, k, label) => (BPF_JMP | BPF_K | test, distance(label), 0, k),
            Jump(label) => (BPF_JMP | BPF_JA, 0, 0, distance(label)),
        };
        program.push(libc::sock_filter { code: code as u16, jt: jt as u8, jf: jf as u8, k });
    }
    program.push(libc::sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: 0 });
    program
}

const fn byte(at: u32) -> Line {
    Do(BPF_LD | BPF_B | BPF_ABS, at)
}

const fn half(at: u32) -> Line {
    Do(BPF_LD | BPF_H | BPF_ABS, at)
}

const fn word(at: u32) -> Line {
    Do(BPF_LD | BPF_W | BPF_ABS, at)
}

/// Returns a load relative to the index register.
const fn indexed(size: u32, at: u32) -> Line {
    Do(BPF_LD | size | BPF_IND, at)
}

const fn net(offset: u32) -> u32 {
    NET.wrapping_add(offset)
}

const fn quoted(offset: u32) -> u32 {
    QUOTED.wrapping_add(offset)
}

/// Returns the program of the fanout group: [`super::worker_of`].
pub(crate) fn worker() -> Vec<libc::sock_filter> {
    const STORE: Line = Do(BPF_ST, 0); // the peer's address
    const INDEX: Line = Do(BPF_MISC | BPF_TAX, 0);
    const LOW_BITS: Line = Do(BPF_ALU | BPF_AND | BPF_K, 0x0f);
    const TIMES_FOUR: Line = Do(BPF_ALU | BPF_LSH | BPF_K, 2);
    assemble(&[
        half(PROTOCOL),
        If(BPF_JEQ, ETHERTYPE_V6 as u32, "v6"),
        Unless(BPF_JEQ, ETHERTYPE_V4 as u32, "end"),
        half(net(6)),
        If(BPF_JSET, FRAGMENT as u32, "end"),
        byte(net(0)),
        LOW_BITS,
        TIMES_FOUR,
        INDEX,
        byte(net(9)),
        If(BPF_JEQ, ICMP_V4 as u32, "icmp v4"),
        If(BPF_JEQ, TCP as u32, "ports v4"),
        Unless(BPF_JEQ, UDP as u32, "end"),
        Label("ports v4"),
        word(net(12)),
        STORE,
        Jump("ports"),
        Label("icmp v4"),
        indexed(BPF_B, NET),
        If(BPF_JEQ, ERRORS_V4[0] as u32, "error v4"),
        Unless(BPF_JEQ, ERRORS_V4[1] as u32, "end"),
        Label("error v4"),
        indexed(BPF_B, quoted(9)),
        If(BPF_JEQ, TCP as u32, "quoted v4"),
        Unless(BPF_JEQ, UDP as u32, "end"),
        Label("quoted v4"),
        indexed(BPF_H, quoted(6)),
        If(BPF_JSET, FRAGMENT as u32, "end"),
        indexed(BPF_W, quoted(16)),
        STORE,
        indexed(BPF_B, quoted(0)),
        LOW_BITS,
        TIMES_FOUR,
        Do(BPF_ALU | BPF_ADD | BPF_X, 0),
        INDEX,
        Jump("quoted ports"),
        Label("v6"),
        byte(net(6)),
        If(BPF_JEQ, ICMP_V6 as u32, "icmp v6"),
        If(BPF_JEQ, TCP as u32, "ports v6"),
        Unless(BPF_JEQ, UDP as u32, "end"),
        Label("ports v6"),
        word(net(20)),
        STORE,
        Do(BPF_LDX | BPF_IMM, V6_LEN as u32),
        Label("ports"),
        indexed(BPF_W, NET),
        Jump("hash"),
        Label("icmp v6"),
        byte(net(V6_LEN as u32)),
        If(BPF_JGE, INFORMATIONAL_V6 as u32, "end"),
        byte(quoted(V6_LEN as u32 + 6)),
        If(BPF_JEQ, TCP as u32, "quoted v6"),
        Unless(BPF_JEQ, UDP as u32, "end"),
        Label("quoted v6"),
        word(quoted(V6_LEN as u32 + 36)),
        STORE,
        Do(BPF_LDX | BPF_IMM, 2 * V6_LEN as u32),
        Label("quoted ports"),
        indexed(BPF_H, quoted(0)),
        Do(BPF_ST, 1),
        indexed(BPF_H, quoted(2)),
        Do(BPF_ALU | BPF_LSH | BPF_K, 16),
        Do(BPF_LDX | BPF_MEM, 1),
        Do(BPF_ALU | BPF_ADD | BPF_X, 0),
        Label("hash"), // the accumulator has the peer's port and the cluster's
        Do(BPF_LDX | BPF_MEM, 0),
        Do(BPF_ALU | BPF_ADD | BPF_X, 0),
        Do(BPF_ALU | BPF_MUL | BPF_K, MULTIPLIER),
        Do(BPF_ALU | BPF_RSH | BPF_K, SHIFT),
        Do(BPF_RET | BPF_A, 0),
    ])
}

/// Returns the filter of a socket that receives no frames of VLANs. The kernel removes their tag before it
/// delivers them to raw sockets, so that they would look like frames of the interface itself. The program in
/// the driver, which sees the tag, does not process them either.
pub(crate) fn untagged() -> Vec<libc::sock_filter> {
    assemble(&[word(TAGGED), Unless(BPF_JEQ, 0, "end"), Do(BPF_RET | BPF_K, u32::MAX)])
}

/// Returns the filter of a socket that receives only what every worker receives: [`super::is_shared`].
pub(crate) fn shared() -> Vec<libc::sock_filter> {
    assemble(&[
        word(TAGGED),
        Unless(BPF_JEQ, 0, "end"),
        half(PROTOCOL),
        If(BPF_JEQ, ETHERTYPE_V6 as u32, "v6"),
        If(BPF_JEQ, ETHERTYPE_V4 as u32, "v4"),
        Unless(BPF_JEQ, ETHERTYPE_ARP as u32, "end"),
        half(net(6)),
        Unless(BPF_JEQ, ARP_REPLY as u32, "end"),
        Do(BPF_RET | BPF_K, u32::MAX),
        Label("v4"),
        half(net(6)),
        Unless(BPF_JSET, FRAGMENT as u32, "end"),
        byte(net(9)),
        If(BPF_JEQ, TCP as u32, "shared"),
        Unless(BPF_JEQ, UDP as u32, "end"),
        Do(BPF_RET | BPF_K, u32::MAX),
        Label("v6"),
        byte(net(6)),
        If(BPF_JEQ, V6_FRAGMENT as u32, "v6 fragment"),
        Unless(BPF_JEQ, ICMP_V6 as u32, "end"),
        byte(net(V6_LEN as u32)),
        Unless(BPF_JEQ, NEIGHBOUR_ADVERTISEMENT as u32, "end"),
        Do(BPF_RET | BPF_K, u32::MAX),
        Label("v6 fragment"),
        byte(net(V6_LEN as u32)),
        If(BPF_JEQ, TCP as u32, "v6 ports"),
        Unless(BPF_JEQ, UDP as u32, "end"),
        Label("v6 ports"),
        half(net(V6_LEN as u32 + 2)),
        Unless(BPF_JSET, V6_OFFSET_AND_MORE as u32, "end"),
        Label("shared"),
        Do(BPF_RET | BPF_K, u32::MAX),
    ])
}

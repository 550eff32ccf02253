//! Identities of a link's ends, and the purpose of a link.

use core::fmt;

pub use csp_wire::link::{Purpose, RefusalCode};

use csp_types::{NodeId, ProgramName, Role};
use csp_wire::link::Kind;

use crate::event::MessageKind;

/// Longest process id, in bytes.
pub const PROCESS_ID_LEN_MAX: usize = 63;

/// Identifies a process on its node, as assigned by the node's agent; empty for daemons. Stored inline: at
/// most 63 bytes of printable ASCII without space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    len: u8,
    bytes: [u8; PROCESS_ID_LEN_MAX],
}

impl ProcessId {
    /// The id of daemons.
    pub const NONE: ProcessId = ProcessId { len: 0, bytes: [0; PROCESS_ID_LEN_MAX] };

    /// Parses an id received from a peer or the agent. Returns `None` if it is too long or has bytes outside
    /// `!` to `~`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if !text.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let mut bytes = [0; PROCESS_ID_LEN_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(ProcessId { len: u8::try_from(text.len()).ok()?, bytes })
    }

    /// The id of a process of `program`: `<program>-<pid>`, or `<program>-<pid>-<number>` if there is a
    /// number. A program name that is too long is shortened, and characters that an id cannot have become
    /// `_`. The numbers keep ids distinct; rules that match by program use the [`ProgramName`].
    pub fn of_program(program: &ProgramName, pid: u32, number: Option<u64>) -> Self {
        use fmt::Write;
        let mut id = ProcessId::NONE;
        let digits = |n: u64| n.checked_ilog10().unwrap_or(0) as usize + 1;
        let numbers = 1 + digits(pid.into()) + number.map_or(0, |number| 1 + digits(number));
        for byte in program.as_bytes().iter().take(PROCESS_ID_LEN_MAX - numbers) {
            id.push(if byte.is_ascii_graphic() { *byte } else { b'_' });
        }
        // The id has room for the numbers, so writing cannot fail.
        let _ = write!(id, "-{pid}");
        if let Some(number) = number {
            let _ = write!(id, "-{number}");
        }
        id
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(usize::from(self.len)) {
            *place = byte;
            self.len += 1;
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        self.bytes.get(..usize::from(self.len)).and_then(|b| core::str::from_utf8(b).ok()).unwrap_or("")
    }

    /// Whether this is the empty id of daemons.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Write for ProcessId {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

impl Default for ProcessId {
    fn default() -> Self {
        ProcessId::NONE
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessId({})", self.as_str())
    }
}

/// The kind of message that a link of `purpose` carries.
pub(crate) const fn kind_of(purpose: Purpose) -> MessageKind {
    match purpose {
        Purpose::Tunnel => MessageKind::Tunnel,
        Purpose::Channel => MessageKind::Channel,
        Purpose::Message => MessageKind::Message,
        Purpose::Packets => MessageKind::Packets,
    }
}

/// The wire kind of a message of `kind`.
pub(crate) const fn wire_kind(kind: MessageKind) -> Kind {
    match kind {
        MessageKind::Tunnel => Kind::Tunnel,
        MessageKind::Channel => Kind::Channel,
        MessageKind::Message => Kind::Message,
        MessageKind::Packets => Kind::Packets,
    }
}

/// The role of the side that connects links of `purpose`.
pub(crate) const fn connector_role(purpose: Purpose) -> Role {
    match purpose {
        Purpose::Tunnel | Purpose::Packets => Role::NetworkNode,
        Purpose::Channel | Purpose::Message => Role::Process,
    }
}

/// The role of the side that accepts links of `purpose`.
pub(crate) const fn acceptor_role(purpose: Purpose) -> Role {
    match purpose {
        Purpose::Tunnel | Purpose::Channel => Role::ProxyNode,
        Purpose::Packets => Role::AppNode,
        Purpose::Message => Role::Process,
    }
}

/// One end of a link, as stated in HELLO or HELLO_ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerIdentity {
    /// Its role. Certified by the token on the accepting side.
    pub role: Role,
    /// Its node. Certified by the token on the accepting side.
    pub node: NodeId,
    /// The process on that node; empty for daemons. Certified by the token on the accepting side.
    pub process: ProcessId,
    /// Incarnation of the daemon or process: it differs after each restart.
    pub incarnation: u64,
    /// The user that the process runs as: from the token, else from the provider; `None` if neither knows it.
    pub uid: Option<u32>,
    /// Worker of the node that owns this end (0 for processes).
    pub worker: u8,
    /// Index of the link in the pool, below `pool_size`.
    pub pool_index: u8,
    /// Number of links in the pool, at least 1.
    pub pool_size: u8,
}

impl PeerIdentity {
    /// The identity of worker `worker` of a daemon, as a pool of one VI.
    pub const fn daemon(role: Role, node: NodeId, incarnation: u64, worker: u8) -> Self {
        PeerIdentity {
            role,
            node,
            process: ProcessId::NONE,
            incarnation,
            uid: None,
            worker,
            pool_index: 0,
            pool_size: 1,
        }
    }

    /// The identity of an application process.
    pub const fn process(node: NodeId, process: ProcessId, incarnation: u64) -> Self {
        PeerIdentity {
            role: Role::Process,
            node,
            process,
            incarnation,
            uid: None,
            worker: 0,
            pool_index: 0,
            pool_size: 1,
        }
    }

    /// Whether silence means death. Daemons always run; an application process may compute or be stopped.
    pub fn is_daemon(&self) -> bool {
        self.role != Role::Process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_process_is_valid_for_every_program_and_ends_in_its_numbers() {
        let check = |program: &[u8], pid, number, expected: &str| {
            let id = ProcessId::of_program(&ProgramName::parse(program).unwrap(), pid, number);
            assert_eq!(id.as_str(), expected);
            assert_eq!(ProcessId::parse(id.as_str().as_bytes()), Some(id));
        };
        check(b"php-fpm", 42, Some(7), "php-fpm-42-7");
        check(b"a b\xff", 0, None, "a_b_-0");
        let (pid, number) = (u32::MAX, u64::MAX);
        check(&[b'x'; 255], pid, Some(number), &format!("{}-{pid}-{number}", "x".repeat(31)));
    }
}

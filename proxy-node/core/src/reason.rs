//! Reason codes of REFUSED and RESET: Linux errno numbers, so that the socket filter can return them
//! unchanged. Those of TLS towards servers are above them, and no process receives them.

use csp_tls::FailureClass;

/// Returns what a code says of a connection that was not established.
pub const fn text(code: u32) -> &'static str {
    match code {
        CONNECTION_REFUSED => "connection refused",
        TIMED_OUT => "no answer in time",
        CONNECTION_RESET => "connection reset",
        INVALID => "unexpected answer",
        TLS_FIRST.. => of_class(code),
        _ => "not reached",
    }
}

/// The first code of a TLS handshake with a server that has failed; one follows for each class.
const TLS_FIRST: u32 = 1_000;

/// Returns the code of a handshake with a server that has failed for a reason of this class.
pub(crate) const fn of_tls(class: FailureClass) -> u32 {
    TLS_FIRST + class.index() as u32
}

/// Returns the class of a handshake with a server that has failed, if the code is that of one.
pub(crate) fn tls_class(code: u32) -> Option<FailureClass> {
    FailureClass::ALL.get(code.checked_sub(TLS_FIRST)? as usize).copied()
}

const fn of_class(code: u32) -> &'static str {
    match code - TLS_FIRST {
        0 => "TLS: its certificate is for another name",
        1 => "TLS: no trusted authority has signed its certificate",
        2 => "TLS: its certificate is not valid at this time",
        3 => "TLS: its certificate cannot be used",
        4 => "TLS: it refuses the session",
        5 => "TLS: it does not speak the application protocol that is needed",
        6 => "TLS: it has ended the connection in the handshake",
        _ => "TLS: no session; it may not speak TLS",
    }
}

/// Permission denied: the process's grant does not cover the request.
pub const PERMISSION_DENIED: u32 = 13;
/// Address in use: the listener id is in use, or another user's process listens on the port.
pub const ADDRESS_IN_USE: u32 = 98;
/// No route: the policy has no source address for this destination, or no network node is connected.
pub const NETWORK_UNREACHABLE: u32 = 101;
/// The client reset the connection.
pub const CONNECTION_RESET: u32 = 104;
/// No buffer space: a table of the proxy is full.
pub const NO_BUFFERS: u32 = 105;
/// Retransmissions were not acknowledged.
pub const TIMED_OUT: u32 = 110;
/// The other end refused the connection.
pub const CONNECTION_REFUSED: u32 = 111;
/// The message is malformed.
pub const INVALID: u32 = 22;

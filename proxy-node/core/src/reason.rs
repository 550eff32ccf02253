//! Reason codes of REFUSED and RESET: Linux errno numbers, so that the socket filter can return them
//! unchanged.

/// Returns what a code says of a connection that was not established.
pub const fn text(code: u32) -> &'static str {
    match code {
        CONNECTION_REFUSED => "connection refused",
        TIMED_OUT => "no answer in time",
        CONNECTION_RESET => "connection reset",
        INVALID => "unexpected answer",
        _ => "not reached",
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

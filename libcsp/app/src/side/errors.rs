//! Why a socket operation failed, in the terms of the socket interface.

/// The error numbers that cross the wire and reach programs: Linux's own, the same on every architecture it
/// runs on.
pub mod errno {
    /// Interrupted or would block.
    pub const EAGAIN: i32 = 11;
    /// Not allowed.
    pub const EACCES: i32 = 13;
    /// Another socket has the address.
    pub const EADDRINUSE: i32 = 98;
    /// Not a descriptor or handle.
    pub const EBADF: i32 = 9;
    /// No room in a table.
    pub const ENOBUFS: i32 = 105;
    /// The reading end is gone.
    pub const EPIPE: i32 = 32;
    /// The peer reset the connection.
    pub const ECONNRESET: i32 = 104;
    /// No listener accepts there.
    pub const ECONNREFUSED: i32 = 111;
    /// No answer in time.
    pub const ETIMEDOUT: i32 = 110;
    /// No route to the destination.
    pub const EHOSTUNREACH: i32 = 113;
    /// No egress to the destination.
    pub const ENETUNREACH: i32 = 101;
    /// Not connected.
    pub const ENOTCONN: i32 = 107;

    /// The name of an error that a connection can report; `None` for other numbers.
    pub const fn name(errno: i32) -> Option<&'static str> {
        Some(match errno {
            EACCES => "EACCES",
            ENOBUFS => "ENOBUFS",
            EPIPE => "EPIPE",
            ECONNRESET => "ECONNRESET",
            ECONNREFUSED => "ECONNREFUSED",
            ETIMEDOUT => "ETIMEDOUT",
            EHOSTUNREACH => "EHOSTUNREACH",
            ENETUNREACH => "ENETUNREACH",
            _ => return None,
        })
    }
}

/// Why a socket operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppError {
    /// The operation would block; readiness reports when to retry.
    #[error("would block")]
    WouldBlock,
    /// No such socket.
    #[error("no such socket")]
    Unknown,
    /// The connection is not established.
    #[error("not connected")]
    NotConnected,
    /// The connection broke, for this reason (a Linux error number).
    #[error("the connection broke: error {0}")]
    Broken(i32),
    /// Writing after either side ended that direction.
    #[error("broken pipe")]
    Pipe,
    /// No proxy can be reached.
    #[error("no proxy can be reached")]
    NoProxy,
    /// A table is full.
    #[error("no room for another {0}")]
    Full(&'static str),
}

impl AppError {
    /// The error number that a system call would return.
    pub const fn errno(self) -> i32 {
        match self {
            AppError::WouldBlock => errno::EAGAIN,
            AppError::Unknown => errno::EBADF,
            AppError::NotConnected => errno::ENOTCONN,
            AppError::Broken(number) => number,
            AppError::Pipe => errno::EPIPE,
            AppError::NoProxy => errno::EHOSTUNREACH,
            AppError::Full(_) => errno::ENOBUFS,
        }
    }
}

/// Converts the reason in RESET or REFUSED to an error number that programs know, or to `otherwise`.
pub(super) fn reason(argument: u32, otherwise: i32) -> i32 {
    match i32::try_from(argument) {
        Ok(n) if errno::name(n).is_some() => n,
        _ => otherwise,
    }
}

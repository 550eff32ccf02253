//! The codes that functions return: negative, with the number of a Linux error if one fits.

use csp_app::AppError;
use csp_transport::{DownReason, SendError};
use csp_vi::ViError;
use libc::c_int;

/// Why a call failed, as `csp.h` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub c_int);

macro_rules! errors {
    ($($name:ident = $value:expr, $c_name:literal, $text:literal;)*) => {
        impl Error {
            $(#[doc = $text] #[allow(dead_code, reason = "some are received over the wire only")] pub const $name: Error = Error($value);)*
        }

        /// Codes, their names and their descriptions, both with a terminating zero.
        pub const ALL: &[(c_int, &str, &str)] =
            &[$(($value, concat!($c_name, "\0"), concat!($text, "\0")),)*];
    };
}

errors! {
    IO = -libc::EIO, "CSP_EIO", "the system refused a call that should not fail";
    AGAIN = -libc::EAGAIN, "CSP_EAGAIN", "not possible now: try again after the next events";
    NO_MEMORY = -libc::ENOMEM, "CSP_ENOMEM", "no memory";
    ACCESS = -libc::EACCES, "CSP_EACCES", "not allowed";
    BUSY = -libc::EBUSY, "CSP_EBUSY", "another thread is in this context";
    INVALID = -libc::EINVAL, "CSP_EINVAL", "an argument is invalid";
    TOO_MANY = -libc::EMFILE, "CSP_EMFILE", "a table is full";
    PIPE = -libc::EPIPE, "CSP_EPIPE", "this direction of the connection has ended";
    MESSAGE_SIZE = -libc::EMSGSIZE, "CSP_EMSGSIZE", "longer than the longest message";
    ADDRESS_IN_USE = -libc::EADDRINUSE, "CSP_EADDRINUSE", "the address or name is in use";
    RESET = -libc::ECONNRESET, "CSP_ECONNRESET", "the connection broke";
    NO_BUFFERS = -libc::ENOBUFS, "CSP_ENOBUFS", "no free buffer in the pool";
    NOT_CONNECTED = -libc::ENOTCONN, "CSP_ENOTCONN", "not connected";
    TIMED_OUT = -libc::ETIMEDOUT, "CSP_ETIMEDOUT", "no answer in time";
    REFUSED = -libc::ECONNREFUSED, "CSP_ECONNREFUSED", "no listener accepts there";
    UNREACHABLE = -libc::EHOSTUNREACH, "CSP_EHOSTUNREACH", "no proxy reaches the destination";
    CANCELED = -libc::ECANCELED, "CSP_ECANCELED", "ended by the program before completion";
    HANDLE = -1001, "CSP_EHANDLE", "the handle is invalid, or was closed";
    BUFFER = -1002, "CSP_EBUFFER", "not a buffer that the program holds";
    CONTEXT = -1003, "CSP_ECONTEXT", "belongs to another context";
    FORK = -1004, "CSP_EFORK", "the context belongs to the parent process";
    AGENT = -1005, "CSP_EAGENT", "the agent of this host does not answer";
    NOT_ADMITTED = -1006, "CSP_EADMIT", "the agent of this host refuses this process";
}

/// The result of functions that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl From<AppError> for Error {
    fn from(error: AppError) -> Error {
        match error {
            AppError::WouldBlock => Error::AGAIN,
            AppError::Unknown => Error::HANDLE,
            AppError::Full(_) => Error::TOO_MANY,
            AppError::NotConnected | AppError::Broken(_) | AppError::Pipe | AppError::NoProxy => {
                of_errno(error.errno())
            }
        }
    }
}

/// The code of a Linux error number received from a peer. A number without a code here counts as a broken
/// connection.
pub fn of_errno(number: i32) -> Error {
    let known = ALL.iter().any(|(code, ..)| *code == number.wrapping_neg());
    if known { Error(-number) } else { Error::RESET }
}

impl From<ViError> for Error {
    fn from(error: ViError) -> Error {
        match error {
            ViError::Full => Error::AGAIN,
            ViError::TooLong { .. } => Error::MESSAGE_SIZE,
            ViError::NotConnected => Error::NOT_CONNECTED,
            ViError::Unreachable { .. } | ViError::Rejected => Error::REFUSED,
            ViError::Config(_) => Error::INVALID,
            ViError::Exhausted(_) => Error::TOO_MANY,
            ViError::Unknown(_) | ViError::Protocol(_) | ViError::Unsupported(_) | ViError::System { .. } => {
                Error::IO
            }
        }
    }
}

/// Why a channel ended; `None` if either side closed it.
pub fn of_down(reason: &DownReason, was_up: bool) -> Option<Error> {
    match reason {
        DownReason::Closed => None,
        DownReason::Refused { .. } => Some(Error::ACCESS),
        _ if was_up => Some(Error::RESET),
        DownReason::Died(_) | DownReason::Unreachable { .. } => Some(Error::REFUSED),
    }
}

/// Why a message cannot be sent; `None`: it can be sent later.
pub fn of_send(error: SendError) -> Option<Error> {
    match error {
        SendError::NoCredit => None,
        SendError::Down => Some(Error::PIPE),
        SendError::TooLong => Some(Error::MESSAGE_SIZE),
    }
}

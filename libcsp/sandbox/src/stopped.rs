//! Why an instance was stopped. Each reason is a bound of the host's or a mistake of the module's; none is
//! the host's fault.

use thiserror::Error;

/// Why an instance was stopped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Error)]
pub enum Reason {
    /// It has used the fuel of a call: it loops, or is slow with this message.
    #[error("it used the fuel of a call")]
    Fuel,
    /// It ran when the engine's epochs were over: the backstop behind the fuel.
    #[error("it ran for too long")]
    Epoch,
    /// Its calls are nested too deeply.
    #[error("its stack is full")]
    Stack,
    /// It went on asking for more memory or a larger table than it may have.
    #[error("it asked for too much memory")]
    Memory,
    /// It gave up: `unreachable`, a panic, a division by zero, an access outside its memory.
    #[error("it trapped")]
    Trap,
    /// It gave an import an address outside its memory.
    #[error("it gave an address outside its memory")]
    Pointer,
    /// It emitted to an output that it does not have, a longer message than it declared, or frames and pieces
    /// that do not fit together.
    #[error("it emitted what it must not")]
    Output,
    /// It emitted more messages than one call may.
    #[error("it emitted too many messages")]
    Emits,
    /// It had imports copy more bytes, or called them more often, than one call may.
    #[error("it made the host copy too much")]
    Copied,
    /// Its functions return what the ABI does not have.
    #[error("it does not follow the ABI")]
    Abi,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 10] = [
        Reason::Fuel,
        Reason::Epoch,
        Reason::Stack,
        Reason::Memory,
        Reason::Trap,
        Reason::Pointer,
        Reason::Output,
        Reason::Emits,
        Reason::Copied,
        Reason::Abi,
    ];

    /// Returns the name of the reason in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::Fuel => "fuel",
            Reason::Epoch => "epoch",
            Reason::Stack => "stack",
            Reason::Memory => "memory",
            Reason::Trap => "trap",
            Reason::Pointer => "pointer",
            Reason::Output => "output",
            Reason::Emits => "emits",
            Reason::Copied => "copied",
            Reason::Abi => "abi",
        }
    }

    /// Returns why a handler gives a message up on which its module was stopped.
    pub(crate) fn fault(self) -> &'static str {
        match self {
            Reason::Fuel => "the module was stopped: it used the fuel of a call",
            Reason::Epoch => "the module was stopped: it ran for too long",
            Reason::Stack => "the module was stopped: its stack is full",
            Reason::Memory => "the module was stopped: it asked for too much memory",
            Reason::Trap => "the module was stopped: it trapped",
            Reason::Pointer => "the module was stopped: it gave an address outside its memory",
            Reason::Output => "the module was stopped: it emitted what it must not",
            Reason::Emits => "the module was stopped: it emitted too many messages",
            Reason::Copied => "the module was stopped: it made the host copy too much",
            Reason::Abi => "the module was stopped: it does not follow the ABI",
        }
    }
}

/// An instance was stopped, and is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the module was stopped in {function}: {reason}")]
pub struct Stopped {
    /// Why.
    pub reason: Reason,
    /// The function of the ABI in which it was.
    pub function: &'static str,
}

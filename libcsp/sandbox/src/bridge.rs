//! How imports reach the call that runs: the message, the outputs and the state block of the handler.
//!
//! A store holds only what lives for ever, and a call lives for one message. The call is therefore lent to
//! the thread for as long as the guest runs, and imports borrow it from there; `scoped_tls_hkt` takes it back
//! when the guest returns or traps. It hands out one borrow at a time, so that an import cannot be entered
//! while another one runs.

use csp_handlers::{Call, Emit, Full, State, Tick};
use scoped_tls_hkt::{ReborrowMut, scoped_thread_local};

/// What imports reach.
pub(crate) trait Bridge {
    /// Copies bytes of the message from byte `start` on. Returns how many there were.
    fn copy(&self, start: u32, into: &mut [u8]) -> usize;
    /// Returns the length of a frame of the message.
    fn frame_len(&self, frame: u8) -> Option<u32>;
    /// Emits; `None`: there is no message of which a part could be emitted.
    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Option<Result<(), Full>>;
    /// Returns whether a new message may have only one piece, which are the guest's own bytes.
    fn is_plain(&self) -> bool;
    /// Returns whether the state block may be changed: while a message or timer is processed.
    fn may_write(&self) -> bool {
        true
    }
    /// Returns the state of the handler.
    fn state(&mut self) -> &mut State;
}

impl Bridge for Call<'_> {
    fn copy(&self, start: u32, into: &mut [u8]) -> usize {
        Call::copy(self, start, into)
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        Call::frame_len(self, frame)
    }

    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Option<Result<(), Full>> {
        Some(Call::emit(self, output, emit))
    }

    fn is_plain(&self) -> bool {
        false
    }

    fn state(&mut self) -> &mut State {
        Call::state(self)
    }
}

impl Bridge for Tick<'_> {
    fn copy(&self, _: u32, _: &mut [u8]) -> usize {
        0
    }

    fn frame_len(&self, _: u8) -> Option<u32> {
        None
    }

    fn emit(&mut self, output: u8, emit: Emit<'_>) -> Option<Result<(), Full>> {
        match emit {
            Emit::New { format, frames, pieces: [csp_handlers::Piece::Bytes(bytes)] } => {
                Some(Tick::emit(self, output, format, frames, bytes))
            }
            _ => None,
        }
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn state(&mut self) -> &mut State {
        Tick::state(self)
    }
}

/// A call without a message and outputs: parameters are set, or the module starts.
pub(crate) struct Quiet<'a>(pub &'a mut State);

impl Bridge for Quiet<'_> {
    fn copy(&self, _: u32, _: &mut [u8]) -> usize {
        0
    }

    fn frame_len(&self, _: u8) -> Option<u32> {
        None
    }

    fn emit(&mut self, _: u8, _: Emit<'_>) -> Option<Result<(), Full>> {
        None
    }

    fn is_plain(&self) -> bool {
        true
    }

    fn may_write(&self) -> bool {
        false
    }

    fn state(&mut self) -> &mut State {
        self.0
    }
}

/// The call that a thread runs.
pub(crate) struct Lent<'a>(pub &'a mut (dyn Bridge + 'a));

impl<'a> ReborrowMut<'a> for Lent<'_> {
    type Result = Lent<'a>;

    fn reborrow_mut(&'a mut self) -> Lent<'a> {
        Lent(self.0)
    }
}

scoped_thread_local!(static mut RUNNING: for<'a> Lent<'a>);

/// Runs a guest with a call lent to it.
#[inline]
pub(crate) fn lend<R>(bridge: &mut dyn Bridge, run: impl FnOnce() -> R) -> R {
    RUNNING.set(Lent(bridge), run)
}

/// Runs an import with the call that was lent to its guest.
#[inline]
pub(crate) fn borrow<R>(import: impl FnOnce(&mut dyn Bridge) -> R) -> R {
    RUNNING.with(|lent| import(lent.0))
}

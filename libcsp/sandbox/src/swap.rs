//! Hot swap: a module takes another's place between two messages, with the state that it declares to keep.
//!
//! Everything that can fail or take long was done before, by [`Supplied::new`] on a background thread. What is left between two messages
//! is comparing what the two declare, and copying state that is handed over:
//!
//! ```text
//!   kept:         the block at the host stays          (same layout and length)
//!   handed over:  csp_state_export ─▶ bytes in the old memory ─ one copy ─▶ csp_state_import's address in the new memory
//!   dropped:      the block is zeros
//! ```
//! A swap in place fits a path as it is checked already: outputs, lengths, timer and formats stay. Any other change is a new path, which the
//! Control Manager checks; [`csp_handlers::Handler::hand_over`] carries state there.

use csp_handlers::{FormatId, Handler as _, State};
use thiserror::Error;

use crate::abi::StateKind;
use crate::supplied::Supplied;

/// Why a module does not take another's place.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SwapError {
    /// Numbers that the path was checked for differ; contains of what, of the former one, and of the new one.
    #[error("the path was checked for {1} {0}, and the module has {2}")]
    Differs(&'static str, u64, u64),
    /// It does not process a format that the former one does, or yields another one of it.
    #[error("the module does not treat format {format} as the former one does", format = .0.0)]
    Format(FormatId),
    /// The state cannot be kept; contains layout and bytes of the former one and of the new one.
    #[error("state of layout {0} with {1} bytes cannot be kept by a module with layout {2} of {3} bytes")]
    Layout(u32, u32, u32, u32),
    /// The former module hands no state over, or was stopped when it was to, and the new one needs some.
    #[error("the former module hands no state over")]
    NoState,
    /// The new module refuses the state; contains its layout and length in bytes.
    #[error("the module refuses state of layout {0} with {1} bytes")]
    Refused(u32, usize),
}

/// A module has taken another's place.
#[derive(Debug)]
pub struct Swapped {
    /// The former one. To release its memory takes tens of microseconds, which a background thread has.
    pub former: Supplied,
    /// What became of the state.
    pub state: StateKind,
    /// Bytes that were kept or handed over.
    pub bytes: usize,
}

/// Puts a module in another's place. `state` is that of the handler's stage.
///
/// # Errors
/// Why not, with the new handler; the former one goes on, and its state is as it was.
pub fn swap(
    current: &mut Supplied,
    state: &mut State,
    mut new: Supplied,
) -> Result<Swapped, Box<(SwapError, Supplied)>> {
    if let Err(error) = check(current, &new) {
        return Err(Box::new((error, new)));
    }
    let kind = new.module.declaration().state;
    let bytes = match kind {
        StateKind::Kept => state.block().len(),
        StateKind::Dropped => 0,
        StateKind::HandedOver => match hand_over(current, state, &mut new) {
            Ok(bytes) => bytes,
            Err(error) => return Err(Box::new((error, new))),
        },
    };
    // The block stays if its layout does.
    let needs = new.needs();
    if !state.fits(&needs) {
        state.renew(&needs);
    }
    // What is counted is the stage's, whichever module serves it.
    new.report.clone_from(&current.report);
    new.report.swapped_in();
    let former = std::mem::replace(current, new);
    Ok(Swapped { former, state: kind, bytes })
}

fn check(current: &Supplied, new: &Supplied) -> Result<(), SwapError> {
    let (old, declared) = (current.module.declaration(), new.module.declaration());
    if old.outputs != declared.outputs {
        return Err(SwapError::Differs("outputs", old.outputs.into(), declared.outputs.into()));
    }
    if declared.new_len_max > old.new_len_max {
        let (was, is) = (old.new_len_max.into(), declared.new_len_max.into());
        return Err(SwapError::Differs("bytes of a message that the handler makes", was, is));
    }
    if declared.period_ms != old.period_ms {
        let (was, is) = (old.period_ms.into(), declared.period_ms.into());
        return Err(SwapError::Differs("ms between two periods", was, is));
    }
    for (format, accepts, yields) in &current.formats {
        let same = |output: u8| new.yields(output, *format) == yields[usize::from(output)];
        if *accepts && !(new.accepts(*format) && (0..old.outputs).all(same)) {
            return Err(SwapError::Format(*format));
        }
    }
    let same_len = declared.state_len == old.state_len;
    match declared.state {
        StateKind::Kept if !same_len || declared.layout != old.layout => {
            Err(SwapError::Layout(old.layout, old.state_len, declared.layout, declared.state_len))
        }
        _ if !same_len => {
            Err(SwapError::Differs("bytes of state", old.state_len.into(), declared.state_len.into()))
        }
        StateKind::HandedOver if !current.module.optional.hands_over => Err(SwapError::NoState),
        _ => Ok(()),
    }
}

/// Copies state from one memory to the other. Returns how many bytes. A module that was stopped has none left.
fn hand_over(current: &mut Supplied, state: &mut State, new: &mut Supplied) -> Result<usize, SwapError> {
    if current.instance.is_none() {
        return Ok(0);
    }
    let Some((layout, bytes)) = current.hand_over(state) else { return Err(SwapError::NoState) };
    match new.take_over(layout, bytes) {
        true => Ok(bytes.len()),
        false => Err(SwapError::Refused(layout, bytes.len())),
    }
}

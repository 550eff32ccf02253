//! Moving cache lines between processors before they are asked for.
//!
//! What a message costs at 64 bytes is the movement of its lines: the sender takes them over from the receiver, which
//! read them last, and the receiver fetches them again. Two hints shorten that. Both are no more than hints: processors
//! that do not know them do nothing.

const LINE_LEN: usize = 64;

/// Messages longer than this are not handed over early: the receiver fetches their lines in a row, and its processor
/// sees that coming.
const DEMOTE_LEN_MAX: usize = 1024;

/// Lines of the next slot that are taken over early, at most.
const CLAIM_LEN_MAX: usize = 16 * 1024;

/// Moves what was just written from this processor's own cache to the one that all share, where the receiver finds it
/// sooner.
pub(super) fn hand_over(at: *const u8, len: usize) {
    if len > DEMOTE_LEN_MAX {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(LINE_LEN) {
        // SAFETY: cldemote changes no memory and no register; it is a no-operation where the address or the processor
        // does not allow it (it is encoded as one).
        unsafe {
            let line = at.wrapping_add(offset);
            core::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Takes the lines of a slot over for writing before they are written. Not the first: the receiver looks at it all the
/// time.
pub(super) fn claim(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (LINE_LEN..len.min(CLAIM_LEN_MAX)).step_by(LINE_LEN) {
        // SAFETY: a prefetch changes no memory and no register, and never faults.
        unsafe {
            let line = at.wrapping_add(offset);
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

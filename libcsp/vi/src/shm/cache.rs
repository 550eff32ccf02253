//! Cache hints: move lines between processors before they are needed.
//!
//! Most of the cost of a 64-byte message is the transfer of its cache lines: the sender fetches them from the
//! receiver, which read them last, and the receiver fetches them back. Two hints shorten this. A processor
//! that does not support a hint ignores it.

const LINE_LEN: usize = 64;

/// Messages longer than this are not demoted: the receiver reads their lines in sequence, which its processor
/// prefetches.
const DEMOTE_LEN_MAX: usize = 1024;

/// Largest part of the next slot that is prefetched for writing, in bytes.
const CLAIM_LEN_MAX: usize = 16 * 1024;

/// Demotes lines just written from this processor's private cache to the shared cache, from which the
/// receiver fetches them faster.
pub(super) fn hand_over(at: *const u8, len: usize) {
    if len > DEMOTE_LEN_MAX {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(LINE_LEN) {
        // SAFETY: cldemote changes no memory and no register. It is encoded as a no-operation, and acts as
        // one where the address or the processor does not permit it, so any address is allowed.
        unsafe {
            let line = at.wrapping_add(offset);
            core::arch::asm!("cldemote [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches a slot for writing. The first line is left out, since the receiver polls it.
pub(super) fn claim(at: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (LINE_LEN..len.min(CLAIM_LEN_MAX)).step_by(LINE_LEN) {
        // SAFETY: a prefetch changes no memory and no register, and never faults, so any address is allowed.
        unsafe {
            let line = at.wrapping_add(offset);
            core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

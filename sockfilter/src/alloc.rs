//! The filter's own memory: size classes carved from mapped chunks, apart from the program's heap.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

use crate::lock::Word;
use crate::sys::syscall;

/// Largest size class in bytes. Sizes are powers of two from 16 bytes; larger blocks are mapped individually.
const LARGEST_CLASS: usize = 256 * 1024;
const CLASSES: usize = 15;
const SMALLEST_SHIFT: u32 = 4;
/// Bytes mapped at a time for the size classes.
const CHUNK: usize = 1024 * 1024;

struct State {
    free: [*mut u8; CLASSES],
    next: *mut u8,
    left: usize,
}

struct Shared(UnsafeCell<State>);

// SAFETY: the state is accessed only while WORD is held.
unsafe impl Sync for Shared {}

static WORD: Word = Word::new();
static STATE: Shared =
    Shared(UnsafeCell::new(State { free: [null_mut(); CLASSES], next: null_mut(), left: 0 }));

/// The allocator.
pub struct Arena;

/// Takes the allocator's lock for a fork.
pub fn hold() {
    WORD.lock();
}

/// Releases the allocator's lock.
pub fn release() {
    WORD.unlock();
}

fn map(len: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping touches nothing that exists.
    match unsafe { syscall!(libc::SYS_mmap, 0, len, protection, flags, usize::MAX, 0) } {
        Ok(address) => address as *mut u8,
        Err(_) => null_mut(),
    }
}

fn rounded(layout: &Layout) -> usize {
    layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT).next_power_of_two()
}

fn class_of(size: usize) -> usize {
    (size.trailing_zeros() - SMALLEST_SHIFT) as usize
}

impl State {
    fn take(&mut self, size: usize) -> *mut u8 {
        let class = class_of(size);
        let Some(free) = self.free.get_mut(class) else { return null_mut() };
        if !free.is_null() {
            let block = *free;
            // SAFETY: a free block of this class starts with the pointer to the next one.
            *free = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        if self.left < size {
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return null_mut();
            }
            self.next = chunk;
            self.left = CHUNK;
        }
        // Blocks are aligned to their own size: skip bytes until the address is a multiple of it.
        let skip = self.next.align_offset(size);
        if skip + size > self.left {
            self.left = 0;
            return self.take(size);
        }
        // SAFETY: `skip + size` bytes are left of the chunk.
        let block = unsafe { self.next.add(skip) };
        // SAFETY: as above; at most one past the chunk's end.
        self.next = unsafe { block.add(size) };
        self.left -= skip + size;
        block
    }

    fn give(&mut self, block: *mut u8, size: usize) {
        if let Some(free) = self.free.get_mut(class_of(size)) {
            // SAFETY: the block is at least 16 bytes, aligned to its size, and no longer in use
            // (GlobalAlloc's contract).
            unsafe { block.cast::<*mut u8>().write(*free) };
            *free = block;
        }
    }
}

// SAFETY: blocks are disjoint, aligned to their rounded size (a power of two not below the alignment; mapped
// ones to pages), and live until they are freed; the lists are accessed only under WORD.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = rounded(&layout);
        if size > LARGEST_CLASS {
            return if layout.align() <= 4096 { map(size) } else { null_mut() };
        }
        // A signal handler that interrupts this code must not wait for the word.
        let _inside = crate::lock::Inside::enter();
        WORD.lock();
        // SAFETY: WORD is held.
        let block = unsafe { (*STATE.0.get()).take(size) };
        WORD.unlock();
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let size = rounded(&layout);
        if size > LARGEST_CLASS {
            // SAFETY: `alloc` mapped exactly this range for the block.
            let _ = unsafe { syscall!(libc::SYS_munmap, block, size) };
            return;
        }
        let _inside = crate::lock::Inside::enter();
        WORD.lock();
        // SAFETY: WORD is held; the block is of this class.
        unsafe { (*STATE.0.get()).give(block, size) };
        WORD.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_reused() {
        let mut blocks = Vec::new();
        for (n, size) in
            [1, 16, 17, 100, 4096, 70_000, 256 * 1024, 300_000].into_iter().cycle().take(64).enumerate()
        {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the layout has a size.
            let block = unsafe { Arena.alloc(layout) };
            assert!(!block.is_null() && block.align_offset(8) == 0);
            // SAFETY: `size` bytes were given.
            unsafe { block.write_bytes(n as u8, size) };
            blocks.push((block, layout, n as u8));
        }
        for (block, layout, mark) in &blocks {
            // SAFETY: still ours.
            let bytes = unsafe { core::slice::from_raw_parts(*block, layout.size()) };
            assert!(bytes.iter().all(|b| b == mark));
        }
        let last = blocks[1].0;
        // SAFETY: each block goes back once, with its layout.
        unsafe {
            for (block, layout, _) in blocks.into_iter().skip(1) {
                Arena.dealloc(block, layout);
                if block == last {
                    assert_eq!(Arena.alloc(layout), last, "the block freed last is reused first");
                }
            }
        }
    }
}

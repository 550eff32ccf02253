//! Memory that is shared with the kernel, in chunks of one frame each.

use std::io;
use std::ptr::NonNull;

use super::CHUNK_LEN;

/// A private anonymous mapping, or one of a socket's rings. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; what lies in it is accessed by its owners' rules, which are
// stated there.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods return addresses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of memory, populated at once.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    /// Maps a ring of a socket.
    pub(super) fn of_socket(len: usize, fd: libc::c_int, offset: libc::off_t) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, fd, offset)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int, offset: libc::off_t) -> io::Result<Self> {
        // SAFETY: without an address the kernel chooses a free range; the result is checked.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset)
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(address) if at != libc::MAP_FAILED => Ok(Mapping { at: address, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(super) fn at(&self) -> NonNull<u8> {
        self.at
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped this range, and nothing refers to it any more: whoever has an address
        // keeps the mapping.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// The chunks of a socket. Chunks below [`RECEIVE_CHUNKS`] belong to the receiver, the others to the
/// transmitter.
#[derive(Debug)]
pub(super) struct Umem {
    mapping: Mapping,
}

/// Chunks for received frames.
pub(super) const RECEIVE_CHUNKS: usize = 2048;
/// Chunks for frames to be transmitted.
pub(super) const TRANSMIT_CHUNKS: usize = 1024;

impl Umem {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Umem { mapping: Mapping::anonymous((RECEIVE_CHUNKS + TRANSMIT_CHUNKS) * CHUNK_LEN)? })
    }

    pub(super) fn at(&self) -> NonNull<u8> {
        self.mapping.at()
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Validates a descriptor of a received frame. Returns address, length and chunk; `None` if the chunk is
    /// not the receiver's.
    pub(super) fn received(&self, at: u64, len: u32) -> Option<(usize, usize, u64)> {
        let (at, len) = (usize::try_from(at).ok()?, len as usize);
        let chunk = at / CHUNK_LEN;
        (chunk < RECEIVE_CHUNKS && len <= CHUNK_LEN - at % CHUNK_LEN).then_some((
            at,
            len,
            (chunk * CHUNK_LEN) as u64,
        ))
    }

    /// Returns the bytes of a received frame.
    ///
    /// # Safety
    /// `at` and `len` were returned by [`received`](Self::received), and the chunk belongs to the receiver:
    /// it arrived on the RX ring and was not put into the fill ring since.
    pub(super) unsafe fn frame(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: the range lies in the mapping (`received`), and the kernel does not write a chunk that user
        // level has.
        unsafe { std::slice::from_raw_parts(self.mapping.at().as_ptr().add(at), len) }
    }

    /// Returns a chunk for a frame to be transmitted.
    ///
    /// # Safety
    /// The chunk belongs to the transmitter: it was not put into the TX ring, or has returned on the
    /// completion ring since. No other reference to it exists.
    #[expect(clippy::mut_from_ref, reason = "the transmitter owns its chunks, not the mapping")]
    pub(super) unsafe fn chunk(&self, number: usize) -> &mut [u8] {
        assert!(number < TRANSMIT_CHUNKS, "a chunk of the transmitter");
        let at = (RECEIVE_CHUNKS + number) * CHUNK_LEN;
        // SAFETY: the range lies in the mapping (above), and the caller promises that nothing else accesses
        // it.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.at().as_ptr().add(at), CHUNK_LEN) }
    }

    /// Returns the address of a transmit chunk in the kernel's form.
    pub(super) fn place(number: usize) -> u64 {
        ((RECEIVE_CHUNKS + number) * CHUNK_LEN) as u64
    }

    /// Returns the number of the chunk at an address; `None` if it is not a transmit chunk.
    pub(super) fn number(place: u64) -> Option<usize> {
        let number = usize::try_from(place).ok()? / CHUNK_LEN;
        number.checked_sub(RECEIVE_CHUNKS).filter(|number| *number < TRANSMIT_CHUNKS)
    }
}

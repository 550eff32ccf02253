//! Numbers in a block of bytes. Outside the block numbers read as 0 and are not written: state of another
//! meaning harms nobody.

#[inline]
pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[inline]
pub(crate) fn u64_at(block: &[u8], at: usize) -> u64 {
    block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[inline]
pub(crate) fn i64_at(block: &[u8], at: usize) -> i64 {
    u64_at(block, at) as i64
}

#[inline]
pub(crate) fn put_u32(block: &mut [u8], at: usize, number: u32) {
    put(block, at, &number.to_le_bytes());
}

#[inline]
pub(crate) fn put_u64(block: &mut [u8], at: usize, number: u64) {
    put(block, at, &number.to_le_bytes());
}

#[inline]
pub(crate) fn put_i64(block: &mut [u8], at: usize, number: i64) {
    put(block, at, &number.to_le_bytes());
}

#[inline]
pub(crate) fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(into) = block.get_mut(at..at + bytes.len()) {
        into.copy_from_slice(bytes);
    }
}

/// Bytes of a block; none outside it.
#[inline]
pub(crate) fn bytes_at(block: &[u8], at: usize, len: usize) -> &[u8] {
    block.get(at..at + len).unwrap_or_default()
}

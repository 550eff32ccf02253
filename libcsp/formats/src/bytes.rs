//! A run of bytes that lies in several slices. Nothing is flattened; what is read beyond the end is `None`.

/// A range of bytes within a list of slices.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'b> {
    /// The slices from the one in which the range begins.
    slices: &'b [&'b [u8]],
    /// The begin, within the first slice.
    start: usize,
    /// The length; the slices have at least as much.
    len: usize,
}

impl<'b> Bytes<'b> {
    /// All bytes of a list of slices.
    #[must_use]
    pub fn new(slices: &'b [&'b [u8]]) -> Self {
        let len = slices.iter().fold(0usize, |sum, slice| sum.saturating_add(slice.len()));
        Self { slices, start: 0, len }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes behind the first `count`.
    #[must_use]
    #[inline]
    pub fn skip(self, count: usize) -> Option<Self> {
        let len = self.len.checked_sub(count)?;
        let (mut slices, mut start) = (self.slices, self.start.checked_add(count)?);
        // Behind the last slice nothing is left; the last stays, so that `start` stays within it.
        while let [first, rest @ ..] = slices
            && start >= first.len()
            && !rest.is_empty()
        {
            start -= first.len();
            slices = rest;
        }
        Some(Self { slices, start, len })
    }

    /// The first `count` bytes.
    #[must_use]
    #[inline]
    pub fn take(self, count: usize) -> Option<Self> {
        (count <= self.len).then_some(Self { len: count, ..self })
    }

    /// The bytes of `offset..offset + len`.
    #[must_use]
    pub fn range(self, offset: usize, len: usize) -> Option<Self> {
        self.skip(offset)?.take(len)
    }

    /// The number of bytes before the range in the list of slices that it was made of; `None` if it is of
    /// another list.
    #[must_use]
    pub fn position_in(&self, whole: &[&[u8]]) -> Option<usize> {
        let (before, rest) = whole.split_at_checked(whole.len().checked_sub(self.slices.len())?)?;
        core::ptr::eq(rest.as_ptr(), self.slices.as_ptr())
            .then(|| before.iter().fold(self.start, |sum, slice| sum.saturating_add(slice.len())))
    }

    /// The slices of the range, in order; none of them is empty.
    pub fn parts(self) -> impl Iterator<Item = &'b [u8]> + Clone {
        let (mut start, mut left) = (self.start, self.len);
        self.slices.iter().filter_map(move |slice| {
            let from = slice.get(start..).unwrap_or_default();
            start = start.saturating_sub(slice.len());
            let part = &from[..from.len().min(left)];
            left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }

    /// All bytes, one by one.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        self.parts().flatten().copied()
    }

    /// The whole range, if it lies in one slice.
    #[must_use]
    #[inline]
    pub fn contiguous(self) -> Option<&'b [u8]> {
        if self.len == 0 {
            return Some(&[]);
        }
        let end = self.start.checked_add(self.len)?;
        if let Some(part) = self.slices.first().and_then(|first| first.get(self.start..end)) {
            return Some(part);
        }
        let part = self.parts().next()?;
        (part.len() == self.len).then_some(part)
    }

    /// The range as one slice: where it lies, or copied into `buffer` if it lies in several. `None` if the
    /// buffer is too small.
    #[must_use]
    pub fn gather<'c>(self, buffer: &'c mut [u8]) -> Option<&'c [u8]>
    where
        'b: 'c,
    {
        if let Some(whole) = self.contiguous() {
            return Some(whole);
        }
        let mut at = 0;
        for part in self.parts() {
            buffer.get_mut(at..at + part.len())?.copy_from_slice(part);
            at += part.len();
        }
        Some(&buffer[..at])
    }

    /// The `size` bytes at an offset, as the first of a word; `size` is 1, 2, 4 or 8.
    #[inline]
    pub(crate) fn word(self, offset: usize, size: u32) -> Option<[u8; 8]> {
        let size = size as usize;
        if offset.checked_add(size)? > self.len {
            return None;
        }
        let mut word = [0; 8];
        let at = self.start + offset;
        if let Some(first) = self.slices.first().and_then(|slice| slice.get(at..at + size)) {
            // Copies of constant length are single instructions.
            match size {
                1 => word[0] = first[0],
                2 => word[..2].copy_from_slice(first),
                4 => word[..4].copy_from_slice(first),
                _ => word[..size].copy_from_slice(first),
            }
            return Some(word);
        }
        for (into, byte) in word.iter_mut().zip(self.range(offset, size)?.iter()) {
            *into = byte;
        }
        Some(word)
    }
}

impl PartialEq<[u8]> for Bytes<'_> {
    fn eq(&self, other: &[u8]) -> bool {
        self.len == other.len() && self.iter().eq(other.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_of_the_bytes_reads_alike() {
        let all: Vec<u8> = (0..20).collect();
        for first in 0..=20 {
            for second in first..=20 {
                let slices = [&all[..first], &all[first..second], &[], &all[second..]];
                let bytes = Bytes::new(&slices);
                assert_eq!(bytes.len(), 20);
                for offset in 0..=20 {
                    let rest = bytes.skip(offset).expect("within");
                    assert!(rest == all[offset..]);
                    for len in 0..=20 - offset {
                        assert!(bytes.range(offset, len).expect("within") == all[offset..offset + len]);
                    }
                    assert!(rest.take(21 - offset).is_none());
                    for size in [1u32, 2, 4, 8] {
                        let word = bytes.word(offset, size);
                        let plain = all.get(offset..offset + size as usize);
                        assert_eq!(word.is_some(), plain.is_some());
                        if let (Some(word), Some(plain)) = (word, plain) {
                            assert_eq!(&word[..size as usize], plain);
                        }
                    }
                }
                assert!(bytes.skip(21).is_none());
            }
        }
        assert!(Bytes::new(&[]).word(0, 1).is_none());
    }

    #[test]
    fn a_range_knows_its_position_in_its_own_list() {
        let slices: [&[u8]; 3] = [b"abc", b"", b"defg"];
        for offset in 0..7 {
            let rest = Bytes::new(&slices).skip(offset).expect("within");
            assert_eq!(rest.position_in(&slices), Some(offset));
            assert_eq!(rest.position_in(&slices.clone()), None);
            assert_eq!(rest.position_in(&slices[..1]), None);
        }
    }

    #[test]
    fn bytes_are_gathered_only_where_they_lie_apart() {
        let slices: [&[u8]; 2] = [b"ab", b"cd"];
        let bytes = Bytes::new(&slices);
        assert_eq!(bytes.contiguous(), None);
        assert_eq!(bytes.range(1, 1).and_then(Bytes::contiguous), Some(&b"b"[..]));
        assert_eq!(bytes.gather(&mut [0; 4]), Some(&b"abcd"[..]));
        assert_eq!(bytes.gather(&mut [0; 3]), None);
    }
}

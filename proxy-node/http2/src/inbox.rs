//! Payload of a stream that the caller has not taken yet.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Shorter pieces are copied together: a piece of one byte would keep the block alive that it was read into.
const SHARED_LEN_MIN: usize = 1_024;

/// Received payload, in order.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pieces: VecDeque<Bytes>,
    /// Short pieces behind `pieces`.
    tail: BytesMut,
    len: usize,
}

impl Inbox {
    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        if bytes.len() < SHARED_LEN_MIN {
            self.tail.extend_from_slice(&bytes);
            return;
        }
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.pieces.push_back(bytes);
    }

    /// Returns the bytes that lie together at the front; empty if there are none.
    pub(crate) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail, |piece| piece)
    }

    /// Removes `len` bytes from the front, at most what there is. Returns their number.
    pub(crate) fn consume(&mut self, len: usize) -> usize {
        let mut left = len.min(self.len);
        let taken = left;
        self.len -= taken;
        while let Some(piece) = self.pieces.front_mut() {
            if left < piece.len() {
                piece.advance(left);
                return taken;
            }
            left -= piece.len();
            self.pieces.pop_front();
        }
        self.tail.advance(left);
        if self.tail.is_empty() {
            self.tail = BytesMut::new();
        }
        taken
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order() {
        let mut inbox = Inbox::default();
        let mut sent = Vec::new();
        for (at, len) in [1, 2_000, 3, 4, 1_024, 5].into_iter().enumerate() {
            let piece = vec![at as u8; len];
            sent.extend_from_slice(&piece);
            inbox.push(Bytes::from(piece));
        }
        assert_eq!(inbox.len(), sent.len());
        let mut received = Vec::new();
        while !inbox.is_empty() {
            let front = inbox.front();
            let len = front.len().min(700);
            received.extend_from_slice(&front[..len]);
            assert_eq!(inbox.consume(len), len);
        }
        assert_eq!(received, sent);
        assert_eq!((inbox.consume(1), inbox.front()), (0, &b""[..]));
    }
}

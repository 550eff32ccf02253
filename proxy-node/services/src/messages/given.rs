//! Messages written to a puller's connection that the puller has not acknowledged. They may be lost if the
//! connection ends.
//!
//! ```text
//!   written to the connection   |----- acknowledged -----|-- 3 messages --|-- 2 --|
//!   marks                                                                 ^       ^
//! ```

use std::collections::VecDeque;

/// Largest number of marks. When it is reached, messages of several visits share a mark, and all of them
/// count until the last is acknowledged.
const MARKS_MAX: usize = 64;

/// The unacknowledged messages of one puller.
#[derive(Debug)]
pub(super) struct Given {
    /// Bytes written to the connection.
    written: u64,
    /// Position behind the last message of a visit, and the number of its messages.
    marks: VecDeque<(u64, u64)>,
}

impl Given {
    /// Returns the state of a new connection.
    pub(super) fn new() -> Self {
        Given { written: 0, marks: VecDeque::with_capacity(MARKS_MAX) }
    }

    /// Records a visit: `messages` were written completely. `before` and `unacknowledged`: unacknowledged
    /// bytes before and after it.
    pub(super) fn visited(&mut self, messages: u64, before: u32, unacknowledged: u32) {
        self.written += u64::from(unacknowledged.saturating_sub(before));
        if messages == 0 {
            return;
        }
        let is_full = self.marks.len() == MARKS_MAX;
        match self.marks.back_mut().filter(|_| is_full) {
            Some(last) => *last = (self.written, last.1 + messages),
            _ => self.marks.push_back((self.written, messages)),
        }
    }

    /// Removes the messages that have been acknowledged; `unacknowledged` bytes have not.
    pub(super) fn acknowledged(&mut self, unacknowledged: u32) {
        let until = self.written - u64::from(unacknowledged).min(self.written);
        while self.marks.pop_front_if(|(end, _)| *end <= until).is_some() {}
    }

    /// Returns the number of messages that have not been acknowledged completely.
    pub(super) fn messages(&self) -> u64 {
        self.marks.iter().map(|(_, messages)| messages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_count_until_their_last_byte_is_acknowledged() {
        let mut given = Given::new();
        given.visited(0, 0, 70); // the greeting
        given.visited(3, 70, 100);
        given.visited(2, 100, 150);
        assert_eq!(given.messages(), 5);
        for (unacknowledged, left) in [(51, 5), (50, 2), (1, 2), (0, 0)] {
            given.acknowledged(unacknowledged);
            assert_eq!(given.messages(), left, "{unacknowledged} bytes on their way");
        }
        given.visited(1, 0, 10);
        assert_eq!(given.messages(), 1);
    }

    #[test]
    fn the_marks_are_bounded_and_no_message_is_forgotten() {
        let mut given = Given::new();
        (0..1_000).for_each(|n| given.visited(1, n * 10, n * 10 + 10));
        assert_eq!((given.messages(), given.marks.len()), (1_000, MARKS_MAX));
        given.acknowledged(9_990);
        assert_eq!(given.messages(), 999);
        given.acknowledged(5);
        assert_eq!(given.messages(), 1_000 - 63, "as many as share the last mark");
        given.acknowledged(0);
        assert_eq!(given.messages(), 0);
    }
}

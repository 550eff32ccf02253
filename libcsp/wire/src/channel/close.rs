//! The argument of SHUTDOWN, CLOSE and RESET of a process: how much of the connection the process has read.

/// The count is known. Processes of older builds send 0, and an error number with RESET.
const KNOWN: u32 = 1 << 31;

/// Returns the argument of a process that has read this many bytes of a connection, modulo 2³¹; `None`: it
/// does not know, since another process has read some of them.
///
/// ```text
///  31: the count is known | 0..30: bytes that were read, modulo 2³¹
/// ```
pub const fn close_argument(read: Option<u32>) -> u32 {
    match read {
        Some(read) => KNOWN | read & !KNOWN,
        None => 0,
    }
}

/// Returns how many of the `sent` bytes of a connection its process has read, according to this argument:
/// `None` if it does not say so, or claims more than was sent. Less than 2³¹ bytes are on their way at once.
pub const fn bytes_read(argument: u32, sent: u64) -> Option<u64> {
    if argument & KNOWN == 0 {
        return None;
    }
    let unread = (sent as u32).wrapping_sub(argument) & !KNOWN;
    sent.checked_sub(unread as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_process_that_does_not_know_says_nothing() {
        assert_eq!(bytes_read(close_argument(None), 100), None);
        assert_eq!(bytes_read(close_argument(Some(0)), 0), Some(0));
        assert_eq!(bytes_read(close_argument(Some(101)), 100), None, "it cannot have read that");
    }

    proptest! {
        #[test]
        fn the_count_is_what_the_process_has_read(read: u64, unread in 0_u32..1 << 31) {
            let read = read >> 1;
            let sent = read + u64::from(unread);
            prop_assert_eq!(bytes_read(close_argument(Some(read as u32)), sent), Some(read));
        }

        #[test]
        fn no_argument_claims_more_than_was_sent(argument: u32, sent: u64) {
            prop_assert!(bytes_read(argument, sent).is_none_or(|read| read <= sent));
        }
    }
}

//! What stamps of handlers must show: every message was counted once, in its publisher's order, over all
//! swaps, and by versions that never go back.

use std::collections::{BTreeMap, BTreeSet};

use super::handlers::STAMP_LEN;

/// What the handler has added to a message that a receiver got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    /// The message.
    pub sender: u32,
    pub number: u32,
    /// The module's letter.
    pub letter: u8,
    /// Messages that the handler had counted, this one included.
    pub count: u32,
    /// The handler's version.
    pub version: u32,
}

/// Returns letter, count and version of a stamp's frame.
pub(super) fn read(frame: &[u8]) -> Option<(u8, u32, u32)> {
    let frame: &[u8; STAMP_LEN] = frame.try_into().ok()?;
    let version = std::str::from_utf8(&frame[8..]).ok()?.parse().ok()?;
    Some((frame[0], u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]), version))
}

/// Checks the stamps that receivers of a channel have got since it was added; `published` messages arrived
/// there. `complete`: nothing was dropped, and these receivers have together got everything.
pub(super) fn check<'a>(
    stamps: impl Iterator<Item = &'a Stamp>,
    published: u64,
    complete: bool,
) -> Result<(), String> {
    let mut by_count = BTreeMap::new();
    for stamp in stamps {
        // Several subscribers get one message, which was stamped once.
        if let Some(other) = by_count.insert(stamp.count, *stamp).filter(|other| other != stamp) {
            return Err(format!("the handler has counted two messages as one: {other:?} {stamp:?}"));
        }
    }
    let distinct: BTreeSet<_> = by_count.values().map(|stamp| (stamp.sender, stamp.number)).collect();
    if distinct.len() < by_count.len() {
        return Err("the handler has counted a message twice".to_owned());
    }
    let all: Vec<&Stamp> = by_count.values().collect();
    if let Some(pair) = all.windows(2).find(|pair| pair[0].version > pair[1].version) {
        return Err(format!("a version went back: {pair:?}"));
    }
    let mut last = BTreeMap::new();
    for stamp in &all {
        if last.insert(stamp.sender, stamp.number).is_some_and(|before| before > stamp.number) {
            return Err(format!("the handler had a message after a later one of its sender: {stamp:?}"));
        }
    }
    let most = all.last().map_or(0, |stamp| u64::from(stamp.count));
    if all.first().is_some_and(|stamp| stamp.count == 0) || most > published {
        return Err(format!("the handler has counted {most} of {published} messages"));
    }
    match complete && (all.len() as u64, most) != (published, published) {
        true => {
            Err(format!("{} of {published} messages were stamped, the last one as number {most}", all.len()))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sender: u32, number: u32, count: u32, version: u32) -> Stamp {
        Stamp { sender, number, letter: b'a', count, version }
    }

    #[test]
    fn what_a_handler_must_not_do_is_found() {
        let good = [stamp(1, 0, 1, 1), stamp(2, 0, 2, 1), stamp(1, 1, 3, 2), stamp(1, 1, 3, 2)];
        assert_eq!(check(good.iter(), 3, true), Ok(()));
        assert_eq!(check(good[..2].iter(), 3, false), Ok(()));
        for (bad, published, complete) in [
            // Lost, counted without being published, and a state that began anew or was doubled.
            (vec![stamp(1, 0, 1, 1), stamp(1, 2, 3, 1)], 3, true),
            (vec![stamp(1, 0, 2, 1)], 1, false),
            (vec![stamp(1, 0, 1, 1), stamp(1, 1, 1, 2)], 2, false),
            (vec![stamp(1, 0, 1, 1), stamp(1, 0, 2, 1)], 2, false),
            // Versions and messages that go back.
            (vec![stamp(1, 0, 1, 2), stamp(1, 1, 2, 1)], 2, false),
            (vec![stamp(1, 1, 1, 1), stamp(1, 0, 2, 1)], 2, false),
        ] {
            assert!(check(bad.iter(), published, complete).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn stamps_are_read_and_other_frames_are_not() {
        assert_eq!(read(b"b\0\0\0\x05\0\0\x0000000012"), Some((b'b', 5, 12)));
        assert_eq!(read(b"b\0\0\0\x05\0\0\x00"), None);
        assert_eq!(read(b"b\0\0\0\x05\0\0\x00zeros..."), None);
    }
}

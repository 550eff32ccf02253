//! The rings in shared memory, with a peer that writes arbitrary values into them.
//!
//! The ring's own source is compiled here, over an arena in ordinary memory that checks the bounds of every
//! access.

#[allow(dead_code, unreachable_pub, reason = "a part of it is not driven from here")]
#[path = "../../../libcsp/vi/src/shm/ring.rs"]
mod inner;
mod layout;
mod sync;

use std::sync::atomic::Ordering;

use inner::{Receiver, Sender, Violation};
use layout::{Arena, GEOMETRY};

use crate::Target;

/// Steps of a ring's two ends and of a hostile peer.
pub static SHM_RING: Target = Target::plain("shm_ring", shm_ring, Vec::new);

const DEPTH: usize = GEOMETRY.depth;
const MESSAGE_LEN: usize = GEOMETRY.message_len;

/// The input as a sequence of steps: calls of the ring, and writes of the peer.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a number close to those that a ring contains, or any other.
    fn word(&mut self, near: u64) -> Option<u64> {
        Some(match self.byte()? {
            small @ 0..=199 => near.wrapping_add(u64::from(small % 9)).wrapping_sub(4),
            200..=229 => u64::from(self.byte()?) << 32 | u64::from(self.byte()?),
            _ => u64::MAX - u64::from(self.byte()?),
        })
    }
}

/// Drives both ends of one direction while the peer changes the memory.
fn shm_ring(bytes: &[u8]) {
    let arena = Arena::new();
    Receiver::publish_all(&arena);
    let (mut sender, mut receiver) = (Sender::new(arena), Receiver::new(arena));
    let mut steps = Steps(bytes);
    let lends = steps.byte().is_some_and(|byte| byte & 1 == 1);
    if lends {
        sender.lend();
    }
    let mut held: Vec<(u32, u32)> = Vec::new();
    let mut claimed = std::collections::VecDeque::new();
    while let Some(step) = steps.byte() {
        let done = match step % 10 {
            0 | 1 if lends => claim_or_publish(&mut sender, &mut claimed, step & 16 == 0),
            0 | 1 => {
                let len = usize::from(step >> 3).min(MESSAGE_LEN);
                let write = |arena: &Arena, slot| arena.write(slot, 0, &[step; MESSAGE_LEN][..len]);
                sender.send(step.into(), len, step.into(), write).map(drop)
            }
            2 | 3 => receiver.receive().map(|message| {
                let Some(message) = message else { return };
                assert!((message.slot as usize) < DEPTH && message.len as usize <= MESSAGE_LEN);
                assert!(held.iter().all(|(slot, _)| *slot != message.slot), "a slot was returned twice");
                held.push((message.slot, message.len));
            }),
            4 => {
                check_reading(&receiver, &held, usize::from(step >> 2));
                Ok(())
            }
            5 => {
                let posted = held.pop().map(|(slot, _)| receiver.post(slot, step & 64 == 0));
                assert!(posted.is_none_or(|done| done.is_some()));
                Ok(())
            }
            _ => {
                scribble(&mut steps, &arena, step, receiver.progress() + 1);
                Ok(())
            }
        };
        // A violation ends the VI.
        if done == Err(Violation) {
            return;
        }
    }
}

fn claim_or_publish(
    sender: &mut Sender,
    claimed: &mut std::collections::VecDeque<u16>,
    claim: bool,
) -> Result<(), Violation> {
    if claim {
        if let Some(slot) = sender.claim()? {
            assert!(usize::from(slot) < DEPTH && !claimed.contains(&slot), "a slot was claimed twice");
            claimed.push_back(slot);
        }
    } else if let Some(slot) = claimed.pop_front() {
        assert!(sender.publish(slot, MESSAGE_LEN as u32, 0).is_some());
    } else {
        assert!(sender.publish(0, 0, 0).is_none());
    }
    Ok(())
}

fn check_reading(receiver: &Receiver, held: &[(u32, u32)], offset: usize) {
    let mut into = [0; MESSAGE_LEN + 8];
    for slot in 0..DEPTH as u32 + 2 {
        let wanted = held.iter().find(|(of, _)| *of == slot);
        let left = wanted.map(|(_, len)| (*len as usize).saturating_sub(offset));
        assert_eq!(receiver.read(slot, offset, &mut into), left);
    }
}

fn scribble(steps: &mut Steps<'_>, arena: &Arena, step: u8, near: u64) {
    let Some(place) = steps.byte() else { return };
    let slot = usize::from(place) % DEPTH;
    match step % 10 {
        6 => {
            let Some(number) = steps.word(near) else { return };
            let Some(slot) = steps.byte() else { return };
            arena.posted(place.into()).store(number << 12 | u64::from(slot % 9), Ordering::Release);
        }
        7 => {
            let Some(tag) = steps.word(near) else { return };
            arena.tag(slot).store(tag, Ordering::Release);
        }
        8 => {
            let Some(len) = steps.word(MESSAGE_LEN as u64) else { return };
            arena.meta(slot).store(len << 32 | 7, Ordering::Release);
        }
        _ => {
            arena.armed().store(place.into(), Ordering::Release);
            arena.closed().store(place.into(), Ordering::Release);
        }
    }
}

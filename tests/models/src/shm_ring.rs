//! Properties of the ring that must hold in every interleaving.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::layout::Arena;
use crate::ring::{Receiver, Sender, Sending};
use crate::sync::fence;

/// Largest number of preemptions of a thread in one run. Without a bound there are too many runs; two or
/// three find nearly all errors.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

fn ends(depth: usize) -> (Sender, Receiver) {
    let arena = Arena::new(depth);
    Receiver::publish_all(&arena);
    (Sender::new(arena), Receiver::new(arena))
}

fn send(sender: &mut Sender, number: u8) -> Sending {
    sender.send(number.into(), 1, 0, |arena, slot| arena.write(slot, 0, &[number])).unwrap()
}

/// Receives the next message, checks its number against its content, and posts its slot again.
fn receive(receiver: &mut Receiver) -> Option<u8> {
    let message = receiver.receive().unwrap()?;
    let mut byte = [0];
    assert_eq!(receiver.read(message.slot, 0, &mut byte), Some(1));
    assert_eq!(u32::from(byte[0]), message.immediate);
    receiver.post(message.slot, true).unwrap();
    Some(byte[0])
}

#[test]
fn messages_arrive_whole_and_in_order_though_slots_are_used_again() {
    const MESSAGES: u8 = 3;
    check(|| {
        let (mut sender, mut receiver) = ends(2);
        let sending = thread::spawn(move || {
            for number in 0..MESSAGES {
                while send(&mut sender, number) == Sending::Full {
                    thread::yield_now();
                }
            }
        });
        for number in 0..MESSAGES {
            let got = loop {
                match receive(&mut receiver) {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, number);
        }
        sending.join().unwrap();
        assert_eq!(receive(&mut receiver), None);
    });
}

#[test]
fn an_armed_receiver_that_found_nothing_is_woken() {
    check(|| {
        let (mut sender, mut receiver) = ends(2);
        // Represents the wake packet on the socket.
        let woken = Arc::new(AtomicBool::new(false));
        let wake = Arc::clone(&woken);
        let sending = thread::spawn(move || {
            if send(&mut sender, 7) == Sending::Wake {
                wake.store(true, Ordering::Release);
            }
        });
        receiver.arm();
        fence(Ordering::SeqCst);
        let slept = !receiver.is_ready();
        sending.join().unwrap();
        // A receiver that would have slept must have been sent a wake when the sender has finished.
        assert!(!slept || woken.load(Ordering::Acquire), "a lost wake");
        receiver.disarm();
        assert_eq!(receive(&mut receiver), Some(7));
    });
}

#[test]
fn a_claimed_slot_is_seen_only_when_it_is_published() {
    check(|| {
        let (mut sender, mut receiver) = ends(2);
        sender.lend();
        let arena = sender.arena();
        let sending = thread::spawn(move || {
            let slots = [sender.claim().unwrap().unwrap(), sender.claim().unwrap().unwrap()];
            // Filled in a different order than claimed, as a device may.
            for slot in [slots[1], slots[0]] {
                arena.write(slot.into(), 0, &[slot as u8]);
            }
            for slot in slots {
                sender.publish(slot, 1, slot.into()).unwrap();
            }
        });
        let mut got = 0;
        while got < 2 {
            match receive(&mut receiver) {
                Some(number) => {
                    assert_eq!(number, got);
                    got += 1;
                }
                None => thread::yield_now(),
            }
        }
        sending.join().unwrap();
    });
}

#[test]
fn what_was_sent_before_the_close_is_seen_with_it() {
    check(|| {
        let (mut sender, mut receiver) = ends(2);
        let sending = thread::spawn(move || {
            send(&mut sender, 1);
            sender.close(true);
        });
        if receiver.is_closed() {
            assert_eq!(receive(&mut receiver), Some(1));
        }
        sending.join().unwrap();
    });
}

//! Faults and virtual time. `tests/conformance.rs` tests what all providers have in common.

use csp_types::Duration;

use super::*;

const CONFIG: ViConfig = ViConfig { receive_depth: 4, send_depth: 4, message_len: 64 };

struct Pair {
    fabric: MemoryFabric,
    a: MemoryProvider,
    b: MemoryProvider,
    from_a: ViId,
    from_b: ViId,
}

fn established(p: &mut MemoryProvider, expected: ViId) {
    assert!(matches!(p.poll_event(), Some(Event::Established { vi, .. }) if vi == expected));
}

fn pair() -> Pair {
    let fabric = MemoryFabric::with_seed(7);
    let (mut a, mut b) = (fabric.provider("a"), fabric.provider("b"));
    b.listen(&ViAddress::Name("b".into())).unwrap();
    let from_a = a.connect(&ViAddress::Name("b".into()), CONFIG, b"hi").unwrap();
    let Some(Event::Request(request)) = b.poll_event() else { panic!("no request") };
    let from_b = b.accept(request.id, CONFIG, b"").unwrap();
    established(&mut a, from_a);
    established(&mut b, from_b);
    Pair { fabric, a, b, from_a, from_b }
}

fn received(p: &mut MemoryProvider) -> Option<u32> {
    match p.poll()? {
        Completion::Received { vi, buffer, immediate, .. } => {
            p.post_recv(vi, buffer).unwrap();
            Some(immediate)
        }
        Completion::Sent { .. } => panic!("nothing was signalled"),
    }
}

#[test]
fn a_delayed_message_arrives_at_its_time_and_never_overtakes() {
    let mut p = pair();
    let ms = Duration::from_millis;
    assert!(p.fabric.set_delay(p.from_a, Delay { fixed: ms(5), jitter: Duration::ZERO }));
    p.a.post_send(p.from_a, 0, 1, &[b"x"], false).unwrap();
    p.fabric.set_delay(p.from_a, Delay::default());
    p.a.post_send(p.from_a, 0, 2, &[b"y"], false).unwrap();
    assert_eq!(p.fabric.next_due(), Some(Instant::ZERO + ms(5)));
    p.fabric.advance(Instant::ZERO + ms(4));
    assert_eq!(received(&mut p.b), None);
    p.fabric.advance(Instant::ZERO + ms(5));
    assert_eq!((received(&mut p.b), received(&mut p.b)), (Some(1), Some(2)));
}

#[test]
fn jitter_replays_from_its_seed() {
    let arrivals = || {
        let mut p = pair();
        p.fabric.set_delay(p.from_a, Delay { fixed: Duration::ZERO, jitter: Duration::from_micros(50) });
        let mut times = Vec::new();
        for i in 0..20 {
            p.a.post_send(p.from_a, 0, i, &[b"x"], false).unwrap();
            if let Some(due) = p.fabric.next_due() {
                p.fabric.advance(due);
            }
            times.push(p.fabric.now());
            assert_eq!(received(&mut p.b), Some(i));
        }
        times
    };
    let first = arrivals();
    assert_eq!(first, arrivals());
    assert!(first.windows(2).any(|w| w[0] != w[1]), "jitter moved nothing");
}

#[test]
fn a_killed_vi_is_unclean_on_both_ends_after_its_last_message() {
    let mut p = pair();
    p.a.post_send(p.from_a, 0, 9, &[b"x"], false).unwrap();
    assert!(p.fabric.kill_vi(p.from_a, InFlight::Delivered));
    assert_eq!(p.a.poll_event(), Some(Event::Disconnected { vi: p.from_a, clean: false }));
    assert_eq!(p.b.poll_event(), None);
    assert_eq!(received(&mut p.b), Some(9));
    assert_eq!(p.b.poll_event(), Some(Event::Disconnected { vi: p.from_b, clean: false }));
    assert_eq!(p.b.post_send(p.from_b, 0, 0, &[], false), Err(ViError::NotConnected));
}

#[test]
fn a_lost_node_takes_its_messages_along() {
    let mut p = pair();
    p.a.post_send(p.from_a, 0, 9, &[b"x"], false).unwrap();
    assert!(p.fabric.kill_node("a", InFlight::Lost));
    assert_eq!(received(&mut p.b), None);
    assert_eq!(p.b.poll_event(), Some(Event::Disconnected { vi: p.from_b, clean: false }));
    assert_eq!(p.a.post_send(p.from_a, 0, 0, &[], false), Err(ViError::NotConnected));
    assert!(!p.fabric.kill_node("a", InFlight::Lost), "dead already");
}

#[test]
fn a_paused_node_gets_nothing_until_resumed() {
    let mut p = pair();
    p.fabric.pause_node("b", true);
    p.a.post_send(p.from_a, 0, 3, &[b"x"], false).unwrap();
    assert_eq!(received(&mut p.b), None);
    assert_eq!(p.b.arm(), Ok(Armed::Armed));
    p.fabric.pause_node("b", false);
    assert_eq!(p.b.arm(), Ok(Armed::Busy));
    assert_eq!(received(&mut p.b), Some(3));
}

#[test]
fn nothing_passes_a_cut_until_it_is_mended() {
    let mut p = pair();
    p.fabric.cut("a", "b", true);
    p.a.post_send(p.from_a, 0, 3, &[b"x"], false).unwrap();
    p.a.disconnect(p.from_a).unwrap();
    p.b.listen(&ViAddress::Name("y".into())).unwrap();
    p.a.connect(&ViAddress::Name("y".into()), CONFIG, b"").unwrap();
    assert_eq!((received(&mut p.b), p.b.poll_event()), (None, None));
    p.fabric.cut("a", "b", false);
    assert!(matches!(p.b.poll_event(), Some(Event::Request(_))), "the end waits for the message");
    assert_eq!(received(&mut p.b), Some(3));
    assert_eq!(p.b.poll_event(), Some(Event::Disconnected { vi: p.from_b, clean: true }));
}

#[test]
fn a_dying_listener_refuses_pending_requests() {
    let fabric = MemoryFabric::new();
    let (mut a, mut b) = (fabric.provider("a"), fabric.provider("b"));
    b.listen(&ViAddress::Name("x".into())).unwrap();
    let vi = a.connect(&ViAddress::Name("x".into()), CONFIG, b"").unwrap();
    drop(b);
    assert_eq!(a.poll_event(), Some(Event::Refused { vi, reason: ViError::Rejected }));
    let vi = a.connect(&ViAddress::Name("x".into()), CONFIG, b"").unwrap();
    let refused = a.poll_event();
    assert!(
        matches!(refused, Some(Event::Refused { vi: v, reason: ViError::Unreachable { .. } }) if v == vi)
    );
}

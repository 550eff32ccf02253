//! Whose silence means death, and other ends of a link.

use csp_transport::{DeathCause, DownReason, Purpose, SendError};
use csp_transport::{LinkEvent, LinkId, MessageKind};
use csp_types::Duration;
use csp_vi::memory::InFlight;

use crate::harness::*;

/// Stops a daemon without notice and runs the other side by `act`; returns the time until that side noticed.
fn time_to_know(dies: &str, mut act: impl FnMut(&World, &mut Side, &mut Side)) -> Duration {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(16), world.network_node(16));
    let (at_nn, at_proxy) = world.tunnel_up(&mut nn, &mut proxy);
    world.run(ms(500), &mut [&mut nn, &mut proxy]);
    let stopped = world.now;
    world.fabric.pause_node(dies, true);
    let (left, link) = if dies == PROXY { (&mut nn, at_nn) } else { (&mut proxy, at_proxy) };
    let mut none = world.network_node(16);
    while left.down(link).is_none() {
        act(&world, left, &mut none);
        world.step(ms(1), &mut [left]);
        assert!(world.now - stopped < ms(5_000), "never known");
    }
    assert_eq!(left.down(link), Some(DownReason::Died(DeathCause::Silent)));
    assert_eq!(left.counters().died_silent, 1);
    world.now - stopped
}

#[test]
fn a_daemon_that_falls_silent_is_known_dead_within_a_second_at_idle_and_under_load() {
    for dies in [PROXY, "nn-1"] {
        let idle = time_to_know(dies, |_, _, _| {});
        let load = time_to_know(dies, |world, side, _| {
            let link = side.up()[0];
            while side.send(world.now, link, b"load") {}
        });
        for time in [idle, load] {
            assert!(time >= ms(600) && time <= ms(1_000), "{dies}: {time:?}");
        }
    }
}

#[test]
fn a_sleeping_owner_that_wakes_only_for_timeouts_notices_too() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(16), world.network_node(16));
    let (at_nn, _) = world.tunnel_up(&mut nn, &mut proxy);
    world.fabric.pause_node(PROXY, true);
    let (stopped, mut wakes) = (world.now, 0);
    while nn.down(at_nn).is_none() {
        let next = nn.endpoint.next_timeout().expect("an Up link to a daemon always has a deadline");
        assert!(next > world.now, "a timeout that is over would make the owner spin");
        let by = next - world.now;
        world.step(by, &mut [&mut nn]);
        wakes += 1;
        assert!(wakes < 20, "more wakes than heartbeats");
    }
    assert!(world.now - stopped <= ms(1_000), "{:?}", world.now - stopped);
}

#[test]
fn a_process_that_sleeps_is_not_dead_and_finds_its_messages() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 16));
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    assert!(proxy.send(world.now, at_proxy, b"while you sleep"));
    let before = proxy.counters().messages_sent;
    world.run(Duration::from_secs(60), &mut [&mut proxy]);
    assert_eq!(proxy.up(), [at_proxy]);
    assert!(proxy.counters().messages_sent - before <= 1, "one PING is enough to be answered later");
    // The process wakes: the proxy's silence during its sleep is no death either.
    world.run(ms(300), &mut [&mut app, &mut proxy]);
    assert_eq!(app.messages[0].body, b"while you sleep");
    assert_eq!(app.up(), [at_app]);
    assert!(app.send(world.now, at_app, b"good morning"));
    world.run(ms(5_000), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.messages[0].body, b"good morning");
    assert_eq!((app.up(), proxy.up()), (vec![at_app], vec![at_proxy]));
}

#[test]
fn a_process_that_was_stopped_in_the_middle_takes_its_proxy_for_alive() {
    for stopped in [500, 900, 1_100, 5_000] {
        let (mut world, mut app, mut proxy, at_app, at_proxy) = idle_channel(World::new());
        assert!(app.send(world.now, at_app, b"before"));
        world.run(ms(10), &mut [&mut app, &mut proxy]);
        world.run(ms(stopped), &mut [&mut proxy]);
        world.run(ms(2_000), &mut [&mut app, &mut proxy]);
        assert_eq!(app.endpoint.next_timeout(), None, "quiet after {stopped} ms");
        assert!(app.send(world.now, at_app, b"after"));
        world.run(ms(2_000), &mut [&mut app, &mut proxy]);
        assert_eq!((app.down(at_app), proxy.down(at_proxy)), (None, None), "stopped for {stopped} ms");
        assert_eq!(proxy.messages.len(), 2);
    }
}

#[test]
fn a_process_that_looks_seldom_notices_that_the_proxy_is_stopped() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 16));
    let (at_app, _) = world.channel_up(&mut app, &mut proxy);
    world.fabric.pause_node(PROXY, true);
    for _ in 0..5 {
        world.step(ms(700), &mut [&mut app]);
    }
    assert_eq!(app.down(at_app), Some(DownReason::Died(DeathCause::Silent)));
}

/// A process's link that was idle for some seconds: world, process, proxy, and the link at either side.
fn idle_channel(mut world: World) -> (World, Side, Side, LinkId, LinkId) {
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 16));
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    world.run(ms(3_000), &mut [&mut app, &mut proxy]);
    (world, app, proxy, at_app, at_proxy)
}

fn sent(sides: [&Side; 2]) -> u64 {
    sides.into_iter().map(|side| side.counters().messages_sent).sum()
}

#[test]
fn an_idle_process_whose_host_reports_its_death_is_not_pinged() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = idle_channel(World::new());
    let before = sent([&app, &proxy]);
    assert_eq!(
        (app.endpoint.next_timeout(), proxy.endpoint.next_timeout()),
        (None, None),
        "nothing to wake for"
    );
    world.run(ms(60_000), &mut [&mut app, &mut proxy]);
    assert_eq!(sent([&app, &proxy]), before);
    // The hang-up is noticed nevertheless.
    world.fabric.kill_node(PROXY, InFlight::Delivered);
    world.step(ms(1), &mut [&mut app]);
    assert_eq!(app.down(at_app), Some(DownReason::Died(DeathCause::HangUp)));
    assert_eq!(proxy.down(at_proxy), None);
}

#[test]
fn an_idle_process_whose_vi_can_break_keeps_its_heartbeat() {
    let (mut world, mut app, mut proxy, ..) = idle_channel(World::breakable(1));
    let before = sent([&app, &proxy]);
    world.run(ms(10_000), &mut [&mut app, &mut proxy]);
    assert!((90..=220).contains(&(sent([&app, &proxy]) - before)));
}

#[test]
fn a_proxy_that_is_stopped_is_noticed_within_a_second_of_the_next_use() {
    for first_says in [true, false] {
        let (mut world, mut app, mut proxy, at_app, at_proxy) = idle_channel(World::new());
        if !first_says {
            // The proxy's last message wakes the link as well.
            assert!(proxy.send(world.now, at_proxy, b"last words"));
        }
        world.fabric.pause_node(PROXY, true);
        if first_says {
            world.run(ms(30_000), &mut [&mut app]);
            assert_eq!(app.down(at_app), None, "idle");
            assert!(app.send(world.now, at_app, b"are you there?"));
        } else {
            world.step(ms(1), &mut [&mut app]);
        }
        let used = world.now;
        while app.down(at_app).is_none() {
            let next = app.endpoint.next_timeout().expect("a link in use has a deadline") - world.now;
            world.step(next, &mut [&mut app]);
            assert!(world.now - used <= ms(1_000), "not known");
        }
        assert_eq!(app.down(at_app), Some(DownReason::Died(DeathCause::Silent)));
        assert!(world.now - used >= ms(800), "silence of before the use does not count");
    }
}

#[test]
fn a_process_that_only_sends_receives_enough_from_the_proxy() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = idle_channel(World::new());
    for n in 0..50 {
        assert!(app.send(world.now, at_app, b"more"), "message {n}");
        world.run(ms(150), &mut [&mut app, &mut proxy]);
    }
    assert_eq!((app.down(at_app), proxy.down(at_proxy)), (None, None));
}

#[test]
fn a_proxy_that_is_asked_late_has_its_time_to_answer() {
    let (mut world, mut app, mut proxy, at_app, _) = idle_channel(World::new());
    assert!(app.send(world.now, at_app, b"request"));
    // The process computes; the proxy does not run when the PING finally arrives.
    world.run(ms(850), &mut []);
    world.run(ms(500), &mut [&mut app]);
    assert_eq!(app.down(at_app), None);
    world.run(ms(3_000), &mut [&mut app, &mut proxy]);
    assert_eq!(app.down(at_app), None);
    assert_eq!(app.endpoint.next_timeout(), None);
}

#[test]
fn a_send_between_the_last_answer_and_the_quiet_has_a_deadline() {
    for pause in (0..1_200).step_by(50) {
        let (mut world, mut app, mut proxy, at_app, _) = idle_channel(World::new());
        assert!(app.send(world.now, at_app, b"before"));
        world.run(ms(pause), &mut [&mut app, &mut proxy]);
        world.fabric.pause_node(PROXY, true);
        assert!(app.send(world.now, at_app, b"after"));
        let used = world.now;
        while app.down(at_app).is_none() {
            let next = app.endpoint.next_timeout().expect("a link in use has a deadline") - world.now;
            world.step(next, &mut [&mut app]);
            assert!(world.now - used <= ms(1_200), "not known {pause} ms after");
        }
    }
}

#[test]
fn a_host_that_stood_still_does_not_take_its_peers_for_dead() {
    let mut world = World::new();
    let (mut proxy, mut nn) = (world.proxy(16), world.network_node(16));
    world.tunnel_up(&mut nn, &mut proxy);
    world.run(ms(500), &mut [&mut nn, &mut proxy]);
    // No side runs for 10 s; then the network node happens to run first.
    world.now += ms(10_000);
    world.fabric.advance(world.now);
    nn.turn(world.now);
    world.run(ms(2_000), &mut [&mut nn, &mut proxy]);
    assert_eq!((nn.up().len(), proxy.up().len()), (1, 1), "{:?} {:?}", nn.events, proxy.events);
}

#[test]
fn close_delivers_what_was_sent_and_both_sides_report_closed() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 16));
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    assert!(app.send(world.now, at_app, b"last words"));
    app.endpoint.close(world.now, at_app);
    assert_eq!(app.endpoint.send(world.now, at_app, MessageKind::Channel, 0, &[b"x"]), Err(SendError::Down));
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.messages[0].body, b"last words");
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Closed));
    assert_eq!(app.down(at_app), Some(DownReason::Closed));
    assert_eq!((app.counters().links_closed, proxy.counters().links_closed), (1, 1));
    assert_eq!((app.endpoint.links().count(), proxy.endpoint.links().count()), (0, 0));
}

#[test]
fn a_hang_up_is_known_at_once_after_what_was_delivered() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 16));
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    proxy.receives = false;
    assert!(app.send(world.now, at_app, b"last words"));
    world.fabric.kill_node("p", InFlight::Delivered);
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.down(at_proxy), None, "a message still waits");
    assert_eq!(proxy.endpoint.credits(at_proxy), 0, "but nothing can be sent any more");
    proxy.receives = true;
    world.step(ms(1), &mut [&mut proxy]);
    assert_eq!(proxy.messages[0].body, b"last words");
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::HangUp)));
}

#[test]
fn a_link_slot_that_is_used_again_has_another_id() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(16), world.process("p", 16));
    let mut seen = Vec::new();
    for _ in 0..20 {
        let (link, at_proxy) = world.channel_up(&mut app, &mut proxy);
        assert!(!seen.contains(&link));
        assert!(at_proxy.index() < 8);
        seen.push(link);
        app.endpoint.close(world.now, link);
        world.step(ms(1), &mut [&mut app, &mut proxy]);
    }
    let stale = seen[0];
    assert_eq!(app.endpoint.credits(stale), 0);
    app.endpoint.close(world.now, stale);
    assert_eq!(app.events.iter().filter(|e| matches!(e, LinkEvent::Down { .. })).count(), 20);
}

#[test]
fn a_full_table_refuses_further_links() {
    let mut world = World::new();
    let mut app = world.process("p", 16);
    let token = process_token("p", 1);
    let ids: Vec<_> = (0..8).map(|i| connect(&world, &mut app, Purpose::Channel, (i, 8), &token)).collect();
    let more =
        app.endpoint.connect(world.now, &world.address(), Purpose::Channel, 0, (0, 8), token.as_bytes());
    assert!(matches!(more, Err(csp_vi::ViError::Exhausted(_))), "{more:?}");
    world.step(ms(1), &mut [&mut app]);
    assert!(ids.iter().all(|&id| matches!(app.down(id), Some(DownReason::Unreachable { .. }))));
}

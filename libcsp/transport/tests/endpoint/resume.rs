//! Links whose VI breaks while both ends live.

use csp_transport::token::CLOCK_SKEW_S;
use csp_transport::{DeathCause, DownReason, LinkId, MessageKind, Purpose, SendError};
use csp_types::{Duration, Instant};
use csp_vi::memory::InFlight;

use crate::harness::*;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Breaks the VI below a link; the arguments are the times after which either side notices.
pub fn break_vi(world: &World, side: &Side, link: LinkId, own: u64, peers: u64) -> bool {
    let vi = side.endpoint.link(link).unwrap().vi;
    world.fabric.break_vi(vi, (ms(own), ms(peers)))
}

/// A process's channel link that can break: world, process, proxy, and the link at either side.
fn channel(seed: u64, depth: u32) -> (World, Side, Side, LinkId, LinkId) {
    let mut world = World::breakable(seed);
    let (mut proxy, mut app) = (world.proxy(depth), world.process("p", depth));
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    (world, app, proxy, at_app, at_proxy)
}

/// The same, after all messages of its handshake were delivered.
fn settled_channel() -> (World, Side, Side, LinkId, LinkId) {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    world.run(ms(150), &mut [&mut app, &mut proxy]);
    (world, app, proxy, at_app, at_proxy)
}

fn received(side: &Side) -> Vec<u64> {
    side.messages.iter().map(|m| u64::from_le_bytes(*m.body.first_chunk().unwrap())).collect()
}

/// Sends the numbers from `next` on, as far as there is credit and at most `burst` of them, with bodies of
/// all lengths.
fn send_some(side: &mut Side, now: Instant, link: LinkId, next: &mut u64, until: u64, random: &mut Random) {
    for _ in 0..random.below(12) {
        if *next == until {
            return;
        }
        let mut body = next.to_le_bytes().to_vec();
        body.resize(8 + random.below(900) as usize, *next as u8);
        if !side.send(now, link, &body) {
            return;
        }
        *next += 1;
    }
}

/// Load in both directions while the VI breaks repeatedly, also in the middle of resumption.
fn check_nothing_is_lost(seed: u64, messages: u64) {
    let random = &mut Random(seed);
    let depth = 4 + random.below(13) as u32;
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(seed, depth);
    let (mut to_proxy, mut to_app, mut breaks, mut unread) = (0, 0, 0, 0);
    for _ in 0..20_000 {
        send_some(&mut app, world.now, at_app, &mut to_proxy, messages, random);
        send_some(&mut proxy, world.now, at_proxy, &mut to_app, messages, random);
        if random.below(25) == 0 {
            let broken = break_vi(&world, &app, at_app, random.below(20), random.below(20));
            (breaks, unread) = (breaks + u64::from(broken), unread + u64::from(broken));
        }
        if random.below(10) == 0 || unread > 2 {
            (app.receives, proxy.receives) = (random.below(3) > 0, random.below(3) > 0);
            if unread > 2 {
                (app.receives, proxy.receives, unread) = (true, true, 0);
            }
        }
        world.step(ms(1), &mut [&mut app, &mut proxy]);
        let (events, all) = ([&app.events, &proxy.events], messages as usize);
        assert!(events.iter().all(|events| events.len() == 1), "seed {seed}: {events:?}");
        if (app.messages.len(), proxy.messages.len()) == (all, all) {
            break;
        }
    }
    let expected: Vec<u64> = (0..messages).collect();
    assert_eq!(received(&app), expected, "seed {seed}, after {breaks} breaks");
    assert_eq!(received(&proxy), expected, "seed {seed}, after {breaks} breaks");
    let lengths = proxy.messages.iter().chain(&app.messages);
    assert!(lengths.into_iter().all(|m| m.body[8..].iter().all(|&byte| byte == m.body[0])), "seed {seed}");
    assert!(breaks == 0 || app.counters().links_resumed > 0, "seed {seed}");
}

#[test]
fn a_link_loses_and_doubles_nothing_however_often_its_vi_breaks() {
    for seed in 0..1_000 {
        check_nothing_is_lost(seed, 150);
    }
}

#[test]
fn an_idle_link_is_resumed_whichever_side_notices_first() {
    for (own, peers) in [(0, 0), (0, 50), (50, 0), (0, 350), (20, 300)] {
        let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
        assert!(break_vi(&world, &app, at_app, own, peers));
        world.run(ms(own.max(peers) + 30), &mut [&mut app, &mut proxy]);
        assert_eq!((app.up(), proxy.up()), (vec![at_app], vec![at_proxy]), "{own} {peers}");
        assert!(app.send(world.now, at_app, b"still here") && proxy.send(world.now, at_proxy, b"me too"));
        world.run(ms(5_000), &mut [&mut app, &mut proxy]);
        assert_eq!(
            (&app.messages[0].body[..], &proxy.messages[0].body[..]),
            (&b"me too"[..], &b"still here"[..])
        );
        for side in [&app, &proxy] {
            assert_eq!((side.counters().links_interrupted, side.counters().links_resumed), (1, 1));
            assert_eq!(side.events.len(), 1, "nothing of it is reported to the owner");
        }
    }
}

#[test]
fn a_tunnel_between_daemons_goes_on_too() {
    let mut world = World::breakable(3);
    let (mut proxy, mut nn) = (world.proxy(8), world.network_node(8));
    let (at_nn, at_proxy) = world.tunnel_up(&mut nn, &mut proxy);
    for round in 0..5 {
        assert!(nn.send(world.now, at_nn, &[round]) && proxy.send(world.now, at_proxy, &[round]));
        assert!(break_vi(&world, &nn, at_nn, 3, 5));
        world.run(ms(1_500), &mut [&mut nn, &mut proxy]);
    }
    assert_eq!((nn.up(), proxy.up()), (vec![at_nn], vec![at_proxy]));
    for side in [&nn, &proxy] {
        assert_eq!(side.messages.iter().map(|m| m.body[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn the_owner_lacks_credit_meanwhile_and_reads_what_came_before() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    proxy.receives = false;
    for n in 0..5 {
        assert!(app.send(world.now, at_app, &[n]));
    }
    world.run(ms(5), &mut [&mut app, &mut proxy]);
    world.fabric.pause_node(PROXY, true);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    world.run(ms(5), &mut [&mut app]);
    assert_eq!(app.endpoint.credits(at_app), 0);
    let sent = app.endpoint.send(world.now, at_app, MessageKind::Channel, 0, &[b"x"]);
    assert_eq!(sent, Err(SendError::NoCredit));
    assert!(app.endpoint.link(at_app).unwrap().interrupted);
    world.fabric.pause_node(PROXY, false);
    world.run(ms(20), &mut [&mut app, &mut proxy]);
    assert!(app.endpoint.credits(at_app) > 0 && !app.endpoint.link(at_app).unwrap().interrupted);
    // The old VI's buffers are released by now; the messages in them are kept.
    assert!(app.send(world.now, at_app, &[5]));
    world.run(ms(5), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.messages, []);
    proxy.receives = true;
    world.run(ms(5), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.messages.iter().map(|m| m.body[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(proxy.up(), [at_proxy]);
}

#[test]
fn an_owner_that_reads_nothing_does_not_make_copies_pile_up() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    proxy.receives = false;
    let mut rounds = 0;
    while app.down(at_app).is_none() {
        while app.send(world.now, at_app, &[rounds]) {
            world.run(ms(5), &mut [&mut app, &mut proxy]);
        }
        assert!(break_vi(&world, &app, at_app, 0, 0));
        world.run(ms(20), &mut [&mut app, &mut proxy]);
        rounds += 1;
        assert!(rounds < 10);
    }
    assert_eq!(app.down(at_app), Some(DownReason::Died(DeathCause::HangUp)), "not for ever");
    proxy.receives = true;
    world.run(ms(5), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::HangUp)));
    assert!(proxy.messages.len() >= 4 * 6, "what arrived is given");
}

/// Returns how long a side does not notice the other's end, and why its link then ends.
fn time_to_end(world: &mut World, side: &mut Side, link: LinkId) -> (Duration, DownReason) {
    let start = world.now;
    while side.down(link).is_none() {
        let next = side.endpoint.next_timeout().unwrap_or(world.now + ms(1));
        assert!(next > world.now, "a timeout that is over would make the owner spin");
        let by = (next - world.now).min(ms(5));
        world.step(by, &mut [side]);
        assert!(world.now - start < ms(2_000), "never known");
    }
    (world.now - start, side.down(link).unwrap())
}

#[test]
fn a_peer_that_does_not_come_back_is_dead_in_time() {
    let hang_up = DownReason::Died(DeathCause::HangUp);
    // The process's host is gone; only the VI reports it.
    let (mut world, _app, mut proxy, at_app, at_proxy) = channel(1, 8);
    assert!(break_vi(&world, &_app, at_app, 0, 0));
    let (time, reason) = time_to_end(&mut world, &mut proxy, at_proxy);
    assert!(time >= ms(750) && time <= ms(850), "{time:?}");
    assert_eq!((reason, proxy.counters().died_hang_up), (hang_up.clone(), 1));

    // The same for a process that had computed for long and sent nothing meanwhile.
    let (mut world, _app, mut proxy, at_app, at_proxy) = channel(1, 8);
    world.run(ms(3_000), &mut [&mut proxy]);
    assert!(break_vi(&world, &_app, at_app, 0, 0));
    let (time, reason) = time_to_end(&mut world, &mut proxy, at_proxy);
    assert!(time >= ms(350) && time <= ms(450), "{time:?}");
    assert_eq!(reason, hang_up);

    // The proxy is stopped.
    let (mut world, mut app, _proxy, at_app, _) = channel(1, 8);
    world.fabric.pause_node(PROXY, true);
    world.run(ms(300), &mut [&mut app]);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    let (time, reason) = time_to_end(&mut world, &mut app, at_app);
    assert!(time >= ms(450) && time <= ms(550), "{time:?}");
    assert_eq!(reason, hang_up);

    // It had been stopped for most of a second already.
    let (mut world, mut app, _proxy, at_app, _) = channel(1, 8);
    world.fabric.pause_node(PROXY, true);
    world.run(ms(780), &mut [&mut app]);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    let (time, reason) = time_to_end(&mut world, &mut app, at_app);
    assert!(time <= ms(230), "{time:?}: dead peers are known within a second in all");
    assert_eq!(reason, hang_up);
}

/// A machine that is stopped, for example during live migration, resumes with outdated times.
#[test]
fn a_stopped_host_declares_no_peer_dead() {
    for (away, broken_at) in [(1_000, 1), (1_000, 500), (1_000, 999), (10_000, 10), (10_000, 9_990)] {
        let (mut world, mut app, mut proxy, at_app, at_proxy) = settled_channel();
        world.step(ms(broken_at), &mut []);
        assert!(break_vi(&world, &app, at_app, 0, 0));
        world.step(ms(away - broken_at), &mut []);
        world.run(ms(1_500), &mut [&mut app, &mut proxy]);
        let up = (app.up(), proxy.up());
        assert_eq!(
            up,
            (vec![at_app], vec![at_proxy]),
            "{away} {broken_at}: {:?} {:?}",
            app.events,
            proxy.events
        );
    }
}

/// The machine is also stopped just after the break.
#[test]
fn a_host_that_stops_during_resumption_has_time_left() {
    for (noticed, away) in [(1, 1_000), (20, 1_000), (1, 5_000)] {
        let (mut world, mut app, mut proxy, at_app, at_proxy) = settled_channel();
        assert!(world.fabric.hide_node(PROXY, true));
        assert!(break_vi(&world, &app, at_app, 0, 0));
        world.run(ms(noticed), &mut [&mut app, &mut proxy]);
        assert!(
            app.endpoint.link(at_app).unwrap().interrupted
                && proxy.endpoint.link(at_proxy).unwrap().interrupted
        );
        world.step(ms(away), &mut []);
        world.run(ms(5), &mut [&mut app, &mut proxy]);
        assert!(world.fabric.hide_node(PROXY, false));
        world.run(ms(300), &mut [&mut app, &mut proxy]);
        let up = (app.up(), proxy.up());
        assert_eq!(
            up,
            (vec![at_app], vec![at_proxy]),
            "{noticed} {away}: {:?} {:?}",
            app.events,
            proxy.events
        );
    }
}

/// A process that runs only when the endpoint's timeout requires it counts as running in time.
#[test]
fn sleeping_until_the_next_deadline_is_not_being_away() {
    let (mut world, mut app, _proxy, at_app, _) = channel(1, 8);
    world.fabric.pause_node(PROXY, true);
    let began = world.now;
    while world.now < began + ms(700) {
        let next = app.endpoint.next_timeout().unwrap().min(began + ms(790));
        let by = next - world.now;
        world.step(by, &mut [&mut app]);
    }
    assert!(break_vi(&world, &app, at_app, 0, 0));
    time_to_end(&mut world, &mut app, at_app);
    assert!(world.now - began < ms(1_000), "{:?}: dead peers are known within a second", world.now - began);
}

/// Resumption over another VI may take as long as silence may last.
#[test]
fn a_peer_that_stands_still_for_a_moment_is_waited_for() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = settled_channel();
    assert!(break_vi(&world, &app, at_app, 0, 0));
    world.run(ms(550), &mut [&mut app]);
    world.run(ms(100), &mut [&mut app, &mut proxy]);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    world.run(ms(550), &mut [&mut proxy]);
    world.run(ms(100), &mut [&mut app, &mut proxy]);
    assert_eq!((app.up(), proxy.up()), (vec![at_app], vec![at_proxy]));
}

/// The new VI is established and breaks again before a message of its link is sent over it.
#[test]
fn a_vi_that_breaks_before_hello_is_not_the_last() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = settled_channel();
    for round in 1..=3 {
        assert!(break_vi(&world, &app, at_app, 0, 0));
        app.turn(world.now);
        world.run(ms(10), &mut [&mut proxy]);
        assert!(break_vi(&world, &app, at_app, 0, 0), "the VI that was asked for is open");
        world.run(ms(200), &mut [&mut app, &mut proxy]);
        assert_eq!((app.up(), proxy.up()), (vec![at_app], vec![at_proxy]), "{:?}", app.events);
        assert_eq!(app.counters().links_resumed, round);
    }
}

/// The fault that broke the VI may briefly prevent another one too.
#[test]
fn an_unreachable_peer_is_tried_again() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = settled_channel();
    assert!(world.fabric.hide_node(PROXY, true));
    assert!(break_vi(&world, &app, at_app, 0, 0));
    world.run(ms(100), &mut [&mut app, &mut proxy]);
    assert!(app.endpoint.link(at_app).unwrap().interrupted);
    assert!(world.fabric.hide_node(PROXY, false));
    world.run(ms(100), &mut [&mut app, &mut proxy]);
    assert_eq!((app.up(), proxy.up()), (vec![at_app], vec![at_proxy]), "{:?}", app.events);
}

#[test]
fn nobody_there_any_more_is_known_soon() {
    let (mut world, mut app, _proxy, at_app, _) = channel(1, 8);
    world.fabric.kill_node(PROXY, InFlight::Delivered);
    let (time, reason) = time_to_end(&mut world, &mut app, at_app);
    assert!(time <= ms(200), "{time:?}");
    assert_eq!(reason, DownReason::Died(DeathCause::HangUp));
    assert_eq!(app.counters().links_interrupted, 1);
}

#[test]
fn a_proxy_that_forgot_the_link_refuses_it() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    assert!(break_vi(&world, &app, at_app, 100, 0));
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    proxy.endpoint.close(world.now, at_proxy);
    world.run(ms(120), &mut [&mut app, &mut proxy]);
    assert_eq!(app.down(at_app), Some(DownReason::Died(DeathCause::HangUp)));
    assert_eq!(proxy.counters().refused_session, 1);
    assert_eq!((app.endpoint.links().count(), proxy.endpoint.links().count()), (0, 0));
}

#[test]
fn a_link_outlives_its_token() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    for _ in 0..130 {
        world.step(Duration::from_secs(60), &mut [&mut app, &mut proxy]);
        world.run(ms(10), &mut [&mut app, &mut proxy]);
    }
    assert!(unix(world.now) > UNIX_START + 3_600 + CLOCK_SKEW_S);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    world.run(ms(30), &mut [&mut app, &mut proxy]);
    assert_eq!((app.up(), proxy.up()), (vec![at_app], vec![at_proxy]));
    assert_eq!(proxy.counters().links_resumed, 1);
}

#[test]
fn a_clean_end_is_not_resumed_and_a_deadline_of_zero_resumes_nothing() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    app.endpoint.close(world.now, at_app);
    world.run(ms(10), &mut [&mut app, &mut proxy]);
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Closed));
    assert_eq!(proxy.counters().links_interrupted, 0);

    let mut world = World::breakable(1);
    let mut proxy = world.proxy(8);
    let config = csp_transport::EndpointConfig {
        resume_deadline: Duration::ZERO,
        ..small(csp_transport::PeerIdentity::process(node("an-1"), process("p"), 21), 8, None)
    };
    let mut app = world.side("p", config);
    let (at_app, at_proxy) = world.channel_up(&mut app, &mut proxy);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    world.step(ms(3), &mut [&mut app, &mut proxy]);
    assert_eq!(app.down(at_app), Some(DownReason::Died(DeathCause::HangUp)));
    // A peer that gave the link up may take its place again at once, with the same token.
    assert_eq!(proxy.up(), [at_proxy]);
    let again = connect(&world, &mut app, Purpose::Channel, (0, 1), &process_token("p", 1));
    world.run(ms(10), &mut [&mut app, &mut proxy]);
    assert_eq!(app.up(), [again]);
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::HangUp)));
    assert_eq!(proxy.up().len(), 1);
}

#[test]
fn closing_an_interrupted_link_ends_it_at_both_sides() {
    let (mut world, mut app, mut proxy, at_app, at_proxy) = channel(1, 8);
    assert!(break_vi(&world, &app, at_app, 0, 0));
    app.turn(world.now);
    app.endpoint.close(world.now, at_app);
    world.run(ms(850), &mut [&mut app, &mut proxy]);
    assert_eq!(app.down(at_app), Some(DownReason::Closed));
    assert_eq!(proxy.down(at_proxy), Some(DownReason::Died(DeathCause::HangUp)));
    assert_eq!((app.endpoint.links().count(), proxy.endpoint.links().count()), (0, 0));
}

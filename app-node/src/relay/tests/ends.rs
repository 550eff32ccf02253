//! How ends are passed on, and which processes get a VI.

use csp_transport::DeathCause;
use csp_vi::RequestId;
use csp_vi::memory::InFlight;

use super::*;
use crate::relay::counters::Reason;

/// The connection is broken, and no end was signalled.
const BROKEN: DownReason = DownReason::Died(DeathCause::HangUp);

/// Waits for the end of a process's link at both sides; returns what the proxy and the process observed.
#[track_caller]
fn ends(world: &mut World, process: &mut Process, at_proxy: LinkId) -> (DownReason, DownReason) {
    let (mut far, mut near) = (None, None);
    world.until("end at both sides", |world| {
        if let Some(LinkEvent::Down { link, reason }) = world.proxy.poll_event()
            && link == at_proxy
        {
            far = Some(reason);
        }
        if let Some(LinkEvent::Down { reason, .. }) = process.event(world.now) {
            near = Some(reason);
        }
        far.clone().zip(near.clone())
    })
}

/// A process continues after its agent has ended: the proxy must not treat it as ended.
#[test]
fn an_agent_that_stops_ends_vis_uncleanly() {
    for kind in ["memory", "ucx"] {
        let mut world = World::new(kind);
        let (mut process, at_proxy) = world.connected();
        world.relay.close(world.now);
        assert_eq!(ends(&mut world, &mut process, at_proxy), (BROKEN, BROKEN), "{kind}");
    }
}

#[test]
fn a_broken_way_is_no_end_of_the_proxy() {
    for kind in ["memory", "ucx"] {
        let mut world = World::new(kind);
        let (mut process, at_proxy) = world.connected();
        let vi = world.proxy.link(at_proxy).unwrap().vi;
        world.proxy.provider_mut().abort(vi).unwrap();
        let end = world.until("end", |world| process.event(world.now));
        assert!(matches!(end, LinkEvent::Down { reason: BROKEN, .. }), "{kind}: {end:?}");
    }
}

#[test]
fn what_came_before_the_way_broke_reaches_the_process_first() {
    let mut world = World::new("memory");
    let (mut process, at_proxy) = world.connected();
    let vi = world.proxy.link(at_proxy).unwrap().vi;
    let (mut sent, mut got) = (0, 0);
    for _ in 0..40 {
        send(&mut world.proxy, world.now, at_proxy, &mut sent);
    }
    assert!(world.fabric.kill_vi(vi, InFlight::Delivered));
    let end = world.until("end", |world| {
        let event = process.event(world.now);
        receive(&mut process.endpoint, world.now, &mut got);
        event
    });
    assert!(matches!(end, LinkEvent::Down { reason: BROKEN, .. }), "{end:?}");
    assert_eq!((got, world.relay.occupancy().0), (40, 0));
}

/// Messages that the relay holds of a proxy that fell silent are still delivered to the process.
#[test]
fn what_came_before_the_silence_reaches_the_process_first() {
    let mut world = World::new("memory");
    let (mut process, at_proxy) = world.connected();
    world.until("the agent's own link", |world| world.relay.routes().any(|(_, up)| up).then_some(()));
    let (mut sent, mut got) = (0, 0);
    for _ in 0..40 {
        send(&mut world.proxy, world.now, at_proxy, &mut sent);
    }
    world.now += Duration::from_secs(2);
    world.fabric.advance(world.now);
    let route = world.relay.routes.iter().next().unwrap().number;
    world.relay.on_silent(route);
    let end = std::iter::from_fn(|| {
        let event = process.event(world.now);
        receive(&mut process.endpoint, world.now, &mut got);
        Some(event)
    });
    // Not every poll of the ring also polls the socket.
    let end = end.take(1000).find_map(|event| event);
    assert!(matches!(end, Some(LinkEvent::Down { reason: BROKEN, .. })), "{end:?}");
    assert_eq!((got, world.relay.occupancy().0), (40, 0));
}

/// Returns the position of each slot towards the agent in a VI's memory.
fn slots(world: &mut World) -> Box<[usize]> {
    let mut shm = ShmProvider::new().unwrap();
    let vi = shm.connect(&world.path(), world.config.vi, b"").unwrap();
    world.until("VI", |_| shm.poll_event());
    shm.lend(vi).unwrap().slots
}

/// A process that violates the rules has not ended cleanly: what it sent before may be incomplete.
#[test]
fn a_process_that_breaks_its_ring_has_not_ended() {
    let mut world = World::new("memory");
    let slots = slots(&mut world);
    let (mut process, at_proxy) = world.connected();
    let link = process.endpoint.link(process.link).unwrap();
    let memory = process.endpoint.provider_mut().memory(link.vi).unwrap();
    // A message longer than allowed: in front of the payload are its number + 1, immediate and length.
    let message = [(link.messages_sent + 1).to_le_bytes(), [0xff; 8]].concat();
    memory.write(slots[link.messages_sent as usize] - message.len(), &message);
    assert_eq!(ends(&mut world, &mut process, at_proxy), (BROKEN, BROKEN));
    assert_eq!(world.relay.counters().refused, Refused { protocol: 1, ..Refused::default() });
}

#[test]
fn a_process_that_aborts_its_vi_has_not_ended() {
    let mut world = World::new("memory");
    let (mut process, at_proxy) = world.connected();
    let vi = process.endpoint.link(process.link).unwrap().vi;
    process.endpoint.provider_mut().abort(vi).unwrap();
    let reason = world.until("end", |world| match world.proxy.poll_event() {
        Some(LinkEvent::Down { link, reason }) if link == at_proxy => Some(reason),
        _ => None,
    });
    assert_eq!(reason, BROKEN);
}

#[test]
fn a_ring_deeper_than_channels_are_is_refused_before_it_is_made() {
    let mut world = World::new("memory");
    let mut stranger = ProviderKind::Shm.open().unwrap();
    let deep = ViConfig { receive_depth: world.config.vi.receive_depth + 1, ..world.config.vi };
    let vi = stranger.connect(&world.path(), deep, b"").unwrap();
    let refused = world.until("refusal", |_| stranger.poll_event());
    assert_eq!(refused, Event::Refused { vi, reason: ViError::Rejected });
    assert_eq!(world.relay.counters().refused, Refused { depth: 1, ..Refused::default() });
    assert_eq!((world.relay.occupancy().0, world.relay.counters().opened), (0, 0));
}

#[test]
fn one_user_leaves_half_of_the_vis_to_others() {
    let mut world = World::new("memory");
    let held: Vec<_> = (0..4).map(|_| world.connected()).collect();
    let mut late = world.process(Some(own_uid()));
    world.until("refusal", |world| late.event(world.now));
    assert_eq!(world.relay.counters().refused, Refused { share: 1, ..Refused::default() });
    let ask = |world: &World, uid| {
        let (id, private_data) = (RequestId(u64::MAX), Vec::new());
        let request = csp_vi::ConnectRequest { id, private_data, peer_uid: Some(uid), listener: Some(0) };
        world.relay.admit(&request).map(|_| ())
    };
    assert_eq!(ask(&world, own_uid()), Err(Reason::Share));
    assert_eq!(ask(&world, own_uid() + 1), Ok(()));
    drop(held);
    world.until("ends", |world| (world.relay.occupancy().0 == 0).then_some(()));
    assert_eq!(ask(&world, own_uid()), Ok(()));
}

/// A proxy worker whose registration expired may continue, and may die later.
#[test]
fn a_proxy_that_left_the_list_is_watched_as_long_as_it_carries_vis() {
    let mut world = World::new("memory");
    let _process = world.connected();
    world.until("the agent's own link", |world| world.relay.routes().any(|(_, up)| up).then_some(()));
    assert!(world.relay.set_targets(world.now, &[]).is_empty());
    for _ in 0..100 {
        world.turn();
    }
    assert_eq!((world.relay.occupancy().0, world.proxy.links().count()), (1, 2));
    world.fabric.pause_node("proxy", true);
    let since = world.now;
    while world.relay.occupancy().0 > 0 {
        world.now += Duration::from_millis(10);
        world.fabric.advance(world.now);
        world.relay.turn(world.now, UNIX_S);
        assert!(world.now - since <= Duration::from_secs(1), "the proxy's death is not noticed");
    }
}

#[test]
fn a_proxy_that_left_and_came_back_is_watched_once_and_then_no_more() {
    let mut world = World::new("memory");
    let (process, _) = world.connected();
    world.until("the agent's own link", |world| world.relay.routes().any(|(_, up)| up).then_some(()));
    let targets = [world.target.clone()];
    world.relay.set_targets(world.now, &[]);
    assert_eq!(world.relay.set_targets(world.now, &targets), targets);
    let (second, _) = world.connected();
    assert!(world.relay.routes().all(|(_, up)| up));
    assert_eq!(world.proxy.links().count(), 3);
    world.relay.set_targets(world.now, &[]);
    drop((process, second));
    world.until("end of all links", |world| {
        let _ = world.proxy.poll_event();
        (world.proxy.links().count() == 0).then_some(())
    });
}

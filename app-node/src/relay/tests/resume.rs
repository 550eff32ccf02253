//! The VI over the SAN breaks while process, agent and proxy are alive: the process's link resumes.

use std::process::Command;

use super::*;

/// Breaks the VIs that the agent has over the SAN.
fn break_vis(world: &World, at_proxy: LinkId) {
    if world.kind == "memory" {
        let vi = world.proxy.link(at_proxy).unwrap().vi;
        // Between two VIs there is none.
        let _ = world.fabric.break_vi(vi, (Duration::ZERO, Duration::ZERO));
        return;
    }
    let ViAddress::Ip(address) = &world.target.address else { panic!("ucx has an IP address") };
    let killed = Command::new("ss").args(["-K", "dport", "=", &address.port().to_string()]).output().unwrap();
    assert!(killed.status.success(), "{killed:?}");
}

fn check_a_link_outlives_its_vi(kind: &'static str, breaks: u64) {
    let mut world = World::new(kind);
    world.fabric.let_break();
    let (mut process, at_proxy) = world.connected();
    let (mut up, mut down, mut got_up, mut got_down) = (0, 0, 0, 0);
    let messages = 400 * (breaks as u32 + 1);
    let mut broken = 0;
    world.until("messages both ways", |world| {
        let now = world.now;
        for _ in 0..8 {
            if up < messages {
                send(&mut process.endpoint, now, process.link, &mut up);
            }
            if down < messages {
                send(&mut world.proxy, now, at_proxy, &mut down);
            }
        }
        assert_eq!(process.event(now), None);
        receive(&mut process.endpoint, now, &mut got_down);
        receive(&mut world.proxy, now, &mut got_up);
        let resumed = process.endpoint.counters().links_resumed;
        if broken < breaks && resumed == broken && u64::from(got_down.min(got_up)) > (broken + 1) * 300 {
            broken += 1;
            break_vis(world, at_proxy);
        }
        (got_up == messages && got_down == messages).then_some(())
    });
    assert_eq!(process.endpoint.counters().links_resumed, breaks);
    assert!(world.proxy.counters().links_resumed >= breaks, "the agent's own link may have gone on, too");
    assert_eq!(world.proxy.counters().refused_session, 0);
    // The agent's own link may come up or be restored at any time.
    let of_process = |event: &LinkEvent| match event {
        LinkEvent::Up { link, .. } | LinkEvent::Down { link, .. } => *link == at_proxy,
    };
    let reported = std::iter::from_fn(|| world.proxy.poll_event()).find(of_process);
    assert_eq!(reported, None, "no event at the proxy");
    assert_eq!(world.relay.counters().opened, breaks + 1);
}

#[test]
fn a_link_outlives_its_vi_over_memory() {
    check_a_link_outlives_its_vi("memory", 20);
}

#[test]
fn a_link_outlives_its_vi_over_ucx() {
    if !csp_support::is_root("the test takes a socket away from its owner") {
        return;
    }
    check_a_link_outlives_its_vi("ucx", 5);
}

#[test]
fn a_process_tries_again_and_learns_that_the_proxy_is_gone() {
    let mut world = World::new("memory");
    world.fabric.let_break();
    let (mut process, _) = world.connected();
    world.fabric.kill_node("proxy", csp_vi::memory::InFlight::Lost);
    let start = world.now;
    let reason = world.until("end", |world| match process.event(world.now) {
        Some(LinkEvent::Down { reason, .. }) => Some(reason),
        _ => None,
    });
    assert_eq!(reason, DownReason::Died(csp_transport::DeathCause::HangUp));
    assert!(world.now - start < Duration::from_millis(900), "{:?}: within a second", world.now - start);
    assert_eq!(process.endpoint.counters().links_interrupted, 1);
}

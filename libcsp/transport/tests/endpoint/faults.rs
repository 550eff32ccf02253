//! Faults that only the memory provider can inject: a peer that stops, a single VI of a pool that dies.

use csp_transport::{Channel, ChannelConfig, ChannelError, DeathCause, DownReason, Purpose};
use csp_vi::memory::InFlight;

use crate::channel::{data, numbers};
use crate::harness::*;

#[test]
fn an_acceptor_that_does_not_answer_is_unreachable_after_the_hello_timeout() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("nginx.1", 8));
    world.fabric.pause_node(PROXY, true);
    let link = connect(&world, &mut app, Purpose::Channel, (0, 1), &process_token("nginx.1", 5));
    world.run(ms(1_990), &mut [&mut app, &mut proxy]);
    assert_eq!(app.down(link), None);
    world.run(ms(20), &mut [&mut app, &mut proxy]);
    assert!(matches!(app.down(link), Some(DownReason::Unreachable { .. })));
}

#[test]
fn a_lost_link_takes_its_flows_along_and_no_others() {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(8), world.process("p", 8));
    let token = process_token("p", 1);
    let links: Vec<_> = (0..2).map(|i| connect(&world, &mut app, Purpose::Channel, (i, 2), &token)).collect();
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    let mut channel = Channel::new(&app.endpoint, ChannelConfig { links_max: 2, control_capacity: 4096 });
    assert!(links.iter().all(|&link| channel.add_link(link)));
    assert!(!channel.add_link(links[0]), "there already");
    let pinned: Vec<_> = (1..9).map(|flow| (flow, channel.pick(flow).unwrap())).collect();
    assert_eq!(pinned.iter().filter(|(_, link)| *link == links[0]).count(), 4, "flows spread evenly");
    for &(flow, link) in &pinned {
        channel.send(world.now, &mut app.endpoint, link, &data(flow), &[&flow.to_le_bytes()]).unwrap();
    }
    channel.flush(world.now, &mut app.endpoint);

    // One VI of the pool dies, together with the messages in transit.
    let at_proxy = proxy.up()[0];
    assert_eq!(proxy.peer(at_proxy).unwrap().pool_index, 0);
    let vi = app.endpoint.link(links[0]).unwrap().vi;
    assert!(world.fabric.kill_vi(vi, InFlight::Lost));
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert_eq!(app.down(links[0]), Some(DownReason::Died(DeathCause::HangUp)));
    assert!(channel.remove_link(links[0]));
    assert!(!channel.contains(links[0]));

    for &(flow, link) in &pinned {
        let sent =
            channel.send(world.now, &mut app.endpoint, link, &data(flow), &[&(flow + 100).to_le_bytes()]);
        assert_eq!(sent, if link == links[0] { Err(ChannelError::Lost) } else { Ok(()) }, "flow {flow}");
    }
    assert!((20..30).all(|flow| channel.pick(flow) == Some(links[1])), "new flows use what is left");
    // The process replaces the VI with the same token.
    let replaced = connect(&world, &mut app, Purpose::Channel, (0, 2), &token);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    assert!(channel.add_link(replaced));
    assert!((20..30).any(|flow| channel.pick(flow) == Some(replaced)));
    channel.flush(world.now, &mut app.endpoint);
    world.step(ms(1), &mut [&mut app, &mut proxy]);
    for (flow, link) in pinned {
        let expected = if link == links[0] { vec![] } else { vec![flow, flow + 100] };
        assert_eq!(numbers(&proxy, flow), expected, "flow {flow}");
    }
}

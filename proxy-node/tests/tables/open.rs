//! Connections that a local service opens to processes of the cluster: they behave as if the service were a client, and end with either end.

use std::net::SocketAddr;
use std::time::Duration;

use csp_proxy_node::core::{ChannelId, NO_SERVER_GRACE, ServiceSpec};
use csp_types::FlowLabel;
use csp_wire::channel::{MessageHeader, MessageKind};

use crate::world::{World, web};

const NAME: &str = "context g0";

/// A world with a service that only local services reach, and a process that listens there.
fn world(process: bool) -> World {
    let mut w = World::new(&[]);
    let address = SocketAddr::from(([0, 0, 0, 0], 0));
    w.policy(vec![web(&[]), ServiceSpec { name: NAME.to_owned(), address, ..web(&[8001]) }]);
    if process {
        w.process(8001);
    }
    w
}

fn open(w: &mut World, name: &str) {
    w.core.local_mut().opens = Some(name.to_owned());
    w.core.drive(w.now, &mut w.out);
}

fn of(label: u32, kind: MessageKind, len: usize) -> MessageHeader {
    MessageHeader::of_flow(kind, FlowLabel::from_wire(label).unwrap(), 0, len as u32)
}

fn check_empty(w: &World) {
    assert_eq!((w.core.flow_count(), w.core.hairpin_count(), w.core.local().len()), (0, 0, 0));
    assert_eq!((w.core.waiting_count(), w.core.budget_reserved()), (0, 0));
}

#[test]
fn a_process_accepts_it_and_both_talk_until_one_ends_it() {
    let ends: [fn(&mut World, u32); 4] = [
        |w, label| w.send(8001, of(label, MessageKind::Data, 3), b"bye"),
        |w, label| w.send(8001, of(label, MessageKind::Close, 0), &[]),
        |w, label| w.send(8001, of(label, MessageKind::Reset, 0), &[]),
        |w, _| w.core.channel_down(w.now, ChannelId(8001), false, &mut w.out),
    ];
    for (at, end) in ends.into_iter().enumerate() {
        let mut w = world(true);
        open(&mut w, NAME);
        w.core.local_mut().say(b"hello");
        let [(8001, label)] = w.accept_all()[..] else { panic!("it was offered once") };
        w.core.drive(w.now, &mut w.out);
        let data: Vec<&[u8]> =
            w.out.payloads.iter().filter(|p| p.1 == MessageKind::Data).map(|p| &p.2[..]).collect();
        assert_eq!((data.concat(), w.core.local().len()), (b"hello".to_vec(), 1));
        w.send(8001, of(label, MessageKind::Data, 4), b"back");
        assert_eq!(w.core.local().len(), 1);
        end(&mut w, label);
        w.core.drive(w.now, &mut w.out);
        if at == 0 {
            // The local service has closed it; the process is notified, and closes too.
            assert_eq!(w.out.take(8001, MessageKind::Shutdown), [label]);
            w.send(8001, of(label, MessageKind::Close, 0), &[]);
        }
        check_empty(&w);
    }
}

#[test]
fn without_a_process_it_ends_by_itself() {
    let mut w = world(false);
    open(&mut w, NAME);
    assert_eq!((w.core.local().len(), w.core.waiting_count()), (1, 1));
    w.pass(NO_SERVER_GRACE + Duration::from_secs(1));
    check_empty(&w);
    // A process that comes in time gets it.
    open(&mut w, NAME);
    w.process(8001);
    assert_eq!(w.accept_all().len(), 1);
}

#[test]
fn one_that_cannot_be_or_is_not_wanted_leaves_nothing() {
    let mut w = world(true);
    open(&mut w, "context g7");
    assert_eq!(w.core.local().not_opened, 1);
    check_empty(&w);
    w.core.local_mut().declines = true;
    open(&mut w, NAME);
    assert_eq!((w.core.local().not_opened, w.accept_all().len()), (1, 0));
    check_empty(&w);
    // Two hairpins are there.
    w.core.local_mut().declines = false;
    (0..3).for_each(|_| open(&mut w, NAME));
    assert_eq!((w.core.local().not_opened, w.core.local().len()), (2, 2));
}

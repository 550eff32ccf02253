//! Byte streams at the output link: it is the core's, and no local service takes part.

use std::sync::Arc;
use std::time::Duration;

use csp_quality::{Board, Capacity, FlowTable, LinkConfig, Plan, QualityConfig, SharedLinkConfig};
use csp_types::FlowLabel;
use csp_wire::channel::{MessageHeader, MessageKind};

use crate::world::World;

/// A byte takes 10 µs.
const LINK: u64 = 800_000;
const QUANTUM: u32 = 600;
const LEN: u32 = 5_000;

fn shared() -> SharedLinkConfig {
    let link = LinkConfig { bits_per_second: LINK, quantum: QUANTUM };
    let capacity = Capacity { contexts: 0, link, point_every: 16 };
    let plan = Plan::new(Arc::new(FlowTable::new(4)), capacity, |_| None).unwrap();
    SharedLinkConfig {
        plan: Arc::new(plan),
        quality: QualityConfig::default(),
        triggers: Vec::new(),
        board: (Arc::new(Board::new(1)), 0),
        worker_percent: 100,
    }
}

/// Connects a client, and lets the process write a response. Returns the number of the client and where its
/// response begins.
fn respond(w: &mut World, port: u16) -> (u16, u32) {
    let begin = w.connect(1, port);
    let (channel, label) = w.accept_all().pop().unwrap();
    let label = FlowLabel::from_wire(label).unwrap();
    w.send(channel, MessageHeader::of_flow(MessageKind::Data, label, 0, LEN), &[7; LEN as usize]);
    (port, begin)
}

/// Bytes of the response that were sent.
fn sent(w: &World, (port, begin): (u16, u32)) -> u32 {
    w.out.ends[&port].wrapping_sub(begin)
}

#[test]
fn byte_streams_share_the_cores_link_and_need_no_permission_when_it_is_no_longer_shared() {
    let mut w = World::new(&[8001]);
    let before = respond(&mut w, 1000);
    assert_eq!(sent(&w, before), LEN, "everything is sent at once");
    assert!(w.core.link_status(w.now).is_none());

    w.core.set_link(w.now, Some(shared())).unwrap();
    let clients = [respond(&mut w, 1001), respond(&mut w, 1002)];
    let at_once: u32 = clients.iter().map(|client| sent(&w, *client)).sum();
    assert!(at_once <= 2 * QUANTUM, "{at_once}");
    w.pass(Duration::from_millis(40));
    let later = clients.map(|client| sent(&w, client));
    let (sum, apart) = (later.iter().sum::<u32>(), later[0].abs_diff(later[1]));
    assert!((3_000..=4_000 + 2 * QUANTUM).contains(&sum) && apart <= 2 * QUANTUM, "{later:?}");
    let (_, flows) = w.core.link_status(w.now).unwrap();
    assert!(flows[0].counters.released_bytes >= u64::from(sum));

    w.core.set_link(w.now, None).unwrap();
    w.core.drive(w.now, &mut w.out);
    assert_eq!(clients.map(|client| sent(&w, client)), [LEN; 2]);
    assert!(w.core.link_status(w.now).is_none());
}

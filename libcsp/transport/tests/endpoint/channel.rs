//! Channels: batching, order, queues of control messages, loss of a link.

use csp_transport::{Channel, ChannelConfig, ChannelError, LinkId};
use csp_types::FlowLabel;
use csp_wire::channel::{Message as FlowMessage, MessageHeader, MessageKind, Messages};
use proptest::prelude::*;

use crate::harness::*;

pub fn of_flow(kind: MessageKind, flow: u32, argument: u32) -> MessageHeader {
    MessageHeader::of_flow(kind, FlowLabel::new(flow, 0), argument, 0)
}

pub fn data(flow: u32) -> MessageHeader {
    of_flow(MessageKind::Data, flow, 0)
}

/// The flow messages of a link message.
fn parse(message: &Message) -> Vec<FlowMessage<'_>> {
    Messages::new(&message.body).map(|m| m.unwrap()).collect()
}

/// Numbers that the flow's messages carried (DATA in the payload, CREDIT in the argument), in the order
/// received.
pub fn numbers(side: &Side, flow: u32) -> Vec<u32> {
    let label = FlowLabel::new(flow, 0);
    let of_flow = side.messages.iter().flat_map(parse).filter(|m| m.header.label() == Some(label));
    of_flow
        .map(|m| match m.header.kind {
            MessageKind::Data => u32::from_le_bytes(m.payload[..4].try_into().unwrap()),
            _ => m.header.argument,
        })
        .collect()
}

struct Pair {
    world: World,
    proxy: Side,
    app: Side,
    channel: Channel,
    link: LinkId,
}

/// A process with one link and its channel.
fn pair(depth: u32, control_capacity: usize) -> Pair {
    let mut world = World::new();
    let (mut proxy, mut app) = (world.proxy(depth), world.process("p", depth));
    let (link, _) = world.channel_up(&mut app, &mut proxy);
    let mut channel = Channel::new(&app.endpoint, ChannelConfig { links_max: 2, control_capacity });
    assert!(channel.add_link(link));
    Pair { world, proxy, app, channel, link }
}

impl Pair {
    fn send(&mut self, header: MessageHeader, parts: &[&[u8]]) -> Result<(), ChannelError> {
        self.channel.send(self.world.now, &mut self.app.endpoint, self.link, &header, parts)
    }

    fn flush(&mut self) -> bool {
        self.channel.flush(self.world.now, &mut self.app.endpoint)
    }

    fn run(&mut self, time: u64) {
        self.world.run(ms(time), &mut [&mut self.app, &mut self.proxy]);
    }
}

#[test]
fn small_messages_share_one_vi_message_which_names_a_single_flow() {
    let mut pair = pair(8, 4096);
    pair.send(of_flow(MessageKind::Accepted, 1, 65_536), &[]).unwrap();
    pair.send(data(1), &[b"hel", b"lo"]).unwrap();
    pair.send(of_flow(MessageKind::Shutdown, 1, 0), &[]).unwrap();
    assert!(pair.flush());
    pair.send(data(1), &[b"a"]).unwrap();
    pair.send(data(2), &[b"b"]).unwrap();
    assert!(pair.flush());
    pair.run(1);
    let [first, second] = &pair.proxy.messages[..] else { panic!("{:?}", pair.proxy.messages) };
    let kinds: Vec<_> = parse(first).iter().map(|m| m.header.kind).collect();
    assert_eq!(kinds, [MessageKind::Accepted, MessageKind::Data, MessageKind::Shutdown]);
    assert_eq!(parse(first)[1].payload, b"hello");
    assert_eq!(first.immediate, FlowLabel::new(1, 0).to_wire());
    assert_eq!(second.immediate, 0, "two flows");
}

#[test]
fn without_credit_data_is_blocked_and_control_waits_behind_what_was_taken() {
    let mut pair = pair(5, 4096);
    pair.proxy.receives = false;
    let mut taken = 0u32;
    let mut round = 0;
    loop {
        match pair.send(data(1), &[&taken.to_le_bytes()]) {
            Ok(()) => taken += 1,
            Err(error) => break assert_eq!(error, ChannelError::Blocked),
        }
        pair.flush();
        round += 1;
        assert!(round < 100, "never blocked");
    }
    assert_eq!(taken, 2, "one message a flush");
    assert!(!pair.channel.writable(&pair.app.endpoint, pair.link));
    for number in 0..50 {
        pair.send(of_flow(MessageKind::Credit, 1, 2 + number), &[]).unwrap();
    }
    assert!(!pair.flush());
    pair.run(5);
    assert_eq!(pair.proxy.messages.len(), 0);

    pair.proxy.receives = true;
    pair.run(5);
    assert!(pair.flush());
    pair.run(5);
    assert_eq!(numbers(&pair.proxy, 1), (0..52).collect::<Vec<_>>());
    assert!(pair.channel.writable(&pair.app.endpoint, pair.link));
    pair.send(data(1), &[b"next"]).unwrap();
}

#[test]
fn a_full_queue_of_control_messages_is_reported() {
    let mut pair = pair(4, 2048);
    pair.proxy.receives = false;
    while pair.send(data(1), &[&[0; 600]]).is_ok() {
        pair.flush();
    }
    let mut queued = 0;
    let error = loop {
        match pair.send(of_flow(MessageKind::Credit, 1, queued), &[]) {
            Ok(()) => queued += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, queued), (ChannelError::Full, 2048 / 16));
    pair.proxy.receives = true;
    for _ in 0..3 {
        pair.run(2);
        pair.flush();
    }
    pair.run(2);
    let credits = numbers(&pair.proxy, 1);
    assert_eq!(credits[credits.len() - queued as usize..], (0..queued).collect::<Vec<_>>());
}

#[test]
fn what_the_format_does_not_allow_is_not_sent() {
    let mut pair = pair(8, 4096);
    let unlabelled = MessageHeader::new(MessageKind::Data, 0, 0, 0);
    assert_eq!(pair.send(unlabelled, &[b"x"]), Err(ChannelError::Invalid));
    assert_eq!(pair.send(data(1), &[]), Err(ChannelError::Invalid), "DATA without bytes");
    let longest = vec![1; pair.channel.data_len_max()];
    assert_eq!(pair.send(data(1), &[&longest, b"x"]), Err(ChannelError::TooLong));
    pair.send(data(1), &[&longest]).unwrap();
    pair.flush();
    pair.run(1);
    assert_eq!(parse(&pair.proxy.messages[0])[0].payload, longest);
}

proptest! {
    #[test]
    fn each_flow_keeps_its_order_and_nothing_taken_is_lost(
        acts in prop::collection::vec((0..10u8, 1..4u32, 4..5000usize), 1..200),
    ) {
        let mut world = World::new();
        let long = |mut config: csp_transport::EndpointConfig| { config.message_len = 4096; config };
        let pn = csp_transport::PeerIdentity::daemon(csp_types::Role::ProxyNode, node(PROXY), 1, 0);
        let an = csp_transport::PeerIdentity::process(node("an-1"), process("p"), 1);
        let mut proxy = world.proxy_of(long(small(pn, 5, Some(key().into()))));
        let mut app = world.side("p", long(small(an, 5, None)));
        let (link, _) = world.channel_up(&mut app, &mut proxy);
        let mut channel = Channel::new(&app.endpoint, ChannelConfig { links_max: 1, control_capacity: 1 << 16 });
        channel.add_link(link);
        let mut next = [0u32; 4];
        for (act, flow, len) in acts {
            let number = next[flow as usize];
            let sent = match act {
                0..4 => {
                    let mut payload = vec![7; len.min(channel.data_len_max())];
                    payload[..4].copy_from_slice(&number.to_le_bytes());
                    let writable = channel.writable(&app.endpoint, link);
                    let sent = channel.send(world.now, &mut app.endpoint, link, &data(flow), &[&payload]);
                    prop_assert!(sent.is_ok() || !writable, "writable, but {:?}", sent);
                    sent
                }
                4..7 => channel.send(world.now, &mut app.endpoint, link, &of_flow(MessageKind::Credit, flow, number), &[]),
                7 => { channel.flush(world.now, &mut app.endpoint); continue }
                8 => { proxy.receives = !proxy.receives; continue }
                _ => { world.step(ms(1), &mut [&mut app, &mut proxy]); continue }
            };
            match sent {
                Ok(()) => next[flow as usize] += 1,
                Err(error) => prop_assert_eq!(error, ChannelError::Blocked),
            }
        }
        proxy.receives = true;
        let mut rounds = 0;
        while !channel.flush(world.now, &mut app.endpoint) {
            world.step(ms(1), &mut [&mut app, &mut proxy]);
            rounds += 1;
            prop_assert!(rounds < 1000, "never drains");
        }
        world.run(ms(3), &mut [&mut app, &mut proxy]);
        for flow in 1..4 {
            prop_assert_eq!(numbers(&proxy, flow), (0..next[flow as usize]).collect::<Vec<_>>());
        }
    }
}

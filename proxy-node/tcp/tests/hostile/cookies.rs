//! SYN cookies one by one: what an acknowledgement restores, which segments follow a lost one, and what
//! guesses bring about (RFC 4987 §3.6).

use std::net::SocketAddr;
use std::time::Duration;

use csp_tcp::{Stack, StackConfig, State, SynCookies};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr, Timestamps};

use super::flood::{packet, server_config};
use crate::common::{Packet, address};

/// A server that uses only cookies, and a client that is built segment by segment.
struct Handshake {
    stack: Stack,
    now: Instant,
    remote: SocketAddr,
    isn: u32,
}

impl Handshake {
    fn new() -> Self {
        let mut stack = Stack::new(server_config(SynCookies::Always));
        stack.listen(address("10.0.0.2:80"), 1).unwrap();
        let now = Instant::from_nanos(1_000_000_000_000);
        Handshake { stack, now, remote: address("10.0.0.1:1000"), isn: 77 }
    }

    fn send(&mut self, repr: Repr, payload: &[u8]) {
        let Packet { tuple, bytes, .. } = packet(self.remote, repr, payload);
        let segment = csp_wire::tcp::Segment::parse(&bytes).unwrap();
        let arrival = csp_tcp::Arrival {
            label: FlowLabel::NONE,
            tuple: Some(FourTuple { local: tuple.remote, remote: tuple.local }),
            ingress: self.now,
            via: 1,
            ecn: 0,
            segment_size: 0,
        };
        let _ = self.stack.on_segment(self.now, arrival, &segment, segment.payload());
    }

    fn owns(&self, repr: Repr) -> bool {
        let Packet { tuple, bytes, .. } = packet(self.remote, repr, &[]);
        let tuple = FourTuple { local: tuple.remote, remote: tuple.local };
        self.stack.owns(self.now, &tuple, &csp_wire::tcp::Segment::parse(&bytes).unwrap())
    }

    /// The server's next segment, and whether the network node keeps the flow.
    fn answer(&mut self) -> Option<(Repr, bool)> {
        let transmit = self.stack.poll_transmit(self.now)?;
        Some((transmit.header?, !transmit.flow_end))
    }

    fn syn(&mut self, timestamps: bool) -> Repr {
        let timestamps = timestamps.then_some(Timestamps { value: 9_000, echo: 0 });
        let options = Options {
            mss: Some(1400),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps,
            ..Options::default()
        };
        self.send(Repr { seq: self.isn, flags: Flags::SYN, window: 60_000, options, ..Repr::default() }, &[]);
        let (header, kept) = self.answer().unwrap();
        assert!(header.flags.contains(Flags::SYN | Flags::ACK) && header.ack == self.isn.wrapping_add(1));
        assert!(kept, "the network node must not release a flow whose handshake has begun");
        header
    }

    fn ack(&self, answered: &Repr) -> Repr {
        let timestamps = answered.options.timestamps.map(|t| Timestamps { value: 9_020, echo: t.value });
        Repr {
            seq: self.isn.wrapping_add(1),
            ack: answered.seq.wrapping_add(1),
            flags: Flags::ACK,
            window: 500,
            options: Options { timestamps, ..Options::default() },
            ..Repr::default()
        }
    }

    fn state(&self) -> Option<State> {
        self.stack.connections().next().map(|info| info.state)
    }
}

#[test]
fn window_scale_sack_and_mss_survive_with_timestamps() {
    let mut h = Handshake::new();
    let answered = h.syn(true);
    let Options { mss, window_scale, sack_permitted, timestamps, .. } = answered.options;
    assert!(mss == Some(1460) && window_scale.is_some() && sack_permitted && timestamps.is_some());
    assert_eq!(h.stack.occupancy().connections.0, 0);
    h.send(h.ack(&answered), &[]);
    let info = h.stack.connections().next().unwrap();
    assert_eq!((info.state, info.send_window, info.mss), (State::Established, 500 << 7, 1400 - 12));
    // The network node receives the label although the client has sent no data yet.
    let transmit = h.stack.poll_transmit(h.now).unwrap();
    assert!(transmit.flow_new && transmit.label == info.label);
    let sent = transmit.header.unwrap();
    let ours = sent.options.timestamps.unwrap();
    assert!(
        ours.value.wrapping_sub(timestamps.unwrap().value) < 1_000,
        "the timestamp clock does not go back"
    );
    // SACK: a hole is reported.
    let behind = Repr { seq: h.isn.wrapping_add(101), ..h.ack(&answered) };
    h.send(behind, &[1; 50]);
    let (header, _) = h.answer().unwrap();
    assert_eq!(header.options.sack.as_slice().len(), 1);
}

#[test]
fn without_timestamps_only_the_mss_survives() {
    let mut h = Handshake::new();
    let answered = h.syn(false);
    let Options { window_scale, sack_permitted, timestamps, .. } = answered.options;
    assert_eq!(
        (window_scale, sack_permitted, timestamps),
        (None, false, None),
        "options that the cookie cannot carry are not offered"
    );
    h.send(h.ack(&answered), &[]);
    let info = h.stack.connections().next().unwrap();
    assert_eq!((info.state, info.send_window, info.mss), (State::Established, 500, 1400));
}

#[test]
fn the_acknowledgement_may_carry_data_and_fin() {
    let mut h = Handshake::new();
    let answered = h.syn(true);
    // The pure acknowledgement was lost.
    let ack = h.ack(&answered);
    h.send(Repr { flags: Flags::ACK | Flags::FIN, ..ack }, b"hello");
    let (label, _) = h.stack.poll_event().unwrap();
    let mut bytes = Vec::new();
    h.stack.read_with(h.now, label, 99, |slice| {
        bytes.extend_from_slice(slice);
        slice.len()
    });
    assert_eq!((&bytes[..], h.state()), (&b"hello"[..], Some(State::CloseWait)));
    let (header, _) = h.answer().unwrap();
    assert_eq!(header.ack, h.isn.wrapping_add(7));
}

#[test]
fn a_connection_that_exists_in_a_cookie_only_is_the_engine_s() {
    let mut h = Handshake::new();
    let answered = h.syn(true);
    let ack = h.ack(&answered);
    assert!(h.owns(ack) && h.state().is_none());
    assert!(!h.owns(Repr { ack: ack.ack.wrapping_add(1), ..ack }), "a forged cookie");
    assert!(!h.owns(Repr { flags: Flags::RST | Flags::ACK, ..ack }));
    h.send(ack, &[]);
    let later = Repr { seq: ack.seq.wrapping_add(5_000), ack: 0, flags: Flags::RST, ..ack };
    assert!(h.owns(later), "whatever a segment of a known connection says");
}

#[test]
fn later_data_of_a_cookie_waits_for_the_first_in_silence() {
    let mut h = Handshake::new();
    let answered = h.syn(true);
    let first = h.ack(&answered);
    let second = Repr { seq: first.seq.wrapping_add(5), ..first };
    h.send(second, b"world");
    assert!(h.answer().is_none(), "a RST would end the client's connection");
    h.send(Repr { seq: first.seq.wrapping_add(10), flags: Flags::ACK | Flags::FIN, ..first }, &[]);
    assert!(h.answer().is_none(), "nor may its end do so");
    h.send(first, b"hello");
    h.send(second, b"world");
    let label = h.stack.connections().next().unwrap().label;
    assert_eq!(h.stack.readable(label), 10);
}

#[test]
fn during_a_flood_the_data_of_a_connection_that_has_ended_is_answered_by_reset() {
    let mut h = Handshake::new();
    let first = h.syn(true);
    let first = h.ack(&first);
    let mut silent = 0;
    for n in 0..2_000u32 {
        // The cookies of the flood, and a segment of a client whose reset was lost.
        h.now += Duration::from_millis(100);
        h.remote.set_port(2_000 + n as u16);
        h.syn(n % 2 == 0);
        h.remote.set_port(1_000 + n as u16 % 8);
        let ack = n.wrapping_mul(2_654_435_761);
        h.send(Repr { seq: first.seq.wrapping_add(70_000), ack, ..first }, b"data");
        match h.answer() {
            Some((header, kept)) => assert!(header.flags.rst() && header.seq == ack && !kept),
            None => silent += 1,
        }
    }
    assert!(silent <= 1, "{silent} of 2,000: about one in 2¹⁴ looks like a cookie");
    assert_eq!(h.state(), None);
}

#[test]
fn the_data_of_a_client_that_received_nothing_but_its_cookie_is_answered_once_that_has_expired() {
    let mut h = Handshake::new();
    let answered = h.syn(true);
    let second = Repr { seq: h.isn.wrapping_add(6), ..h.ack(&answered) };
    let mut reset_after = None;
    for second_of_flood in 1..=200 {
        h.now += Duration::from_secs(1);
        h.remote.set_port(2_000);
        h.syn(true);
        h.remote.set_port(1_000);
        h.send(second, b"world");
        if h.answer().is_some_and(|(header, _)| header.flags.rst()) {
            reset_after.get_or_insert(second_of_flood);
        }
    }
    assert!(reset_after.is_some_and(|after| (64..=128).contains(&after)), "{reset_after:?}");
}

#[test]
fn a_guess_that_is_not_answered_takes_as_much_of_the_replies_as_one_that_is() {
    // Seen from the replies that are left for others, both are the same: else the first MAC could be guessed
    // by itself.
    let left_after = |right: bool| {
        let mut h = Handshake::new();
        let answered = h.syn(true);
        let guess = Repr { seq: h.isn.wrapping_add(6), ..h.ack(&answered) };
        let guess = Repr { ack: guess.ack ^ if right { 0 } else { 1 << 20 }, ..guess };
        let before = h.stack.counters().replies_suppressed;
        for _ in 0..10 {
            h.send(guess, b"world");
        }
        let (queued, capacity) = h.stack.occupancy().replies;
        let answers = std::iter::from_fn(|| h.answer()).filter(|(header, _)| header.flags.rst()).count();
        assert_eq!(answers, if right { 0 } else { 10 });
        // So many more fit before replies are suppressed, in place and in rate.
        let stranger = Repr { ack: 77, ..guess };
        h.remote.set_port(3_000);
        let mut fit = 0;
        while h.stack.counters().replies_suppressed == before && fit < 100_000 {
            h.send(stranger, b"world");
            fit += 1;
        }
        (queued, capacity, fit)
    };
    assert_eq!(left_after(true), left_after(false));
    assert_eq!(left_after(true).0, 10);
}

#[test]
fn an_old_or_forged_cookie_is_answered_by_reset() {
    let check = |change: fn(&mut Handshake, &mut Repr)| {
        let mut h = Handshake::new();
        let answered = h.syn(true);
        let mut ack = h.ack(&answered);
        change(&mut h, &mut ack);
        h.send(ack, &[]);
        assert_eq!(h.state(), None);
        let (header, kept) = h.answer().unwrap();
        assert!(header.flags.rst() && header.seq == ack.ack && !kept);
    };
    check(|h, _| h.now += Duration::from_secs(128));
    check(|_, ack| ack.ack = ack.ack.wrapping_add(1));
    check(|_, ack| ack.seq = ack.seq.wrapping_sub(1));
    check(|h, _| h.remote = address("10.0.0.1:1001"));
}

#[test]
fn guesses_bring_nothing_about() {
    // An attacker must guess 27 bits; while no cookie was sent, not even a right guess is accepted.
    let mut h = Handshake::new();
    let answered = h.syn(true);
    for n in 0..200_000u32 {
        let ack = Repr { ack: n.wrapping_mul(2_654_435_761), ..h.ack(&answered) };
        h.send(ack, &[]);
    }
    assert_eq!((h.state(), h.stack.counters().syn_cookies_rejected), (None, 200_000));
    assert!(h.stack.occupancy().replies.0 <= h.stack.config().replies);

    let mut never_flooded = Handshake::new();
    never_flooded.send(h.ack(&answered), &[]);
    assert_eq!((never_flooded.state(), never_flooded.stack.counters().syn_cookies_rejected), (None, 0));
}

#[test]
fn the_acknowledgement_of_a_cookie_replaces_the_oldest_half_open_connection() {
    let config = StackConfig { connections: 8, half_open: 8, ..server_config(SynCookies::Auto) };
    let mut h = Handshake::new();
    h.stack = Stack::new(config);
    h.stack.listen(address("10.0.0.2:80"), 1).unwrap();
    for port in 1..9 {
        h.remote.set_port(port);
        h.syn(false);
    }
    assert_eq!(h.stack.occupancy().half_open.0, 8);
    for port in 100..108 {
        h.remote.set_port(port);
        let answered = h.syn(false);
        h.send(h.ack(&answered), &[]);
        assert!(h.answer().is_some());
    }
    let counters = h.stack.counters();
    assert_eq!((counters.half_open_evicted, counters.established), (8, 8));
    // Now every block is in use by an established connection.
    h.remote.set_port(200);
    h.send(Repr { seq: h.isn, flags: Flags::SYN, window: 1, ..Repr::default() }, &[]);
    assert!(h.answer().is_none(), "the client retransmits its SYN");
    assert_eq!(h.stack.counters().dropped_table_full, 1);
}

#[test]
fn time_wait_gives_way_to_a_cookie_only_once_it_is_acknowledged() {
    let mut h = Handshake::new();
    let answered = h.syn(true);
    let opening = h.ack(&answered);
    h.send(opening, &[]);
    let label = h.stack.connections().next().unwrap().label;
    h.answer();
    h.stack.shutdown(h.now, label);
    let (fin, _) = h.answer().unwrap();
    assert!(fin.flags.fin());
    h.now += Duration::from_millis(20);
    let timestamps = Some(Timestamps { value: 9_100, echo: fin.options.timestamps.unwrap().value });
    let options = Options { timestamps, ..Options::default() };
    let last = Repr { ack: fin.seq.wrapping_add(1), flags: Flags::ACK | Flags::FIN, options, ..opening };
    h.send(last, &[]);
    while h.stack.poll_event().is_some() || h.answer().is_some() {}
    assert_eq!((h.stack.occupancy().time_wait.0, h.state()), (1, None));
    // A late duplicate of the segment that opened the old connection opens none, and a retransmitted FIN is
    // answered.
    h.send(opening, &[]);
    h.send(last, &[]);
    assert_eq!((h.stack.occupancy().time_wait.0, h.state()), (1, None));
    while h.answer().is_some() {}
    // A spoofed SYN is answered, and changes nothing.
    h.isn = 1 << 20;
    let options = Options { timestamps: Some(Timestamps { value: 9_200, echo: 0 }), ..Options::default() };
    h.send(Repr { seq: h.isn, flags: Flags::SYN, window: 1_000, options, ..Repr::default() }, &[]);
    let (answered, _) = h.answer().unwrap();
    assert_eq!(h.stack.occupancy().time_wait.0, 1);
    let mut ack = h.ack(&answered);
    ack.options.timestamps =
        Some(Timestamps { value: 9_220, echo: answered.options.timestamps.unwrap().value });
    h.send(ack, &[]);
    assert_eq!((h.stack.occupancy().time_wait.0, h.state()), (0, Some(State::Established)));
}

//! The receive window of a peer that exploits the granularity of window scaling.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

mod common;

use common::{address, small_config};
use csp_tcp::{Arrival, Stack, StackConfig};
use csp_types::{FlowLabel, FourTuple, Instant};
use csp_wire::tcp::{Flags, HEADER_LEN_MAX, Options, Repr, Segment};

const NOW: Instant = Instant::from_nanos(1 << 40);

fn deliver(stack: &mut Stack, tuple: FourTuple, header: Repr, payload: &[u8]) {
    let mut bytes = vec![0; HEADER_LEN_MAX];
    let len = header.emit(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    let segment = Segment::parse(&bytes).unwrap();
    let arrival =
        Arrival { label: FlowLabel::NONE, tuple: Some(tuple), ingress: NOW, via: 1, ecn: 0, segment_size: 0 };
    let _ = stack.on_segment(NOW, arrival, &segment, segment.payload());
}

/// The acknowledgement number and window field that were sent last.
fn answer(stack: &mut Stack, before: Repr) -> Repr {
    let mut last = before;
    while let Some(transmit) = stack.poll_transmit(NOW) {
        last = transmit.header.unwrap();
    }
    last
}

/// The window is advertised in units of 2⁵ bytes. A peer that sends 33 bytes at a time, and makes the engine
/// acknowledge each time, gains at most a quarter of the window by rounding.
#[test]
fn a_window_that_is_rounded_up_does_not_creep() {
    let window = 1 << 20;
    let config = StackConfig { blocks: 8_192, receive_window_max: window, ..small_config(1) };
    let mut stack = Stack::new(config);
    let local = address("10.0.0.2:80");
    stack.listen(local, 1).unwrap();
    let tuple = FourTuple { local, remote: address("10.0.0.1:1000") };
    let options = Options { mss: Some(1460), window_scale: Some(7), ..Options::default() };
    let header = |seq, ack, flags, options| Repr {
        source_port: 1000,
        destination_port: 80,
        seq,
        ack,
        flags,
        window: 512,
        options,
    };
    deliver(&mut stack, tuple, header(0, 0, Flags::SYN, options), &[]);
    let mut latest = answer(&mut stack, Repr::default());
    let ack = latest.seq.wrapping_add(1);
    let segment = |seq| header(seq, ack, Flags::ACK, Options::default());
    deliver(&mut stack, tuple, segment(1), &[]);
    let label = stack.label_of(&tuple).unwrap();
    latest.window = u16::MAX >> 5;
    let mut sent = 0;
    while sent < 2 * window {
        let room = u32::from(latest.window) << 5;
        if room < 33 {
            break;
        }
        deliver(&mut stack, tuple, segment(1 + sent), &[7; 33]);
        sent += 33;
        deliver(&mut stack, tuple, segment(1 + sent - 33), &[7; 33]);
        latest = answer(&mut stack, latest);
        assert_eq!(latest.ack, 1 + sent);
    }
    let held = stack.readable(label);
    let window = window as usize;
    assert!(held >= window - 64 && held <= window * 5 / 4 + 64, "{held} bytes are held");
}

//! The algorithms against the formulas of their RFCs.

use super::*;

/// An acknowledgement of `acked` bytes that ends no round.
fn ack(acked: u32, phase: Phase) -> AckSample {
    AckSample {
        now: Instant::ZERO,
        una: Seq(0),
        nxt: Seq(0),
        acked,
        delivered: acked,
        in_flight: 0,
        rtt: None,
        phase,
        rate: None,
    }
}

#[test]
fn slow_start_doubles_and_avoidance_adds_a_segment_per_window() {
    let open = |cc: &mut Congestion, bytes| cc.on_ack(&ack(bytes, Phase::Open));
    let mut cc = Congestion::new();
    cc.start(1000, 10, false, Seq(1));
    assert_eq!(cc.cwnd(), 10_000);
    cc.on_transmit(10_000);
    for _ in 0..10 {
        open(&mut cc, 1_000); // all at once, nothing is sent between them
    }
    assert_eq!(cc.cwnd(), 20_000);
    for end in [1, 2] {
        cc.on_ack(&AckSample { una: Seq(end), nxt: Seq(end + 1), ..ack(0, Phase::Open) });
    }
    cc.on_transmit(2_000);
    open(&mut cc, 1_000);
    assert_eq!(cc.cwnd(), 20_000, "not used, not grown");
    cc.on_transmit(20_000);
    cc.on_loss(Instant::ZERO, 20_000);
    assert_eq!((cc.cwnd(), cc.ssthresh()), (10_000, 10_000));
    cc.on_ack(&ack(10_000, Phase::Recovery));
    assert_eq!(cc.cwnd(), 10_000, "not in recovery");
    for _ in 0..10 {
        open(&mut cc, 1_000);
    }
    assert_eq!(cc.cwnd(), 11_000);
    cc.undo();
    assert_eq!(cc.cwnd(), 20_000);
    cc.on_timeout(Instant::ZERO, true);
    cc.on_timeout(Instant::ZERO, false);
    assert_eq!((cc.cwnd(), cc.ssthresh()), (1_000, 10_000));
    cc.on_ack(&ack(8_000, Phase::Timeout));
    assert_eq!(cc.cwnd(), 2_000);
}

#[test]
fn the_pacing_rate_is_twice_the_window_a_round_trip_while_it_doubles() {
    let mut cc = Congestion::new();
    cc.start(1000, 10, false, Seq(1));
    let rtt = Some(Duration::from_millis(10));
    assert_eq!(cc.pacing_rate(rtt), Some(2 * 10_000 * 100));
    assert_eq!(cc.pacing_rate(None), None);
    cc.on_transmit(10_000);
    cc.on_loss(Instant::ZERO, 10_000);
    assert_eq!(cc.pacing_rate(rtt), Some(5_000 * 120));
}

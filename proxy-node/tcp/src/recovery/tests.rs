//! Records against a plain map of bytes.

use csp_types::Instant;

use crate::recovery::flight::{Flight, Stamp};
use crate::recovery::pool::{RecordPool, RecordState};
use crate::seq::{Seq, SeqRange};

/// The model that the records must match: state and time of the last transmission for each sequence number.
struct Model {
    una: u32,
    bytes: Vec<(RecordState, u64, bool)>,
}

/// A small deterministic generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % n.max(1)
    }
}

fn stamp(now: u64) -> Stamp {
    let at = Instant::from_nanos(now);
    Stamp { sent: at, delivered: 0, delivered_at: at, first_sent: at, app_limited: false }
}

const BASE: Seq = Seq(u32::MAX - 5_000);

impl Model {
    fn nxt(&self) -> u32 {
        self.una + self.bytes.len() as u32
    }

    fn check(&self, flight: &Flight, pool: &RecordPool, seed: u64) {
        let total = |state| self.bytes.iter().filter(|b| b.0 == state).count() as u32;
        let counts = (flight.in_flight(), flight.sacked(), flight.lost());
        let expected = (total(RecordState::InFlight), total(RecordState::Sacked), total(RecordState::Lost));
        assert_eq!(counts, expected, "seed {seed}");
        let resent = self.bytes.iter().filter(|b| b.0 == RecordState::InFlight && b.2).count() as u32;
        assert_eq!(flight.resent(), resent, "seed {seed}");
        flight.check(pool, BASE.plus(self.una), BASE.plus(self.nxt()));
        if let Some(oldest) = flight.oldest(pool) {
            let least = self.bytes.iter().filter(|b| b.0 == RecordState::InFlight).map(|b| b.1).min();
            assert_eq!(Some(oldest.sent.as_nanos()), least, "seed {seed}");
        }
    }

    fn at(&mut self, seq: Seq) -> &mut (RecordState, u64, bool) {
        let index = seq.since(BASE) - self.una;
        &mut self.bytes[index as usize]
    }
}

fn play(seed: u64) {
    let mut random = Random(seed);
    let mut pool = RecordPool::new(1, [2, 20, 1_000][random.below(3) as usize], 500);
    let mut flight = Flight::EMPTY;
    let mut model = Model { una: 0, bytes: Vec::new() };
    for now in 1..400u64 {
        let (una, nxt) = (model.una, model.nxt());
        match random.below(10) {
            0..=2 => {
                let len = (1 + random.below(60)).min(flight.room(&pool));
                if len > 0 {
                    assert!(flight.push(&mut pool, BASE.plus(nxt), BASE.plus(nxt + len), &stamp(now)));
                    // If no record is free, the last one covers the new data and takes its time.
                    let start = flight.tail_start(&pool);
                    for seq in start.since(BASE)..nxt {
                        model.at(BASE.plus(seq)).1 = now;
                    }
                    model.bytes.extend((0..len).map(|_| (RecordState::InFlight, now, false)));
                }
            }
            3..=5 if nxt > una => {
                let start = una + random.below(nxt - una);
                let end = start + 1 + random.below((nxt - start).min(40));
                let mut budget = [3, 1_000][random.below(2) as usize];
                let range = SeqRange::new(BASE.plus(start), BASE.plus(end.min(nxt)));
                while let Some(piece) = flight.sack(&mut pool, range, 300, &mut budget) {
                    for seq in piece.start.since(BASE)..piece.end.since(BASE) {
                        assert_eq!(model.at(BASE.plus(seq)).0, piece.state);
                        assert_ne!(piece.state, RecordState::Sacked);
                        model.at(BASE.plus(seq)).0 = RecordState::Sacked;
                    }
                }
            }
            6 if nxt > una => {
                let to = una + random.below(nxt - una + 1);
                while let Some(piece) = flight.pop_acked(&mut pool, BASE.plus(to)) {
                    for (state, ..) in model.bytes.drain(..piece.len() as usize) {
                        assert_eq!(state, piece.state);
                    }
                    model.una += piece.len();
                }
                assert_eq!(model.una, to);
            }
            7 => {
                let record = flight.oldest(&pool).copied();
                flight.mark_oldest_lost(&mut pool);
                if let Some(record) = record {
                    for seq in record.start.since(BASE)..record.end.since(BASE) {
                        model.at(BASE.plus(seq)).0 = RecordState::Lost;
                    }
                }
            }
            8 => {
                if let Some(SeqRange { start, end }) = flight.next_lost(&pool) {
                    let end = start.plus(1 + random.below(end.since(start)));
                    let sent = flight.resend(&mut pool, end, &stamp(now));
                    for seq in start.since(BASE)..sent.since(BASE) {
                        *model.at(BASE.plus(seq)) = (RecordState::InFlight, now, true);
                    }
                }
            }
            9 => match random.below(4) {
                0 => {
                    flight.mark_sacked_lost(&mut pool);
                    model
                        .bytes
                        .iter_mut()
                        .filter(|b| b.0 == RecordState::Sacked)
                        .for_each(|b| b.0 = RecordState::Lost);
                }
                1 => {
                    let len = flight.mark_head_lost(&mut pool, 10);
                    model.bytes[..len as usize].iter_mut().for_each(|b| b.0 = RecordState::Lost);
                }
                2 => {
                    if let Some(SeqRange { start, end }) = flight.resend_tail(&mut pool, 10, &stamp(now)) {
                        for seq in start.since(BASE)..end.since(BASE) {
                            *model.at(BASE.plus(seq)) = (RecordState::InFlight, now, true);
                        }
                    }
                }
                _ => {}
            },
            _ => {}
        }
        model.check(&flight, &pool, seed);
    }
    flight.clear(&mut pool);
    assert_eq!(pool.free(), pool.capacity());
}

#[test]
fn records_agree_with_a_map_of_bytes() {
    for seed in 0..500 {
        play(seed);
    }
}

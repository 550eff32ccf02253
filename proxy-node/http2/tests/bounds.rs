//! What greedy peers can make a connection have in memory.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

mod common;

use common::raw::{DATA, END_STREAM, Raw, WINDOW_UPDATE, frame, get};
use common::{OK, requests};
use csp_http2::Limits;
use csp_support::allocation::{self, Counting};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Payload that members do not take: the window of the connection, however it is divided.
#[test]
fn stalled_uploads() {
    for len in [1, 100, 1_023, 1_024, 16_384] {
        let mut raw = Raw::new(Limits { connection_window: 256 << 10, ..Limits::default() });
        let (sent, _, held) = allocation::peak_of(|| {
            let mut sent = 0;
            for at in 0..100 {
                assert_eq!(requests(&raw.give(&get(2 * at + 1, &[], 0))).len(), 1);
            }
            let piece = vec![7; len];
            'all: for at in 0..100 {
                for _ in 0..(32 << 10) / len {
                    if sent + len > 256 << 10 {
                        break 'all;
                    }
                    raw.give(&frame(DATA, 0, 2 * at + 1, &piece));
                    sent += len;
                }
            }
            sent
        });
        assert_eq!(raw.server.buffered(), sent);
        println!("{sent} bytes that nobody takes, in DATA of {len}: {held} bytes are held");
        assert!(held < 2 << 20, "{held} bytes for DATA of {len}");
    }
}

/// Answers that a client does not read: 32 KiB a stream.
#[test]
fn stalled_downloads() {
    let mut raw = Raw::new(Limits::default());
    let large = vec![1; 1 << 20];
    let ((), _, held) = allocation::peak_of(|| {
        for at in 0..100 {
            let stream = 2 * at + 1;
            assert_eq!(requests(&raw.give(&get(stream, &[], END_STREAM))).len(), 1);
            raw.server.respond_text(stream, OK, false).unwrap();
            let mut sent = 0;
            while sent < 1 << 20 {
                let taken = raw.server.send(stream, &large, false);
                if taken == 0 {
                    break;
                }
                sent += taken;
                raw.give(&[]);
            }
            assert!(sent <= 65_535 + (32 << 10), "{sent} bytes");
        }
    });
    println!("100 answers that nobody reads: {held} bytes are held");
    assert!(held < 4 << 20, "{held} bytes");
    // Once there is a window they go on, one after another.
    let window = frame(WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes());
    let happened = raw.give(&window);
    assert!(happened.len() >= 99, "{} have room", happened.len());
}

/// The service changes the window of a connection by its budget.
#[test]
fn the_window_of_a_connection_follows_the_budget() {
    let mut raw = Raw::new(Limits { connection_window: 128 << 10, ..Limits::default() });
    raw.server.set_window(512 << 10);
    let frames = raw.frames();
    let [(WINDOW_UPDATE, 0, 0, more)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!(u32::from_be_bytes(more[..].try_into().unwrap()), 384 << 10);
    // Less: nothing is opened until enough was used. The window of a stream twice stays.
    raw.server.set_window(0);
    raw.give(&get(1, &[], 0));
    let (mut sent, mut opened) = (0, 0);
    for _ in 0..60 {
        raw.give(&frame(DATA, 0, 1, &[1; 10_000]));
        sent += 10_000;
        raw.server.release(1, 10_000);
        for (kind, _, stream, payload) in raw.frames() {
            if (kind, stream) == (WINDOW_UPDATE, 0) {
                opened += u32::from_be_bytes(payload[..].try_into().unwrap());
            }
        }
    }
    let left = (512 << 10) + opened - sent;
    assert!((64 << 10..=128 << 10).contains(&left), "{left} bytes are left of the window");
}

/// Workers are made in one thread and run in another.
#[test]
fn connections_go_to_other_threads() {
    fn goes<T: Send>() {}
    goes::<csp_http2::ServerConnection>();
    goes::<csp_http2::ClientConnection>();
}

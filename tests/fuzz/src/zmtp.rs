//! Framings of messages: whatever arrives, in whatever slices, the outcome is the same, and within the
//! bounds.

use std::sync::Arc;

use csp_types::Instant;
use csp_zmtp::{
    CONTROL_LEN_MAX, Config, Connection, Counters, Cursor, CurveKeys, Item, LocalType, Prefix, PrefixReader,
    ZmtpError,
};

use crate::Target;

/// What peers send.
pub static ZMTP: Target = Target::plain("zmtp", zmtp, zmtp_examples);

/// A greeting of a NULL peer of ZMTP 3.1 and READY of an XSUB, so that short inputs get behind the handshake.
const HANDSHAKE: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XSUB";

fn zmtp_examples() -> Vec<Vec<u8>> {
    let frames = b"\0\x06\x01topic\x01\x05first\0\x04last\x04\x07\x05PINGab\x02\0\0\0\0\0\0\0\x03abc";
    vec![[b"\x07", HANDSHAKE, frames].concat(), [&b"\x02"[..], frames].concat()]
}

/// A connection that gets `bytes` from the start, one that gets them after its handshake, a CURVE connection,
/// and a reader of length-prefixed messages. The first byte chooses the length of slices.
fn zmtp(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let cut = usize::from(cut) + 1;
    let config =
        Config { message_len_max: 600, frames_max: 4, topic_len_max: 50, ..Config::new(LocalType::Xpub) };
    let config = Arc::new(config);
    let null = || Connection::null(Arc::clone(&config), Instant::ZERO);
    let keys = Arc::new(CurveKeys::new([1; 32]));
    let curve = || Connection::curve(Arc::clone(&config), Arc::clone(&keys), &[2; 144], Instant::ZERO);
    assert_eq!(outcome(null(), bytes, cut), outcome(null(), bytes, bytes.len().max(1)));
    assert_eq!(outcome(curve(), bytes, cut), outcome(curve(), bytes, bytes.len().max(1)));
    let behind = [HANDSHAKE, bytes].concat();
    assert_eq!(outcome(null(), &behind, cut), outcome(null(), &behind, behind.len()));
    prefixed(bytes, cut);
}

/// Lengths of what was received, and how it ended.
fn outcome(mut connection: Connection, bytes: &[u8], cut: usize) -> (Vec<usize>, Option<ZmtpError>) {
    let (mut counters, mut lens) = (Counters::default(), Vec::new());
    for chunk in bytes.chunks(cut) {
        let mut input = Cursor::new(connection.examined(), std::iter::once(chunk));
        loop {
            match connection.next(Instant::ZERO, &mut input, &mut counters) {
                Ok(Some(Item::Message(message))) => {
                    assert!(message.body_len() <= 600 && (1..=4).contains(&message.frames().len()));
                    lens.push(message.body_len());
                }
                Ok(Some(Item::Subscribe(topic) | Item::Cancel(topic))) => {
                    assert!(topic.len() <= 50);
                    lens.push(1000 + topic.len());
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return (lens, Some(error)),
            }
        }
        assert!(connection.released() <= connection.examined());
        let mut out = [0; CONTROL_LEN_MAX];
        while matches!(connection.transmit(Instant::ZERO, &mut out, &mut counters), Ok(1..)) {}
    }
    (lens, None)
}

fn prefixed(bytes: &[u8], cut: usize) {
    let prefix = Prefix::sofh(500).expect("longer than its header");
    let (mut reader, mut counters) = (PrefixReader::new(prefix), Counters::default());
    for chunk in bytes.chunks(cut) {
        let mut input = Cursor::new(reader.examined(), std::iter::once(chunk));
        while let Ok(Some(message)) = reader.next(&mut input, &mut counters) {
            assert!(message.header.len() == 6 && message.body_len <= 494);
        }
    }
}

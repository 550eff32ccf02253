//! A transfer of bulk data from the client to the server.

use std::time::Duration;

use csp_tcp::{Counters, Event};

use super::{Net, client_tuple, stream_byte};

/// The result of one transfer.
#[derive(Debug)]
pub struct Outcome {
    pub time: Duration,
    pub packets: u64,
    /// Bytes of the sender's packets that were lost.
    pub lost: u64,
    pub sender: Counters,
    pub receiver: Counters,
}

/// Sends `bytes` from the client to the server, whose application reads at once.
pub fn transfer(mut net: Net, bytes: u64) -> Outcome {
    let label = net.hosts[0].stack.connect(net.now, client_tuple(1000), 7, 1).unwrap();
    let start = net.now;
    let (mut written, mut received) = (0, 0);
    let mut finished = false;
    let mut accepted = None;
    while !finished {
        while net.hosts[0].stack.poll_event().is_some() {}
        while let Some((label, event)) = net.hosts[1].stack.poll_event() {
            match event {
                Event::Established { .. } => accepted = Some(label),
                Event::PeerFinished => finished = true,
                Event::Failed(reason) => panic!("{reason:?} after {received} bytes"),
                _ => {}
            }
        }
        if let Some(label) = accepted {
            net.hosts[1].stack.read_with(net.now, label, usize::MAX, |slice| {
                assert_eq!(slice[0], stream_byte(3, received));
                received += slice.len() as u64;
                slice.len()
            });
        }
        while written < bytes {
            let chunk: Vec<u8> =
                (written..bytes.min(written + 65_536)).map(|at| stream_byte(3, at)).collect();
            let taken = net.hosts[0].stack.write(net.now, label, &chunk);
            written += taken as u64;
            if taken < chunk.len() {
                break;
            }
        }
        if written == bytes {
            net.hosts[0].stack.shutdown(net.now, label);
        }
        net.flush();
        assert!(net.now - start < Duration::from_secs(3600), "{received} bytes after an hour");
        net.step(net.now + Duration::from_secs(1));
    }
    assert_eq!(received, bytes);
    Outcome {
        time: net.now - start,
        packets: net.transmitted,
        lost: net.lost[0],
        sender: *net.hosts[0].stack.counters(),
        receiver: *net.hosts[1].stack.counters(),
    }
}

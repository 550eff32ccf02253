//! Tests of registered memory.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use csp_vi::{
    Backing, BufferId, Completion, Memory, PIECES_MAX, Piece, RegionId, ViAddress, ViConfig, ViError, ViId,
};

use crate::bench::{AnyProvider, Bench, CONFIG, Pair, established, message, request, take, wait};

/// Memory that sets a flag when it is dropped.
struct DropFlagged(Box<[UnsafeCell<u8>]>, Arc<AtomicBool>);

// SAFETY: the bytes are accessed through raw pointers only, never by reference.
unsafe impl Send for DropFlagged {}
// SAFETY: the bytes are accessed through raw pointers only, never by reference; the flag is atomic.
unsafe impl Sync for DropFlagged {}

// SAFETY: the box is neither moved out of nor resized before the value is dropped, so its bytes stay at one
// address.
unsafe impl Backing for DropFlagged {
    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for DropFlagged {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + n * 31) as u8).collect()
}

/// Messages of a head and up to four pieces arrive as contiguous bytes, and each send is completed.
pub fn messages_leave_from_registered_memory(bench: &Bench) {
    let config = ViConfig { receive_depth: 16, send_depth: 16, message_len: 16384 };
    let Pair { mut a, mut b, from_a, .. } = bench.pair(config);
    let bytes = pattern(0, 1 << 16);
    let memory = Memory::heap(bytes.len());
    memory.write(0, &bytes);
    let region = a.register(&memory).unwrap();
    let piece = |offset: usize, len: usize| Piece { region, offset, len };
    let lengths = [0, 1, 63, 4096, 16384, 1000, 8192];
    let parts = |n: usize| {
        let head = pattern(n, [0, 16, 200][n % 3]);
        let len = lengths[n % lengths.len()].min(16384 - head.len());
        let (first, rest) = (len / 3, len - len / 3);
        let pieces = match n % 4 {
            0 => vec![piece(n, len)],
            1 => vec![piece(n * 50, first), piece(40_000 + n, rest)],
            2 => vec![piece(5, 0), piece(n, first), piece(9, 0), piece(30_000 - n, rest)],
            _ => Vec::new(),
        };
        (head, pieces)
    };
    let (mut sent, mut left, mut got) = (0, 0, 0);
    wait("400 messages", || {
        if sent < 400 {
            let (head, pieces) = parts(sent);
            match a.post_send_from(from_a, sent as u64, sent as u32, &head, &pieces) {
                Ok(()) => sent += 1,
                Err(error) => assert_eq!(error, ViError::Full),
            }
        }
        while let Some(completion) = a.poll() {
            assert_eq!(completion, Completion::Sent { vi: from_a, wr_id: left });
            left += 1;
        }
        while let Some(message) = take(&mut b) {
            let (mut expected, pieces) = parts(got);
            pieces.iter().for_each(|p| expected.extend(&bytes[p.offset..p.offset + p.len]));
            assert_eq!(message.immediate, got as u32);
            assert!(message.bytes == expected, "message {got} differs");
            got += 1;
        }
        (got == 400 && left == 400).then_some(())
    });
    // Both kinds of send keep their order on one VI.
    a.post_send(from_a, 0, 1, &[b"plain"], false).unwrap();
    a.post_send_from(from_a, 7, 2, b"", &[piece(0, 16384)]).unwrap();
    a.post_send(from_a, 0, 3, &[b"plain"], false).unwrap();
    let mut order = Vec::new();
    wait("three messages", || {
        let _ = a.poll();
        order.extend(take(&mut b).map(|message| message.immediate));
        (order.len() == 3).then_some(())
    });
    assert_eq!(order, [1, 2, 3]);
}

/// Memory is dropped when it is deregistered and the last message was sent from it, and not before.
pub fn memory_stays_as_long_as_it_is_in_use(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    for round in 0..20 {
        let gone = Arc::new(AtomicBool::new(false));
        let bytes = (0..4096).map(|_| UnsafeCell::new(0)).collect();
        let memory = Memory::new(DropFlagged(bytes, gone.clone()));
        memory.write(0, &pattern(round, 4096));
        let region = a.register(&memory).unwrap();
        drop(memory);
        assert!(!gone.load(Ordering::SeqCst), "it is registered");
        let piece = Piece { region, offset: 0, len: 4096 };
        a.post_send_from(from_a, round as u64, 0, b"", &[piece]).unwrap();
        a.deregister(region).unwrap();
        assert!(matches!(a.deregister(region), Err(ViError::Unknown(_))));
        let refused = a.post_send_from(from_a, 0, 0, b"", &[piece]);
        assert!(matches!(refused, Err(ViError::Unknown(_))), "{refused:?}");
        let mut arrived = None;
        wait("message and completion", || {
            arrived = arrived.take().or_else(|| take(&mut b));
            a.poll()
        });
        wait("message", || {
            assert_eq!(a.poll(), None);
            arrived = arrived.take().or_else(|| take(&mut b));
            arrived.as_ref().map(|message| assert!(message.bytes == pattern(round, 4096)))
        });
        wait("release", || {
            let _ = a.poll();
            gone.load(Ordering::SeqCst).then_some(())
        });
    }
}

pub fn invalid_pieces_are_refused(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    let region = a.register(&Memory::heap(8192)).unwrap();
    let piece = |offset: usize, len: usize| Piece { region, offset, len };
    let foreign = Piece { region: RegionId(region.0 + 1000), offset: 0, len: 1 };
    let mut send = |vi: ViId, pieces: &[Piece]| a.post_send_from(vi, 0, 0, b"h", pieces);
    for wrong in [piece(8192, 1), piece(8000, 193), piece(usize::MAX, 2)] {
        assert!(matches!(send(from_a, &[wrong]), Err(ViError::Config(_))), "{wrong:?}");
    }
    assert!(matches!(send(from_a, &[piece(0, 1); PIECES_MAX + 1]), Err(ViError::Config(_))));
    assert!(matches!(send(from_a, &[foreign]), Err(ViError::Unknown(_))));
    assert!(matches!(send(from_a, &[piece(0, 4096)]), Err(ViError::TooLong { len: 4097, max: 4096 })));
    assert!(matches!(send(from_a, &[piece(0, 1), piece(0, usize::MAX)]), Err(ViError::TooLong { .. })));
    assert!(matches!(send(ViId(1 << 20), &[piece(0, 1)]), Err(ViError::Unknown(_))));
    let short = a.connect_into(&bench.address(), CONFIG, b"", &[piece(0, 4096)]);
    assert!(matches!(short, Err(ViError::Config(_) | ViError::Unsupported(_))), "{short:?}");
    let small = a.connect_into(&bench.address(), CONFIG, b"", &[piece(0, 4095); 8]);
    assert!(matches!(small, Err(ViError::Config(_) | ViError::Unsupported(_))), "{small:?}");
    a.post_send(from_a, 0, 9, &[b"unharmed"], false).unwrap();
    assert_eq!(message(&mut b, &mut a).immediate, 9);
}

/// Returns a VI of `a` that receives into `memory`, in pieces with a gap between them, and the peer's end.
fn receiving_into(
    bench: &Bench,
    memory: &Memory,
    config: ViConfig,
) -> (AnyProvider, ViId, AnyProvider, ViId) {
    let address: ViAddress = bench.address();
    let (mut a, mut b) = (bench.provider(), bench.provider());
    b.listen(&address).unwrap();
    let region = a.register(memory).unwrap();
    let len = config.message_len as usize;
    let pieces: Vec<Piece> =
        (0..config.receive_depth as usize).map(|n| Piece { region, offset: place(n, len), len }).collect();
    let from_a = a.connect_into(&address, config, b"", &pieces).unwrap();
    let asked = request(&mut a, &mut b);
    let from_b = b.accept(asked.id, ViConfig { receive_depth: 9, ..config }, b"").unwrap();
    established(&mut [(&mut a, from_a), (&mut b, from_b)]);
    (a, from_a, b, from_b)
}

/// Returns the offset of piece `n`.
fn place(n: usize, len: usize) -> usize {
    100 + n * (len + 64)
}

pub fn messages_arrive_in_the_callers_memory_in_the_order_posted(bench: &Bench) {
    let config = ViConfig { receive_depth: 5, send_depth: 5, message_len: 4096 };
    let memory = Memory::heap(1 << 16);
    let (mut a, from_a, mut b, from_b) = receiving_into(bench, &memory, config);
    let mut posted: std::collections::VecDeque<u32> = (0..5).collect();
    let mut held: Vec<u32> = Vec::new();
    let (mut sent, mut got) = (0, 0);
    wait("300 messages", || {
        let len = [0, 5, 4096][sent % 3];
        if sent < 300 && b.post_send(from_b, 0, sent as u32, &[&pattern(sent, len)], false).is_ok() {
            sent += 1;
        }
        assert_eq!(b.poll(), None);
        if let Some(Completion::Received { vi, buffer, len, immediate }) = a.poll() {
            assert_eq!((vi, immediate, Some(buffer.0)), (from_a, got as u32, posted.pop_front()));
            let mut bytes = vec![0; len as usize];
            memory.read(place(buffer.0 as usize, 4096), &mut bytes);
            assert!(bytes == pattern(got, [0, 5, 4096][got % 3]), "message {got} differs");
            let mut part = [0; 3];
            assert_eq!(a.read(vi, buffer, 2, &mut part), Ok((len as usize).saturating_sub(2).min(3)));
            got += 1;
            held.push(buffer.0);
        }
        // Buffers are posted again in another order.
        if held.len() > got % 4 {
            let buffer = held.remove(got % held.len());
            a.post_recv(from_a, BufferId(buffer)).unwrap();
            posted.push_back(buffer);
        }
        (got == 300).then_some(())
    });
    let mut gap = [0; 64];
    memory.read(place(1, 4096) - 64, &mut gap);
    assert_eq!(gap, [0; 64], "between the pieces nothing was written");
}

/// The caller's buffers bound the messages that the peer can send; messages in them survive the end of the
/// VI.
pub fn full_comes_exactly_at_the_callers_buffers(bench: &Bench) {
    let config = ViConfig { receive_depth: 4, send_depth: 64, message_len: 64 };
    let memory = Memory::heap(4096);
    let (mut a, from_a, mut b, from_b) = receiving_into(bench, &memory, config);
    for n in 0..4 {
        b.post_send(from_b, 0, n, &[&[n as u8; 64]], false).unwrap();
    }
    assert_eq!(b.post_send(from_b, 0, 4, &[], false), Err(ViError::Full));
    b.disconnect(from_b).unwrap();
    let progress = std::thread::spawn(move || {
        for _ in 0..2000 {
            assert_eq!((b.poll(), b.poll_event()), (None, None));
            std::thread::yield_now();
        }
        b
    });
    for n in 0..4u32 {
        let completion = wait("message", || a.poll());
        let expected = Completion::Received { vi: from_a, buffer: BufferId(n), len: 64, immediate: n };
        assert_eq!(completion, expected);
    }
    let ended = wait("end", || a.poll_event());
    assert_eq!(ended, csp_vi::Event::Disconnected { vi: from_a, clean: true });
    a.disconnect(from_a).unwrap();
    drop(progress.join().unwrap());
}

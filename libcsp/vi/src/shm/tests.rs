//! Peers that write invalid values to the memory or send invalid packets to the listener.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::layout::{Arena, Mapping};
use super::ring::{Receiver, Sender, Sending, Violation};
use super::*;

const CONFIG: ViConfig = ViConfig { receive_depth: 8, send_depth: 8, message_len: 256 };

fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("csp-vi-{}-{next}.sock", std::process::id()))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns mostly values close to valid ones.
    fn word(&mut self, near: u64) -> u64 {
        match self.next() % 4 {
            0 => self.next(),
            1 => near.wrapping_add(self.next() % 5).wrapping_sub(2),
            2 => 1 << (self.next() % 64),
            _ => near,
        }
    }
}

fn scribble(arena: &Arena, random: &mut Random, sent: u64, received: u64) {
    for _ in 0..random.next() % 4 {
        let slot = (random.next() % 8) as usize;
        match random.next() % 4 {
            0 => arena.posted(sent).store(random.word((sent + 1) << 12 | slot as u64), Ordering::Relaxed),
            1 => arena.tag(slot).store(random.word(received + 1), Ordering::Relaxed),
            2 => arena.meta(slot).store(random.word(256 << 32), Ordering::Relaxed),
            _ => arena.armed().store(random.next() as u32, Ordering::Relaxed),
        }
    }
}

#[test]
fn a_corrupting_peer_never_causes_an_out_of_bounds_access() {
    let mut violations = 0;
    for seed in 0..300 {
        let random = &mut Random(seed);
        let (mapping, _memory) = Mapping::create(&CONFIG, &CONFIG).unwrap();
        let arena = mapping.to_listener();
        Receiver::publish_all(&arena);
        let (mut receiver, mut sender) = (Receiver::new(arena), Sender::new(arena));
        let mut held = Vec::new();
        for step in 0..200 {
            scribble(&arena, random, sender.progress(), receiver.progress());
            match sender.send(7, 256, step, |arena, slot| arena.write(slot, 0, &[1; 256])) {
                Err(Violation) => violations += 1,
                Ok(Sending::Done | Sending::Wake | Sending::Full) => {}
            }
            match receiver.receive() {
                Err(Violation) => violations += 1,
                Ok(None) => {}
                Ok(Some(message)) => {
                    assert!(message.len <= 256 && message.slot < 8, "seed {seed}");
                    held.push(message.slot);
                }
            }
            let mut bytes = [0; 512];
            let slot = random.next() as u32 % 10;
            let got = receiver.read(slot, (random.next() % 300) as usize, &mut bytes);
            assert!(got.is_none_or(|len| len <= 256), "seed {seed}");
            if step % 3 == 0
                && let Some(slot) = held.pop()
            {
                receiver.post(slot, true).unwrap();
            }
            assert_eq!(receiver.post(9, true), None, "no such slot");
        }
    }
    assert!(violations > 1000, "too few violations: {violations}");
}

/// The same for a lent ring: no slot is claimed twice, and no nonexistent slot.
#[test]
fn a_corrupting_peer_never_gets_a_slot_claimed_twice() {
    let (mut violations, mut published) = (0, 0);
    for seed in 0..300 {
        let random = &mut Random(seed);
        let (mapping, _memory) = Mapping::create(&CONFIG, &CONFIG).unwrap();
        let arena = mapping.to_listener();
        Receiver::publish_all(&arena);
        let mut sender = Sender::new(arena);
        sender.lend();
        let mut claimed = VecDeque::new();
        for _ in 0..200 {
            scribble(&arena, random, sender.progress() + claimed.len() as u64, sender.progress());
            match sender.claim() {
                Err(Violation) => violations += 1,
                Ok(None) => {}
                Ok(Some(slot)) => {
                    assert!(slot < 8 && !claimed.contains(&slot), "seed {seed}: slot {slot}");
                    claimed.push_back(slot);
                }
            }
            if random.next().is_multiple_of(2)
                && let Some(slot) = claimed.pop_front()
            {
                assert_eq!(sender.publish(slot ^ 1, 1, 0), None, "seed {seed}: not the first one claimed");
                assert!(sender.publish(slot, 1, 0).is_some(), "seed {seed}");
                published += 1;
            }
        }
    }
    assert!(violations > 1000 && published > 1000, "{violations} violations, {published} messages");
}

/// Returns a listener and a connector in this process, connected.
pub(super) fn pair() -> (ShmProvider, ViId, ShmProvider, ViId) {
    let address = ViAddress::Path(path());
    let (mut listener, mut connector) = (ShmProvider::new().unwrap(), ShmProvider::new().unwrap());
    listener.listen(&address).unwrap();
    let to = connector.connect(&address, CONFIG, b"").unwrap();
    let request = loop {
        if let Some(Event::Request(request)) = listener.poll_event() {
            break request;
        }
    };
    let from = listener.accept(request.id, CONFIG, b"").unwrap();
    for provider in [&mut listener, &mut connector] {
        while !matches!(provider.poll_event(), Some(Event::Established { .. })) {}
    }
    (listener, from, connector, to)
}

pub(super) fn next_event(provider: &mut ShmProvider) -> Event {
    (0..10_000).find_map(|_| provider.poll_event()).expect("an event")
}

/// Returns the memory that the peer of `vi` reads, and the memory that it writes.
pub(super) fn arenas(provider: &mut ShmProvider, vi: ViId) -> (Arena, Arena) {
    let rings = provider.vis.get_mut(vi.0).unwrap().rings.as_ref().unwrap();
    rings.arenas()
}

#[test]
fn a_wrong_length_breaks_the_vi_and_only_it() {
    let (mut listener, from, mut connector, to) = pair();
    let (_, incoming) = arenas(&mut listener, from);
    connector.post_send(to, 0, 0, &[b"x"], false).unwrap();
    incoming.meta(0).store(257 << 32, Ordering::Relaxed);
    assert_eq!(listener.poll(), None);
    assert_eq!(next_event(&mut listener), Event::Disconnected { vi: from, clean: false });
    assert_eq!(listener.counters().violations, 1);
    assert_eq!(listener.post_send(from, 0, 0, &[], false), Err(ViError::NotConnected));
    assert_eq!(next_event(&mut connector), Event::Disconnected { vi: to, clean: false });
    listener.disconnect(from).unwrap();
    connector.disconnect(to).unwrap();
}

#[test]
fn a_wrong_slot_breaks_the_vi() {
    let (mut listener, from, connector, _) = pair();
    let (outgoing, _) = arenas(&mut listener, from);
    outgoing.posted(0).store(1 << 12 | 8, Ordering::Relaxed);
    assert_eq!(listener.post_send(from, 0, 0, &[], false), Err(ViError::NotConnected));
    assert_eq!(next_event(&mut listener), Event::Disconnected { vi: from, clean: false });
    assert_eq!((listener.counters().violations, connector.counters().violations), (1, 0));
}

#[test]
fn a_dead_peers_copy_of_the_memory_cannot_hold_the_vi_open() {
    let (mut listener, from, connector, _) = pair();
    let (_, incoming) = arenas(&mut listener, from);
    drop(connector);
    let mut forged = 0;
    let ended = (0..10_000).find_map(|n| {
        // The copy sends another message for each one polled.
        incoming.tag(n % 8).store(n as u64 + 1, Ordering::Relaxed);
        if let Some(Completion::Received { vi, buffer, .. }) = listener.poll() {
            listener.post_recv(vi, buffer).unwrap();
            forged += 1;
        }
        listener.poll_event()
    });
    assert_eq!(ended, Some(Event::Disconnected { vi: from, clean: false }));
    assert!(forged <= 256 + 8, "{forged} messages from a dead peer's copy");
}

#[test]
fn silent_and_malformed_connectors_do_not_block_others() {
    let path = path();
    let address = ViAddress::Path(path.clone());
    let mut listener = ShmProvider::new().unwrap();
    listener.listen(&address).unwrap();
    let silent: Vec<_> = (0..100).map(|_| sys::connect(&path).unwrap()).collect();
    for _ in 0..3000 {
        assert_eq!(listener.poll_event(), None);
    }
    assert_eq!(listener.counters().handshakes_dropped, 36, "64 may be silent");
    for (i, socket) in silent[40..].iter().enumerate() {
        sys::send(socket, &[b'C'; 80][..i], None).unwrap();
    }
    let mut connector = ShmProvider::new().unwrap();
    let vi = connector.connect(&address, CONFIG, b"me").unwrap();
    let Event::Request(request) = next_event(&mut listener) else { panic!("no request") };
    assert_eq!(request.private_data, b"me");
    assert_eq!(listener.poll_event(), None);
    listener.reject(request.id).unwrap();
    assert_eq!(next_event(&mut connector), Event::Refused { vi, reason: ViError::Rejected });
    assert!(listener.counters().handshakes_malformed >= 50, "{:?}", listener.counters());
}

#[test]
fn a_foreign_listener_is_refused() {
    let (ours, theirs) = (path(), path());
    // A socket of another type.
    let _stream = std::os::unix::net::UnixListener::bind(&ours).unwrap();
    let mut connector = ShmProvider::new().unwrap();
    connector.connect(&ViAddress::Path(ours.clone()), CONFIG, b"").unwrap();
    let refused = next_event(&mut connector);
    assert!(matches!(refused, Event::Refused { reason: ViError::Unreachable { .. }, .. }));
    std::fs::remove_file(ours).unwrap();
    // The right type: without memory, with a descriptor that is no memory, with unsealed memory, with memory
    // of a wrong size.
    let listening = sys::listen(&theirs).unwrap();
    let (stream, _other) = UnixStream::pair().unwrap();
    let stream = sys::Fd::from(OwnedFd::from(stream));
    let unsealed = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
    let unsealed = sys::Fd::from(OwnedFd::from(unsealed));
    let small = sys::sealed_memory(4096).unwrap();
    let accept =
        rendezvous::Packet { kind: rendezvous::Kind::Accept, config: CONFIG, private_data: Vec::new() };
    let mut bytes = [0; rendezvous::PACKET_LEN_MAX];
    let len = accept.write(&mut bytes);
    for memory in [None, Some(&stream), Some(&unsealed), Some(&small)] {
        let vi = connector.connect(&ViAddress::Path(theirs.clone()), CONFIG, b"").unwrap();
        let socket = sys::accept(&listening).unwrap();
        sys::send(&socket, &bytes[..len], memory).unwrap();
        let refused = next_event(&mut connector);
        assert!(matches!(refused, Event::Refused { reason: ViError::Protocol(_), .. }), "{refused:?}");
        connector.disconnect(vi).unwrap();
    }
    std::fs::remove_file(theirs).unwrap();
}

#[test]
fn abandoning_after_fork_leaves_the_parents_vi_alone() {
    let (mut listener, from, connector, to) = pair();
    let mut connector = connector;
    // SAFETY: the child only drops the connector and exits; it runs nothing that needs another thread of the
    // parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        connector.abandon_after_fork();
        // SAFETY: ends the child at once, without running destructors.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `child` is a child of this process; `status` is a local that outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    for _ in 0..600 {
        assert_eq!(listener.poll_event(), None);
    }
    connector.post_send(to, 0, 5, &[b"alive"], false).unwrap();
    assert!(matches!(listener.poll(), Some(Completion::Received { vi, immediate: 5, .. }) if vi == from));
}

#[test]
fn a_dead_listeners_path_is_reused_and_a_live_ones_is_not() {
    let path = path();
    let address = ViAddress::Path(path.clone());
    drop(sys::listen(&path).unwrap());
    assert!(path.exists());
    let mut first = ShmProvider::new().unwrap();
    first.listen(&address).unwrap();
    let mut second = ShmProvider::new().unwrap();
    assert!(matches!(second.listen(&address), Err(ViError::System { call: "listen", .. })));
    drop(second);
    assert!(path.exists());
    drop(first);
    assert!(!path.exists());
}

#[test]
fn descriptors_start_at_the_floor() {
    let mut provider = ShmProvider::with_descriptor_floor(500).unwrap();
    provider.listen(&ViAddress::Path(path())).unwrap();
    let mut descriptors = Vec::new();
    provider.descriptors(&mut descriptors);
    assert!(descriptors.len() == 3 && descriptors.iter().all(|&fd| fd >= 500), "{descriptors:?}");
}

#[test]
fn connect_wait_gives_the_answer_or_the_reason() {
    let path = path();
    let address = ViAddress::Path(path.clone());
    let mut connector = ShmProvider::new().unwrap();
    let refused = connector.connect_wait(&address, CONFIG, b"", 1000);
    assert!(matches!(refused, Err(ViError::Unreachable { .. })));
    let silent = sys::listen(&path).unwrap();
    assert!(matches!(connector.connect_wait(&address, CONFIG, b"", 20), Err(ViError::Unreachable { .. })));
    drop(silent);
    let mut listener = ShmProvider::new().unwrap();
    // A child forked by another test may hold a copy of the silent socket for a moment.
    let listens = (0..100_000).any(|_| {
        std::thread::yield_now();
        listener.listen(&address).is_ok()
    });
    assert!(listens);
    let thread = std::thread::spawn(move || {
        loop {
            if let Some(Event::Request(request)) = listener.poll_event() {
                listener.accept(request.id, CONFIG, b"welcome").unwrap();
                return listener;
            }
        }
    });
    let (vi, private_data) = connector.connect_wait(&address, CONFIG, b"", 10_000).unwrap();
    assert_eq!(private_data, b"welcome");
    connector.post_send(vi, 0, 0, &[b"x"], false).unwrap();
    drop(thread.join().unwrap());
}

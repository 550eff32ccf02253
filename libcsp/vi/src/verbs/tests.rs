//! Tests that need a device and access to private state: hostile peers, a lost device, the registration
//! cache. They run one at a time in a guest (`make test-rdma`), with the device's address in `CSP_VI_VERBS`.
#![allow(clippy::disallowed_types, reason = "tests own deadlines")]

mod ends;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::frame::Control;
use super::queue::{Request, Work};
use super::sys::ibv::{self, Sge};
use super::*;

const CONFIG: ViConfig = ViConfig { receive_depth: 4, send_depth: 4, message_len: 2048 };

fn host() -> IpAddr {
    let address =
        std::env::var("CSP_VI_VERBS").expect("CSP_VI_VERBS must hold the address of an RDMA device");
    address.parse().expect("CSP_VI_VERBS is an IP address")
}

fn address(port: u16) -> ViAddress {
    ViAddress::Ip(SocketAddr::new(host(), port))
}

#[track_caller]
fn wait<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Instant::now() < end, "no {what} came");
        std::thread::yield_now();
    }
}

fn idle(provider: &mut VerbsProvider) {
    assert_eq!((provider.poll(), provider.poll_event()), (None, None));
}

/// A VI from `a` to `b`, which listens at `to`.
#[track_caller]
fn connect(a: &mut VerbsProvider, b: &mut VerbsProvider, to: &ViAddress) -> (ViId, ViId) {
    connect_with(a, b, to, CONFIG)
}

#[track_caller]
fn connect_with(
    a: &mut VerbsProvider,
    b: &mut VerbsProvider,
    to: &ViAddress,
    config: ViConfig,
) -> (ViId, ViId) {
    let from_a = a.connect(to, config, b"").unwrap();
    let asked = wait("request", || {
        idle(a);
        match b.poll_event()? {
            Event::Request(request) => Some(request),
            other => panic!("{other:?}"),
        }
    });
    let from_b = b.accept(asked.id, config, b"").unwrap();
    let (mut event_a, mut event_b) = (None, None);
    wait("connection", || {
        event_a = event_a.take().or_else(|| a.poll_event());
        event_b = event_b.take().or_else(|| b.poll_event());
        (event_a.is_some() && event_b.is_some()).then_some(())
    });
    assert!(matches!(event_a, Some(Event::Established { vi, .. }) if vi == from_a), "{event_a:?}");
    assert!(matches!(event_b, Some(Event::Established { vi, .. }) if vi == from_b), "{event_b:?}");
    (from_a, from_b)
}

struct Pair {
    a: VerbsProvider,
    b: VerbsProvider,
    from_a: ViId,
    from_b: ViId,
    to: ViAddress,
}

fn pair(port: u16) -> Pair {
    let to = address(port);
    let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
    b.listen(&to).unwrap();
    let (from_a, from_b) = connect(&mut a, &mut b, &to);
    Pair { a, b, from_a, from_b, to }
}

/// A work request of a hostile peer: `len` bytes to any address.
struct Strike {
    opcode: u32,
    len: usize,
    bytes: Vec<u8>,
    remote: (u64, u32),
}

impl Pair {
    fn peer(&self) -> frame::Setup {
        self.a.ends.get(self.from_a.0).unwrap().peer.clone().unwrap()
    }

    /// Posts a work request that a correct peer would not post.
    fn strike(&mut self, strike: &Strike) {
        let end = self.a.ends.get_mut(self.from_a.0).unwrap();
        let (queue, body) = (end.queue.as_mut().unwrap(), end.body.as_mut().unwrap());
        let buffer = body.take_buffer().unwrap();
        assert!(body.fill(buffer, 0, &strike.bytes));
        let segment: Sge = body.buffer_segment(buffer, strike.len).unwrap();
        let (opcode, remote) = (strike.opcode, strike.remote);
        let segments = &mut [segment][..];
        let request = Request { opcode, immediate: 0, remote, segments, inline: false, signalled: true };
        assert_eq!(queue.post(request, Work::Own), Ok(()));
    }

    /// Checks that `b` breaks the VI, counts the given number of violations, and serves others as before.
    #[track_caller]
    fn check_broken(mut self, violations: u64) {
        let ended = wait("end", || {
            let _ = (self.a.poll(), self.a.poll_event());
            while let Some(completion) = self.b.poll() {
                let Completion::Received { vi, buffer, .. } = completion else { continue };
                self.b.post_recv(vi, buffer).unwrap();
            }
            // Grants are read when a message is sent.
            let _ = self.b.post_send(self.from_b, 0, 0, &[b"x"], false);
            self.b.poll_event()
        });
        assert_eq!(ended, Event::Disconnected { vi: self.from_b, clean: false });
        assert_eq!(self.b.counters().violations, violations);
        self.b.disconnect(self.from_b).unwrap();
        self.a.disconnect(self.from_a).unwrap();
        let (from_a, _) = connect(&mut self.a, &mut self.b, &self.to);
        self.a.post_send(from_a, 0, 7, &[b"unharmed"], false).unwrap();
        let got = wait("message", || self.b.poll());
        assert!(matches!(got, Completion::Received { immediate: 7, len: 8, .. }), "{got:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn more_messages_than_receives_break_the_vi() {
    let mut pair = pair(20_001);
    for _ in 0..5 {
        let opcode = ibv::WR_SEND_WITH_IMM;
        pair.strike(&Strike { opcode, len: 8, bytes: vec![1; 8], remote: (0, 0) });
        // Buffers of the hostile end are not under test.
        pair.a.ends.get_mut(pair.from_a.0).unwrap().body.as_mut().unwrap().free_buffer(0);
    }
    pair.check_broken(1);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn too_long_a_message_breaks_the_vi() {
    // A message longer than a buffer of the shared queue is refused by the device; one longer than a slot, by
    // the provider.
    let mut sent = pair(20_002);
    sent.strike(&Strike { opcode: ibv::WR_SEND_WITH_IMM, len: 2048, bytes: vec![1; 2048], remote: (0, 0) });
    sent.check_broken(1);
    let mut written = pair(20_003);
    let (peer, opcode) = (written.peer(), ibv::WR_RDMA_WRITE_WITH_IMM);
    let end = written.a.ends.get_mut(written.from_a.0).unwrap();
    let (queue, body) = (end.queue.as_mut().unwrap(), end.body.as_ref().unwrap());
    let segment = body.buffer_segment(0, 2049).unwrap();
    let remote = (peer.slots, peer.slots_key);
    let segments = &mut [segment][..];
    let request = Request { opcode, immediate: 0, remote, segments, inline: false, signalled: true };
    assert_eq!(queue.post(request, Work::Own), Ok(()));
    written.check_broken(1);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_malformed_control_message_breaks_the_vi() {
    let mut bytes = [0; frame::CONTROL_LEN_MAX];
    let len = Control::CloseAck.write(&mut bytes);
    for (port, bytes) in
        [(20_004, vec![9; 8]), (20_005, vec![]), (20_006, vec![4; 300]), (20_007, bytes[..len].into())]
    {
        let mut pair = pair(port);
        let (opcode, len) = (ibv::WR_SEND, bytes.len());
        pair.strike(&Strike { opcode, len, bytes, remote: (0, 0) });
        pair.check_broken(1);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn grants_of_nonexistent_slots_break_the_vi() {
    let mut pair = pair(20_008);
    let peer = pair.peer();
    // Grants slot 4095 of 4 for the fifth message of `b`.
    let entry = (5u64 << 12 | 4095).to_le_bytes().to_vec();
    let (opcode, remote) = (ibv::WR_RDMA_WRITE, (peer.grants + 4 * 8, peer.grants_key));
    pair.strike(&Strike { opcode, len: 8, bytes: entry, remote });
    for _ in 0..4 {
        pair.b.post_send(pair.from_b, 0, 0, &[b"x"], false).unwrap();
    }
    pair.check_broken(1);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn memory_that_was_not_advertised_cannot_be_written() {
    let mut wrong_key = pair(20_009);
    let peer = wrong_key.peer();
    let (opcode, remote) = (ibv::WR_RDMA_WRITE, (peer.slots, peer.slots_key ^ 0xff));
    wrong_key.strike(&Strike { opcode, len: 8, bytes: vec![1; 8], remote });
    // The device refuses the write. Whether it also reports it to the target depends on the device.
    let violations = wait("end", || {
        let _ = (wrong_key.a.poll(), wrong_key.a.poll_event());
        let ended = wrong_key.b.poll_event()?;
        assert_eq!(ended, Event::Disconnected { vi: wrong_key.from_b, clean: false });
        Some(wrong_key.b.counters().violations)
    });
    assert!(violations <= 1);
    // The keys of a VI are revoked with it.
    let mut late = pair(20_010);
    let old = late.peer();
    late.b.disconnect(late.from_b).unwrap();
    wait("end", || {
        let _ = (late.a.poll(), late.b.poll(), late.b.poll_event());
        late.a.poll_event()
    });
    late.a.disconnect(late.from_a).unwrap();
    for _ in 0..2000 {
        idle(&mut late.b);
    }
    (late.from_a, late.from_b) = connect(&mut late.a, &mut late.b, &late.to);
    let (opcode, remote) = (ibv::WR_RDMA_WRITE, (old.slots, old.slots_key));
    late.strike(&Strike { opcode, len: 8, bytes: vec![1; 8], remote });
    let ended = wait("end", || {
        let _ = (late.a.poll(), late.a.poll_event());
        late.b.poll_event()
    });
    assert_eq!(ended, Event::Disconnected { vi: late.from_b, clean: false });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn connectors_that_send_no_request_are_dropped() {
    let to = address(20_011);
    let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
    b.listen(&to).unwrap();
    // The connection is established, but no request is sent, as if it were lost.
    let from_a = a.connect(&to, CONFIG, b"").unwrap();
    wait("connection", || {
        idle(&mut b);
        let end = a.ends.get(from_a.0)?;
        if end.stage == Stage::Resolving && end.queue.is_some() && a.numbers.len() == 1 {
            // From here on `a` is not polled, so it does not answer.
            return b.ends.iter().any(|(_, end)| end.stage == Stage::AwaitingRequest).then_some(());
        }
        idle(&mut a);
        None
    });
    wait("dismissal", || {
        idle(&mut b);
        (b.counters().handshakes_dropped == 1 && b.ends.iter().count() == 0).then_some(())
    });
}

/// Runs a command line and returns whether it succeeded.
fn run(words: &str) -> bool {
    let (program, rest) = words.split_once(' ').unwrap();
    std::process::Command::new(program).args(rest.split(' ')).status().unwrap().success()
}

/// A second device is lost. (Soft-RoCE completes the deletion of a device only when its users have closed it;
/// librdmacm keeps its context open until this process ends, so the test does not expect the device back.)
#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_lost_device_ends_its_vis_and_no_others() {
    run("ip link add csp-lost type veth peer name csp-lost-peer");
    assert!(run("ip addr replace 10.98.0.1/24 dev csp-lost"));
    assert!(run("ip link set csp-lost up") && run("ip link set csp-lost-peer up"));
    assert!(run("rdma link add rxe9 type rxe netdev csp-lost"));
    let lost_at = ViAddress::Ip(SocketAddr::from(([10, 98, 0, 1], 20_012)));
    let Pair { mut a, mut b, from_a: kept_a, to, .. } = pair(20_012);
    b.listen(&lost_at).unwrap();
    let (from_a, from_b) = connect(&mut a, &mut b, &lost_at);
    assert_eq!(a.devices.iter().flatten().count(), 2);
    let memory = Memory::heap(4096);
    let region = a.register(&memory).unwrap();
    std::thread::spawn(|| run("rdma link delete rxe9"));
    for (provider, vi) in [(&mut a, from_a), (&mut b, from_b)] {
        let ended = wait("end", || {
            assert_eq!(provider.poll(), None);
            provider.poll_event()
        });
        assert_eq!(ended, Event::Disconnected { vi, clean: false });
        assert_eq!(provider.post_send(vi, 0, 0, &[], false), Err(ViError::NotConnected));
        provider.disconnect(vi).unwrap();
        assert_eq!(provider.devices.iter().flatten().count(), 1, "the lost device was closed");
    }
    let refused = a.connect(&lost_at, CONFIG, b"").unwrap();
    let event = wait("refusal", || a.poll_event());
    assert!(matches!(event, Event::Refused { vi, .. } if vi == refused), "{event:?}");
    // The VI on the other device continues, and new ones can be created.
    let piece = Piece { region, offset: 0, len: 2000 };
    a.post_send_from(kept_a, 1, 2, b"", &[piece]).unwrap();
    let got = wait("message", || b.poll());
    assert!(matches!(got, Completion::Received { immediate: 2, len: 2000, .. }), "{got:?}");
    assert_eq!(wait("completion", || a.poll()), Completion::Sent { vi: kept_a, wr_id: 1 });
    connect(&mut a, &mut b, &to);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn memory_is_registered_once_and_remembered_within_bounds() {
    let Pair { mut a, mut b, from_a, .. } = pair(20_013);
    let memory = Memory::heap(8192);
    let first = a.register(&memory).unwrap();
    let second = a.register(&memory).unwrap();
    assert_ne!(first, second);
    let counters = |hits, misses, evictions| CacheCounters { hits, misses, evictions };
    assert_eq!(a.cache_counters(), counters(1, 1, 0));
    a.deregister(first).unwrap();
    a.deregister(second).unwrap();
    let third = a.register(&memory).unwrap();
    assert_eq!(a.cache_counters(), counters(2, 1, 0));
    let piece = |region| Piece { region, offset: 0, len: 2048 };
    assert!(matches!(a.post_send_from(from_a, 0, 0, b"", &[piece(first)]), Err(ViError::Unknown(_))));
    a.post_send_from(from_a, 5, 0, b"", &[piece(third)]).unwrap();
    wait("message", || b.poll());
    assert_eq!(wait("completion", || a.poll()), Completion::Sent { vi: from_a, wr_id: 5 });
    // Cached memory with other owners evicts it; memory without other owners is evicted at once.
    a.deregister(third).unwrap();
    let kept: Vec<Memory> = (0..64).map(|_| Memory::heap(64)).collect();
    for memory in &kept {
        let region = a.register(memory).unwrap();
        a.deregister(region).unwrap();
    }
    assert_eq!(a.cache_counters(), counters(2, 65, 1));
    a.register(&memory).unwrap();
    assert_eq!(a.cache_counters().misses, 66);
    drop(kept);
    a.register(&memory).unwrap();
    assert_eq!(a.cache_counters().evictions, 65);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn only_an_active_rdma_port_passes_the_check() {
    assert_eq!(check_port(host()), Ok(()));
    assert!(check_port(IpAddr::from([192, 0, 2, 1])).is_err());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn ipv6_addresses_with_and_without_a_scope_work() {
    // The guest's own addresses on the device's network: a global one and the link-local one.
    let addresses = std::fs::read_to_string("/proc/net/if_inet6").unwrap();
    let mut seen = 0;
    for line in addresses.lines().filter(|line| line.ends_with("eth0")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ip = std::net::Ipv6Addr::from(u128::from_str_radix(words[0], 16).unwrap());
        let index = u32::from_str_radix(words[1], 16).unwrap();
        let scope = if words[3] == "20" { index } else { 0 };
        let to = ViAddress::Ip(std::net::SocketAddrV6::new(ip, 20_014 + seen, 0, scope).into());
        let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
        b.listen(&to).unwrap();
        let (from_a, _) = connect(&mut a, &mut b, &to);
        a.post_send(from_a, 0, 6, &[b"six"], false).unwrap();
        assert!(matches!(wait("message", || b.poll()), Completion::Received { immediate: 6, .. }));
        seen += 1;
    }
    assert!(seen > 0, "the device's interface has no IPv6 address");
}

/// Polls both for `time` and expects no completion or event.
fn pass(a: &mut VerbsProvider, b: &mut VerbsProvider, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        idle(a);
        idle(b);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn an_unreachable_peer_is_detected_and_an_idle_one_is_not() {
    let Pair { mut a, mut b, from_a, from_b, .. } = pair(20_020);
    pass(&mut a, &mut b, Duration::from_secs(2));
    // Stops the queue pair as if its host were dead, without a disconnect.
    b.ends.get_mut(from_b.0).unwrap().queue.as_mut().unwrap().stop();
    let start = Instant::now();
    let ended = wait("end", || {
        assert_eq!(a.poll(), None);
        a.poll_event()
    });
    assert_eq!(ended, Event::Disconnected { vi: from_a, clean: false });
    // Up to two probe intervals and seven ACK timeouts of 67 ms; the rest is the emulated processor's time.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_slow_answer_is_waited_for() {
    let to = address(20_021);
    let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
    b.listen(&to).unwrap();
    let from_a = a.connect(&to, CONFIG, b"").unwrap();
    let asked = wait("request", || {
        idle(&mut a);
        b.poll_event()
    });
    let Event::Request(asked) = asked else { panic!("{asked:?}") };
    pass(&mut a, &mut b, Duration::from_secs(1));
    b.accept(asked.id, CONFIG, b"at last").unwrap();
    let event = wait("connection", || {
        let _ = b.poll_event();
        a.poll_event()
    });
    assert_eq!(event, Event::Established { vi: from_a, private_data: b"at last".to_vec() });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn more_messages_than_the_shared_queue_holds_wait_for_a_stopped_peer() {
    const MESSAGES: u32 = 1500;
    let config = ViConfig { receive_depth: 2048, send_depth: 2048, message_len: 64 };
    let to = address(20_022);
    let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
    b.listen(&to).unwrap();
    let (from_a, _) = connect_with(&mut a, &mut b, &to, config);
    for n in 0..MESSAGES {
        a.post_send(from_a, n.into(), n, &[&n.to_le_bytes()], n + 1 == MESSAGES).unwrap();
    }
    // `b` is not polled for longer than the ACK timeout.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        idle(&mut a);
    }
    let mut got = 0;
    wait("all messages", || {
        while let Some(Completion::Received { vi, buffer, immediate, .. }) = b.poll() {
            let mut bytes = [0; 4];
            b.read(vi, buffer, 0, &mut bytes).unwrap();
            assert_eq!((immediate, u32::from_le_bytes(bytes)), (got, got));
            b.post_recv(vi, buffer).unwrap();
            got += 1;
        }
        assert_eq!((a.poll_event(), b.poll_event()), (None, None));
        (got == MESSAGES).then_some(())
    });
    assert_eq!(
        wait("completion", || a.poll()),
        Completion::Sent { vi: from_a, wr_id: u64::from(MESSAGES) - 1 }
    );
}

/// Blocks until the provider's descriptor is readable.
fn block(provider: &mut VerbsProvider) {
    let mut polled = libc::pollfd { fd: provider.epoll.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is one local entry, as the count says, and outlives the call.
    assert_eq!(unsafe { libc::poll(&raw mut polled, 1, 20_000) }, 1, "a wake was lost");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn vis_beyond_one_completion_queue_get_another_that_wakes_too() {
    let config = ViConfig { receive_depth: 2, send_depth: 4096, message_len: 64 };
    let to = address(20_023);
    let (mut a, mut b) = (VerbsProvider::new().unwrap(), VerbsProvider::new().unwrap());
    b.listen(&to).unwrap();
    let vis: Vec<ViId> = (0..6).map(|_| connect_with(&mut a, &mut b, &to, config).0).collect();
    let queue = |a: &VerbsProvider, vi: ViId| a.ends.get(vi.0).unwrap().queue.as_ref().unwrap().completions.0;
    assert_eq!((queue(&a, vis[0]), queue(&a, vis[5])), (0, 1));
    // Only the completion of the send arrives on the second queue.
    for round in 0..20 {
        while a.arm() != Ok(Armed::Armed) {
            idle(&mut a);
        }
        a.post_send(vis[5], round, 0, &[b"x"], true).unwrap();
        block(&mut a);
        let sent = wait("completion", || a.poll());
        assert_eq!(sent, Completion::Sent { vi: vis[5], wr_id: round });
        let Completion::Received { vi, buffer, .. } = wait("message", || b.poll()) else { panic!() };
        b.post_recv(vi, buffer).unwrap();
    }
    for vi in vis {
        a.disconnect(vi).unwrap();
    }
    wait("ends", || {
        let _ = (a.poll(), a.poll_event(), b.poll());
        if let Some(Event::Disconnected { vi, clean: true }) = b.poll_event() {
            b.disconnect(vi).unwrap();
        }
        (a.ends.iter().count() + b.ends.iter().count() == 0).then_some(())
    });
    let device = a.devices[0].as_mut().unwrap();
    assert_eq!((device.vis, device.reserve(15_000).unwrap()), (0, 0), "the reservations are released");
    assert!(a.numbers.is_empty());
}

//! Creates providers of one kind that can reach each other, and connects them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use csp_vi::memory::MemoryFabric;
use csp_vi::shm::ShmProvider;
use csp_vi::tcp::TcpProvider;
use csp_vi::ucx::UcxProvider;
use csp_vi::verbs::VerbsProvider;
use csp_vi::{Completion, ConnectRequest, Event, Provider, ViAddress, ViConfig, ViId};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The configuration of tests that need no particular one.
pub const CONFIG: ViConfig = ViConfig { receive_depth: 8, send_depth: 8, message_len: 4096 };

/// Time limit of every wait, longer than needed on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub type AnyProvider = Box<dyn Provider>;

pub struct Bench {
    pub kind: &'static str,
    fabric: MemoryFabric,
}

impl Bench {
    pub fn new(kind: &'static str) -> Self {
        raise_descriptor_limit();
        let fabric = MemoryFabric::new();
        fabric.let_break();
        Bench { kind, fabric }
    }

    pub fn provider(&self) -> AnyProvider {
        match self.kind {
            "memory" => Box::new(self.fabric.provider("node")),
            "shm" => Box::new(ShmProvider::new().unwrap()),
            "tcp" => Box::new(TcpProvider::new().unwrap()),
            "ucx" => Box::new(UcxProvider::new().unwrap()),
            "verbs" => Box::new(VerbsProvider::new().unwrap()),
            "pair_near" | "pair_far" => {
                let far = Box::new(self.fabric.provider("node"));
                Box::new(csp_vi::Pair::new(Box::new(ShmProvider::new().unwrap()), far))
            }
            other => panic!("no provider {other}"),
        }
    }

    /// Returns an address that no other test uses.
    pub fn address(&self) -> ViAddress {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("csp-conf-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        match self.kind {
            "memory" | "pair_far" => ViAddress::Name(name),
            "shm" | "pair_near" => ViAddress::Path(std::env::temp_dir().join(name)),
            "verbs" => ViAddress::Ip(free_port(rdma_address())),
            _ => ViAddress::Ip(free_port(Ipv4Addr::LOCALHOST.into())),
        }
    }

    /// Returns two providers with a VI between them.
    pub fn pair(&self, config: ViConfig) -> Pair {
        let address = self.address();
        let (mut a, mut b) = (self.provider(), self.provider());
        b.listen(&address).unwrap();
        let (from_a, from_b) = connect(&mut a, &mut b, &address, config);
        Pair { a, b, from_a, from_b, address }
    }
}

/// Several tests at once have both ends of hundreds of VIs in this process: more than the usual 1,024
/// descriptors.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Returns the address of the RDMA device to test with.
fn rdma_address() -> IpAddr {
    let address =
        std::env::var("CSP_VI_VERBS").expect("CSP_VI_VERBS must hold the address of an RDMA device");
    address.parse().expect("CSP_VI_VERBS is an IP address")
}

/// Returns a free port below the kernel's range of ephemeral ports. UCX accepts only addresses of an
/// interface, so 127.0.0.0/8 offers no others.
fn free_port(host: IpAddr) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let next = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (std::process::id() * 97 + next) % 20_000;
        let address = SocketAddr::from((host, port as u16));
        if std::net::TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Two providers with a VI from `a` to `b`.
pub struct Pair {
    pub a: AnyProvider,
    pub b: AnyProvider,
    pub from_a: ViId,
    pub from_b: ViId,
    pub address: ViAddress,
}

/// Calls `step` until it returns a value.
#[track_caller]
pub fn wait<T>(what: &str, mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = step() {
            return found;
        }
        assert!(Instant::now() < end, "no {what} came");
        std::thread::yield_now();
    }
}

/// Returns the next event of `this`, while `other` is polled and must have none.
#[track_caller]
pub fn event(this: &mut AnyProvider, other: &mut AnyProvider) -> Event {
    wait("event", || {
        assert_eq!(other.poll(), None);
        assert_eq!(other.poll_event(), None);
        assert_eq!(this.poll(), None);
        this.poll_event()
    })
}

#[track_caller]
pub fn request(a: &mut AnyProvider, b: &mut AnyProvider) -> ConnectRequest {
    match event(b, a) {
        Event::Request(request) => request,
        other => panic!("{other:?} instead of a request"),
    }
}

/// Waits for `Established` on all VIs and returns the private data of each.
#[track_caller]
pub fn established(p: &mut [(&mut AnyProvider, ViId)]) -> Vec<Vec<u8>> {
    let mut private_data_of: Vec<Option<Vec<u8>>> = vec![None; p.len()];
    wait("connection", || {
        for (private_data_of, (provider, expected)) in private_data_of.iter_mut().zip(p.iter_mut()) {
            match provider.poll_event() {
                Some(Event::Established { vi, private_data })
                    if vi == *expected && private_data_of.is_none() =>
                {
                    *private_data_of = Some(private_data);
                }
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        private_data_of.iter().all(Option::is_some).then_some(())
    });
    private_data_of.into_iter().flatten().collect()
}

/// Creates a VI from `a` to `b`, which listens at `address`.
#[track_caller]
pub fn connect(
    a: &mut AnyProvider,
    b: &mut AnyProvider,
    address: &ViAddress,
    config: ViConfig,
) -> (ViId, ViId) {
    let from_a = a.connect(address, config, b"").unwrap();
    let from_b = {
        let request = request(a, b);
        b.accept(request.id, config, b"").unwrap()
    };
    established(&mut [(a, from_a), (b, from_b)]);
    (from_a, from_b)
}

/// A received message, copied from its buffer, which is posted again.
#[derive(PartialEq, Eq, Debug)]
pub struct Got {
    pub vi: ViId,
    pub immediate: u32,
    pub bytes: Vec<u8>,
}

pub fn take(provider: &mut AnyProvider) -> Option<Got> {
    match provider.poll()? {
        Completion::Received { vi, buffer, len, immediate } => {
            let mut bytes = vec![0; len as usize];
            assert_eq!(provider.read(vi, buffer, 0, &mut bytes), Ok(len as usize));
            provider.post_recv(vi, buffer).unwrap();
            Some(Got { vi, immediate, bytes })
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the next message for `this`, while `other` is polled.
#[track_caller]
pub fn message(this: &mut AnyProvider, other: &mut AnyProvider) -> Got {
    wait("message", || {
        assert_eq!(other.poll(), None);
        take(this)
    })
}

/// Blocks until a descriptor of the armed `provider` is readable.
#[track_caller]
pub fn block(provider: &mut AnyProvider) {
    let mut descriptors = Vec::new();
    provider.wake(&mut descriptors);
    assert!(!descriptors.is_empty());
    let mut polled: Vec<libc::pollfd> =
        descriptors.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = PATIENCE.as_millis() as i32;
    // SAFETY: `polled` is a local array with as many entries as the count says, and outlives the call.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, timeout) };
    assert!(ready > 0, "a wake was lost");
}

//! Events over ZeroMQ: this node publishes what arrives here, to subscribers that the policy names by key.
//!
//! ```text
//!  [hub] ─── each subscriber reads on from where it is ──▶ [subscriber] ── ZMTP 3, CURVE ──▶ SUB
//! ```
//! A subscriber has no queue of its own: it reads the events that are kept anyway, so that one that does not
//! read costs nothing and slows nobody. What is no longer kept when it goes on is counted.
//!
//! A message has two frames: the topic, `event/SEVERITY/KIND/OBJECT`, and the event as JSON. This node is
//! XPUB; ZMTP is spoken by `csp-zmtp` (decision 0099).

mod subscriber;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use csp_daemon::{DaemonError, private_file};
use csp_telemetry::{MetricSource, MetricWriter, Shares};
use csp_zmtp::{Config, CurveKeys, Heartbeat, LocalType};
use tokio::net::TcpListener;

use crate::events::Hub;
use crate::policy_view::PolicyReader;
use subscriber::Subscriber;

/// Subscribers at once: in all, and of one address.
const SUBSCRIBERS_MAX: usize = 256;
const OF_ADDRESS_MAX: usize = 32;
/// Longest key file, in bytes.
const KEY_FILE_LEN_MAX: u64 = 64 << 10;
/// Delay before accepting again after accept(2) failed, for instance with EMFILE.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What subscribers have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) hub: Arc<Hub>,
    /// Whose keys the policy in force names.
    policy: Arc<PolicyReader>,
    pub(crate) config: Arc<Config>,
    /// `None`: the socket is reached from this host only, and asks for no key.
    pub(crate) keys: Option<Arc<CurveKeys>>,
    pub(crate) counts: Counts,
}

/// Counters of all subscribers.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) subscribers: AtomicUsize,
    pub(crate) sent: AtomicU64,
    pub(crate) missed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) crowded: AtomicU64,
}

impl Shared {
    /// Returns the name of the subscriber with this key, if the policy in force has one.
    pub(crate) fn name_of(&self, key: &[u8; 32]) -> Option<String> {
        self.policy.look(|state| {
            let of = |subscriber: &&csp_policy::EventSubscriber| subscriber.key.0 == *key;
            let listed = &state.active.as_ref()?.policy.event_subscribers;
            listed.iter().find(of).map(|subscriber| subscriber.name.clone())
        })
    }
}

/// The publisher of events.
#[derive(Clone, Debug)]
pub struct Bus(Arc<Shared>);

impl Bus {
    /// Listens as configured and publishes in the background. Errors say what is wrong with the address.
    pub async fn start(
        address: SocketAddr,
        keys: Option<Arc<CurveKeys>>,
        hub: Arc<Hub>,
        policy: Arc<PolicyReader>,
    ) -> Result<Bus, DaemonError> {
        let listener = listen(address).await?;
        let second = csp_types::Duration::from_secs(1);
        let mut config = Config::new(LocalType::Xpub);
        (config.message_len_max, config.frames_max) = (1024, 1);
        let (interval, timeout, ttl) = (second * 10, second * 10, second * 30);
        config.heartbeat = Some(Heartbeat { interval, timeout, ttl });
        let counts = Counts::default();
        let shared = Arc::new(Shared { hub, policy, config: Arc::new(config), keys, counts });
        tokio::spawn(accept(listener, shared.clone()));
        Ok(Bus(shared))
    }
}

/// Reads the pair of keys in a file. The error says what is wrong with it.
pub fn keys(path: &Path) -> Result<Arc<CurveKeys>, DaemonError> {
    let text = private_file::read(path, KEY_FILE_LEN_MAX);
    let keys = text.and_then(|text| csp_zmtp::parse_key_file(&text)).map(Arc::new);
    keys.map_err(|why| DaemonError::Unavailable(format!("events.key: {}: {why}", path.display())))
}

async fn listen(address: SocketAddr) -> Result<TcpListener, DaemonError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| {
        DaemonError::Unavailable(format!("events.listen: cannot listen on {address}: {error}"))
    })
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let places = Shares::new(OF_ADDRESS_MAX, SUBSCRIBERS_MAX);
    loop {
        match listener.accept().await {
            Ok((stream, from)) => match places.enter(from.ip()) {
                Some(place) => {
                    let subscriber = Subscriber::new(stream, from, shared.clone());
                    tokio::spawn(async move {
                        subscriber.serve().await;
                        drop(place);
                    });
                }
                None => _ = shared.counts.crowded.fetch_add(1, Ordering::Relaxed),
            },
            Err(error) => {
                tracing::warn!(%error, "the publisher of events could not accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl MetricSource for Bus {
    fn collect(&self, out: &mut MetricWriter) {
        let counts = &self.0.counts;
        let subscribers = counts.subscribers.load(Ordering::Relaxed) as f64;
        out.gauge("csp_event_subscribers", "Subscribers to events over ZeroMQ", &[], subscribers);
        for (name, help, count) in [
            ("csp_events_published_total", "Events sent to subscribers", &counts.sent),
            (
                "csp_events_missed_total",
                "Events that were no longer kept when a subscriber went on reading",
                &counts.missed,
            ),
            ("csp_event_subscribers_denied_total", "Subscribers without a key of the policy", &counts.denied),
            (
                "csp_event_subscribers_crowded_total",
                "Subscribers for whom there was no place",
                &counts.crowded,
            ),
        ] {
            out.counter(name, help, &[], count.load(Ordering::Relaxed));
        }
    }
}

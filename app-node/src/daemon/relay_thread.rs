//! The relay's thread: turns while there is work, waits when there is none; and the control thread's end of it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use csp_control::{ClusterKey, NodeRecord, SanProvider};
use csp_telemetry::{Mailbox, MailboxError, MailboxSender, MetricSource, MetricWriter, Reply, SnapshotCell};
use csp_transport::{EndpointConfig, PeerIdentity};
use csp_types::{Duration, Instant};
use csp_vi::{Armed, ProviderKind, ViConfig, WaitSet, Wake};

use super::DaemonError;
use crate::config::Config;
use crate::relay::{Counters, Relay, RelayConfig, SanPort, Target};

/// How long the relay looks again before it blocks when it found nothing. Short: on machines with few cores the others
/// need the processor to make work for it.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep, so that published numbers stay fresh.
const SLEEP_MAX: Duration = Duration::from_millis(250);
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);
/// Turns after closing, so that the ends get out before the process does.
const LAST_TURNS: usize = 3;
/// Questions that may wait.
const MAILBOX_CAPACITY: usize = 16;
/// How long the relay may take to listen for a new list of proxy workers.
const TARGETS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// What the control thread says to the relay.
enum Question {
    /// Listen for these; answered with those that are listened for.
    Targets(Vec<Target>, Reply<Vec<Target>>),
    /// End everything and the thread.
    Stop,
}

/// What the relay publishes.
#[derive(Clone, Copy, Debug, Default)]
struct Published {
    counters: Counters,
    occupancy: (usize, usize),
    /// Proxy workers that are listened for, and those of them that the agent has a link of its own to.
    routes: (usize, usize),
}

impl Published {
    fn of(relay: &Relay) -> Self {
        let watched = relay.routes().filter(|(_, up)| *up).count();
        Published {
            counters: *relay.counters(),
            occupancy: relay.occupancy(),
            routes: (relay.routes().count(), watched),
        }
    }
}

/// The relay as the control thread has it.
pub struct RelayThread {
    /// The providers that carry what leaves this host.
    pub providers: Vec<ProviderKind>,
    mailbox: MailboxSender<Question>,
    published: Arc<SnapshotCell<Published>>,
    thread: JoinHandle<()>,
}

impl RelayThread {
    /// Opens the providers that configuration and machine allow and starts the thread; `None` where there are none. To be
    /// called before other threads start: loading a provider's library may change the environment.
    pub fn start(
        config: &Config,
        record: &NodeRecord,
        key: &ClusterKey,
    ) -> Result<Option<RelayThread>, DaemonError> {
        let (providers, ports) = open_ports(config.san.provider)?;
        if ports.is_empty() {
            return Ok(None);
        }
        std::fs::create_dir_all(&config.node.run_dir)?;
        let fail = |error: csp_vi::ViError| DaemonError::San { provider: "shm", reason: error.to_string() };
        let relay = Relay::new(relay_config(config, record, key), ports).map_err(fail)?;
        let (mailbox, receiver) = csp_telemetry::mailbox::mailbox(MAILBOX_CAPACITY)?;
        let published = Arc::new(SnapshotCell::new(Published::of(&relay)));
        let (cell, set) = (Arc::clone(&published), WaitSet::new()?);
        let thread = std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || run(relay, receiver, &cell, set))?;
        Ok(Some(RelayThread { providers, mailbox, published, thread }))
    }

    /// Has the relay listen for these proxy workers; gives those that it listens for.
    pub async fn set_targets(&self, targets: Vec<Target>) -> Result<Vec<Target>, MailboxError> {
        self.mailbox.ask(TARGETS_TIMEOUT, |reply| Question::Targets(targets, reply)).await
    }

    /// The relay's numbers.
    pub fn metrics(&self) -> impl MetricSource + 'static {
        Metrics(Arc::clone(&self.published))
    }

    /// Ends all VIs and the thread.
    pub fn stop(self) {
        let _ = self.mailbox.send(Question::Stop); // one that is gone has stopped
        let _ = self.thread.join();
    }
}

fn open_ports(wanted: SanProvider) -> Result<(Vec<ProviderKind>, Vec<SanPort>), DaemonError> {
    let (mut kinds, mut ports) = (Vec::new(), Vec::new());
    for kind in [ProviderKind::Verbs, ProviderKind::Ucx] {
        if !wanted.allows(kind.as_str()) {
            continue;
        }
        match kind.open().and_then(|forward| Ok(SanPort { forward, watch: kind.open()? })) {
            Ok(port) => {
                kinds.push(kind);
                ports.push(port);
            }
            Err(error) if wanted.may_lack(kind.as_str()) => {
                tracing::info!(%error, "no {kind}: proxies of other hosts are not reached by it");
            }
            Err(error) => {
                return Err(DaemonError::San { provider: kind.as_str(), reason: error.to_string() });
            }
        }
    }
    Ok((kinds, ports))
}

fn relay_config(config: &Config, record: &NodeRecord, key: &ClusterKey) -> RelayConfig {
    let identity = PeerIdentity::daemon(csp_types::Role::AppNode, record.id, record.incarnation, 0);
    let channel = EndpointConfig::channel(identity, None);
    RelayConfig {
        node: record.id,
        incarnation: record.incarnation,
        folder: config.node.run_dir.clone(),
        users: config.users.clone(),
        vis_max: config.capacity.relay_vis,
        key: csp_transport::ClusterKey::from_bytes(*key.as_bytes()),
        nonce: rand::random(),
        vi: ViConfig {
            receive_depth: channel.receive_depth,
            send_depth: channel.send_depth,
            message_len: channel.message_len,
        },
    }
}

/// CLOCK_MONOTONIC, which the processes of one host share.
fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

fn run(
    mut relay: Relay,
    mut mailbox: Mailbox<Question>,
    published: &SnapshotCell<Published>,
    mut set: WaitSet,
) {
    let (mut wake, mut generation): (Vec<Wake>, Option<u64>) = (Vec::new(), None);
    let (mut last_work, mut last_published, mut unix_s) = (now(), Instant::ZERO, unix_now_s());
    set.add(&mailbox);
    loop {
        let at = now();
        let mut busy = relay.turn(at, unix_s);
        while let Some(question) = mailbox.poll() {
            busy = true;
            match question {
                Question::Targets(targets, reply) => reply.send(relay.set_targets(at, &targets)),
                Question::Stop => return stop(&mut relay, at, unix_s),
            }
        }
        if at.saturating_since(last_published) >= PUBLISH_INTERVAL {
            (last_published, unix_s) = (at, unix_now_s());
            published.publish(&Published::of(&relay));
        }
        if busy {
            last_work = at;
        } else if at.saturating_since(last_work) < SPIN {
            std::thread::yield_now();
        } else if matches!(relay.arm(), Ok(Armed::Armed)) {
            if generation != Some(relay.wake_generation()) {
                generation = Some(relay.wake_generation());
                wake.clear();
                relay.wake(&mut wake);
                set.update(&wake);
                set.add(&mailbox);
            }
            let until = relay.next_timeout().map_or(SLEEP_MAX, |t| t.saturating_since(at).min(SLEEP_MAX));
            if set.wait(until) {
                mailbox.clear_wake();
            }
            last_work = now();
        }
    }
}

/// Ends all VIs, and lets the SAN's libraries say so.
fn stop(relay: &mut Relay, at: Instant, unix_s: u64) {
    relay.close(at);
    for _ in 0..LAST_TURNS {
        relay.turn(now(), unix_s);
    }
}

struct Metrics(Arc<SnapshotCell<Published>>);

impl MetricSource for Metrics {
    fn collect(&self, out: &mut MetricWriter) {
        let Published { counters, occupancy, routes } = self.0.read();
        out.table("relay_vis", occupancy.0, occupancy.1);
        let help =
            "Proxy workers that processes reach through the agent, by whether it has a link of its own";
        out.gauge("csp_relay_routes", help, &[("link", "up")], routes.1 as f64);
        out.gauge("csp_relay_routes", help, &[("link", "none")], (routes.0 - routes.1) as f64);
        for (direction, messages, bytes) in [
            ("out", counters.out_messages, counters.out_bytes),
            ("in", counters.in_messages, counters.in_bytes),
        ] {
            let labels = [("direction", direction)];
            let help = "Messages forwarded between processes and proxies of other hosts";
            out.counter("csp_relay_messages_total", help, &labels, messages);
            out.counter("csp_relay_bytes_total", "Bytes of these messages", &labels, bytes);
        }
        out.counter(
            "csp_relay_waited_total",
            "Messages that the SAN did not take at once",
            &[],
            counters.waited,
        );
        out.counter("csp_relay_opened_total", "VIs of processes that were forwarded", &[], counters.opened);
        let help = "Proxy workers found dead by their silence";
        out.counter("csp_relay_proxies_silent_total", help, &[], counters.proxies_silent);
        for (reason, count) in counters.refused.by_reason() {
            let help = "VIs of processes that were not forwarded, or no longer, by reason";
            out.counter("csp_relay_refused_total", help, &[("reason", reason)], count);
        }
    }
}

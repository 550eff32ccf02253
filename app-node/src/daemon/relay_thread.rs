//! The relay in its thread, and the control thread's handle to it.

use std::ops::ControlFlow;
use std::sync::Arc;

use csp_control::NodeRecord;
use csp_daemon::{DaemonError, DataThread, DataWorker, Progress, clock};
use csp_telemetry::{MailboxError, MetricSource, MetricWriter, Reply, SnapshotCell};
use csp_transport::{EndpointConfig, Keys, PeerIdentity};
use csp_types::{Duration, Instant, Role};
use csp_vi::{Armed, ProviderKind, ViConfig, ViError, Wake};

use crate::config::{Config, SanSection};
use crate::relay::{Counters, Relay, RelayConfig, SanPort, Target};

/// Longest sleep, so that published values stay current.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Turns after closing, so that the ends are sent before the process ends.
const LAST_TURNS: usize = 3;
/// Largest number of queued requests.
const QUESTIONS_MAX: usize = 16;
/// How long the relay may take to listen for a new list of proxy workers.
const TARGETS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// A request of the control thread to the relay.
pub enum Question {
    /// Listen for these proxy workers; answered with those that the relay listens for.
    Targets(Vec<Target>, Reply<Vec<Target>>),
    /// Close all VIs and stop the thread.
    Stop,
}

/// What the relay publishes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Published {
    counters: Counters,
    occupancy: (usize, usize),
    /// Number of proxy workers that the relay listens for, and of those that the agent's own link reaches.
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

/// The control thread's handle to the relay.
pub struct RelayThread {
    /// The providers that carry messages to other hosts.
    pub providers: Vec<ProviderKind>,
    thread: DataThread<Question, Published>,
}

impl RelayThread {
    /// Opens the providers that configuration and host permit and starts the thread; `None` if there are
    /// none. To be called before other threads start: loading a provider's library may change the
    /// environment.
    pub fn start(
        config: &Config,
        record: &NodeRecord,
        keys: &Keys,
    ) -> Result<Option<RelayThread>, DaemonError> {
        let (providers, ports) = open_ports(&config.san)?;
        if ports.is_empty() {
            return Ok(None);
        }
        std::fs::create_dir_all(config.node.run_dir(Role::AppNode))?;
        let relay = Relay::new(relay_config(config, record, keys), ports)
            .map_err(|error| DaemonError::provider(ProviderKind::Shm, &error))?;
        let thread = DataThread::start("relay".to_owned(), relay, QUESTIONS_MAX, config.spin_us)?;
        Ok(Some(RelayThread { providers, thread }))
    }

    /// Replaces the proxy workers that the relay listens for. Returns those that it listens for.
    pub async fn set_targets(&self, targets: Vec<Target>) -> Result<Vec<Target>, MailboxError> {
        self.thread.mailbox().ask(TARGETS_TIMEOUT, |reply| Question::Targets(targets, reply)).await
    }

    /// Whether the relay's thread still takes turns.
    pub fn progress(&self) -> &Progress {
        self.thread.progress()
    }

    /// Returns the relay's metrics.
    pub fn metrics(&self) -> impl MetricSource + 'static {
        Metrics(Arc::clone(self.thread.published()))
    }

    /// Closes all VIs and stops the thread.
    pub fn stop(mut self) {
        DataThread::stop_all(std::slice::from_mut(&mut self.thread), || Question::Stop);
    }
}

fn open_ports(san: &SanSection) -> Result<(Vec<ProviderKind>, Vec<SanPort>), DaemonError> {
    let (mut kinds, mut ports) = (Vec::new(), Vec::new());
    let wanted = san.provider;
    let open = |kind: ProviderKind| kind.open_at(san.address);
    for kind in [ProviderKind::Verbs, ProviderKind::Tcp, ProviderKind::Ucx] {
        if !wanted.allows(kind.as_str()) {
            continue;
        }
        match open(kind).and_then(|forward| Ok(SanPort { forward, watch: open(kind)? })) {
            Ok(port) => {
                if kind == ProviderKind::Ucx && san.address.is_none() {
                    tracing::warn!("UCX listens on every address of this host, as san.address is not set");
                }
                kinds.push(kind);
                ports.push(port);
            }
            Err(error) if wanted.may_lack(kind.as_str()) => {
                tracing::info!(%error, "{kind} is not available: it reaches no proxies of other hosts");
            }
            Err(error) => return Err(DaemonError::provider(kind, &error)),
        }
    }
    Ok((kinds, ports))
}

fn relay_config(config: &Config, record: &NodeRecord, keys: &Keys) -> RelayConfig {
    let identity = PeerIdentity::daemon(Role::AppNode, record.id, record.incarnation, 0);
    let channel = EndpointConfig::channel(identity, None);
    RelayConfig {
        node: record.id,
        incarnation: record.incarnation,
        folder: config.node.run_dir(Role::AppNode),
        users: config.users.clone(),
        vis_max: config.capacity.relay_vis,
        keys: keys.clone(),
        nonce: rand::random(),
        vi: ViConfig {
            receive_depth: channel.receive_depth,
            send_depth: channel.send_depth,
            message_len: channel.message_len,
        },
    }
}

impl DataWorker for Relay {
    type Question = Question;
    type Published = Published;

    fn turn(&mut self, now: Instant, unix_s: u64) -> bool {
        Relay::turn(self, now, unix_s)
    }

    fn answer(&mut self, now: Instant, question: Question) -> ControlFlow<()> {
        match question {
            Question::Targets(targets, reply) => reply.send(self.set_targets(now, &targets)),
            Question::Stop => {
                Relay::turn(self, now, clock::unix_now_s());
                self.close(now);
                for _ in 0..LAST_TURNS {
                    Relay::turn(self, clock::now(), clock::unix_now_s());
                }
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn publish(&mut self) -> Published {
        Published::of(self)
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        Relay::arm(self)
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        Relay::wake(self, into);
    }

    fn wake_generation(&self) -> u64 {
        Relay::wake_generation(self)
    }

    fn next_timeout(&self) -> Option<Instant> {
        Relay::next_timeout(self)
    }

    fn sleep_max(&self) -> Duration {
        SLEEP_MAX
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
            "Messages that waited because the SAN's send queue was full",
            &[],
            counters.waited,
        );
        out.counter("csp_relay_opened_total", "VIs of processes that were forwarded", &[], counters.opened);
        let help = "Proxy workers declared dead because their link fell silent";
        out.counter("csp_relay_proxies_silent_total", help, &[], counters.proxies_silent);
        for (reason, count) in counters.refused.by_reason() {
            let help = "VIs of processes that were refused or ended by the relay, by reason";
            out.counter("csp_relay_refused_total", help, &[("reason", reason)], count);
        }
    }
}

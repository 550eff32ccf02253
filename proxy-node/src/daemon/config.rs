//! The daemon's configuration file.

use std::path::{Path, PathBuf};

use csp_control::config::{ConfigError, Problems, load_checked, spin};
use csp_control::{AdminSection, EtcdSection, LogSection, NodeSection, SanSection};
use csp_types::options::SynCookies;
use csp_types::spin::SpinSetting;
use serde::Deserialize;

use crate::core::EndedConnection;

use super::certificates::read_ticket_secret;
use super::curve_keys::{DEFAULT_FOLDER, KeyRing};
use super::record_log::{LogSection as RecordLogSection, Recorded};

/// Hairpins of a worker: connections between two programs of the cluster. Each occupies 128 KiB once it is
/// used.
pub const HAIRPINS: usize = 256;
/// Largest number of connections of each worker's local services to processes, without TCP.
pub const UPSTREAMS: usize = 4096;

/// The whole file. Defaults are defined here and nowhere else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This node's name, and its directories.
    pub node: NodeSection,
    /// The addresses of etcd.
    pub etcd: EtcdSection,
    /// The admin endpoint.
    pub admin: AdminSection,
    /// Logging.
    #[serde(default)]
    pub log: LogSection,
    /// Data workers: threads that own flows. 1 to 64.
    #[serde(default = "one")]
    pub workers: u8,
    /// How long a data thread without work polls before it sleeps: `auto` (adaptive), or a fixed number of
    /// microseconds, 0 to 1,000.
    #[serde(default, deserialize_with = "spin")]
    pub spin_us: SpinSetting,
    /// The processors of the data workers: worker n runs on the n-th, beginning again after the last. Empty:
    /// wherever the scheduler puts it.
    #[serde(default)]
    pub cpus: Vec<u16>,
    /// The provider of the SAN.
    pub san: SanSection,
    /// Capacities of the tables, per worker.
    #[serde(default)]
    pub capacity: CapacitySection,
    /// TCP towards clients.
    #[serde(default)]
    pub tcp: TcpSection,
    /// Channels of messages.
    #[serde(default)]
    pub messages: MessagesSection,
    /// TLS of clients.
    #[serde(default)]
    pub tls: TlsSection,
    /// Where connections are recorded that the policy says are to be. Absent: nowhere.
    #[serde(default)]
    pub connection_log: Option<RecordLogSection>,
    /// The cache of HTTP responses.
    #[serde(default)]
    pub http_cache: HttpCacheSection,
    /// The same of HTTP requests.
    #[serde(default)]
    pub http_log: Option<RecordLogSection>,
}

/// TLS of clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSection {
    /// Folder of the certificates that the policy names: of each a chain `NAME.pem` and its private key
    /// `NAME.key`, of mode 600. Default: `/etc/csp/tls`, which need not exist.
    pub certificates: PathBuf,
    /// A file with a secret of at least 32 random bytes, of mode 600, the same on all proxies: sessions are
    /// then resumed at each of them. Absent: at the proxy where they began.
    pub ticket_secret: Option<PathBuf>,
    /// Threads that make the steps of handshakes that take long: signatures with RSA keys, and the
    /// verification of clients' certificates. Absent: one for each processor that no data worker needs, 1 to
    /// 8. 0: the data workers make them.
    pub handshake_threads: Option<u8>,
}

impl Default for TlsSection {
    fn default() -> Self {
        TlsSection {
            certificates: super::certificates::DEFAULT_FOLDER.into(),
            ticket_secret: None,
            handshake_threads: None,
        }
    }
}

/// The cache of HTTP responses, which all workers share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpCacheSection {
    /// Memory for stored responses in MiB; it is taken as they come. 0: nothing is stored, to 1,048,576.
    pub memory_mib: u32,
}

impl Default for HttpCacheSection {
    fn default() -> Self {
        HttpCacheSection { memory_mib: 256 }
    }
}

/// Channels of messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MessagesSection {
    /// Folder of the secret keys of channels with CURVE: files of mode 600 whose names end with
    /// `.key_secret`, as `cspctl channel-key` makes them. Default: `/etc/csp/curve`, which need not exist.
    pub curve_keys: PathBuf,
}

impl Default for MessagesSection {
    fn default() -> Self {
        MessagesSection { curve_keys: DEFAULT_FOLDER.into() }
    }
}

/// Capacities of the tables of one worker; all memory is allocated at start-up.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CapacitySection {
    /// Client connections. 16 to 1,000,000.
    pub connections: usize,
    /// Connections during the handshake.
    pub half_open: usize,
    /// Memory for payload in flight, in MiB; touched only as it is used. Half of it is granted to
    /// applications as windows, so it also limits the number of open connections: 1,024 MiB suffice for about
    /// 10,000. 8 to 65,536.
    pub buffers_mib: usize,
    /// Events that the flight recorder holds (40 bytes each).
    pub trace_events: usize,
}

impl Default for CapacitySection {
    fn default() -> Self {
        CapacitySection { connections: 16_384, half_open: 4_096, buffers_mib: 1_024, trace_events: 65_536 }
    }
}

/// TCP towards clients.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpSection {
    /// Largest window advertised to a client, in KiB. 32 to 16,384: a record of TLS fits.
    pub receive_window_kib: u32,
    /// Window advertised initially, and while memory is short, in KiB; it grows with the rate at which the
    /// application reads. 32 to 16,384; limited by `receive_window_kib`.
    pub receive_window_initial_kib: u32,
    /// Largest window granted to an application towards a client, in KiB; it grows with what the path
    /// carries. 256 to 16,384.
    pub send_window_kib: u32,
    /// Smallest retransmission timeout, in ms. 1 to 60,000.
    pub rto_min_ms: u64,
    /// How long TIME-WAIT lasts, in s. 1 to 240.
    pub time_wait_s: u64,
    /// When SYNs are answered without storing state: `auto` (while a table is full), `off` or `always`.
    pub syn_cookies: SynCookies,
}

impl Default for TcpSection {
    fn default() -> Self {
        TcpSection {
            receive_window_kib: 6_144,
            receive_window_initial_kib: 64,
            send_window_kib: 4_096,
            rto_min_ms: 200,
            time_wait_s: 60,
            syn_cookies: SynCookies::Auto,
        }
    }
}

fn one() -> u8 {
    1
}

impl Config {
    /// Reads and validates the file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        load_checked(path, Config::check)
    }

    fn check(&self, problems: &mut Problems) {
        let (connections, requests) = (&EndedConnection::WHAT, &csp_gateway::Record::WHAT);
        self.connection_log.iter().for_each(|log| log.check(connections, problems));
        self.http_log.iter().for_each(|log| log.check(requests, problems));
        self.etcd.check("etcd", problems);
        self.node.check_exposure(&self.admin, &self.etcd, problems);
        let mut range = |field: &str, value: u64, low: u64, high: u64| {
            if !(low..=high).contains(&value) {
                problems.add(field, format!("{value} is out of range; allowed is {low} to {high}"));
            }
        };
        range("workers", self.workers.into(), 1, 64);
        // The ports above it are those of tunnels and channels of 64 workers.
        range("san.port", self.san.port.into(), 1, 65_535 - 1_023);
        range("capacity.connections", self.capacity.connections as u64, 16, 1_000_000);
        range("capacity.half_open", self.capacity.half_open as u64, 1, self.capacity.connections as u64);
        range("capacity.buffers_mib", self.capacity.buffers_mib as u64, 8, 65_536);
        range("capacity.trace_events", self.capacity.trace_events as u64, 1, 16 << 20);
        range("http_cache.memory_mib", self.http_cache.memory_mib.into(), 0, 1 << 20);
        range("tcp.receive_window_kib", self.tcp.receive_window_kib.into(), 32, 16_384);
        range("tcp.receive_window_initial_kib", self.tcp.receive_window_initial_kib.into(), 32, 16_384);
        range("tcp.send_window_kib", self.tcp.send_window_kib.into(), 256, 16_384);
        range("tcp.rto_min_ms", self.tcp.rto_min_ms, 1, 60_000);
        range("tcp.time_wait_s", self.tcp.time_wait_s, 1, 240);
        for wrong in KeyRing::load(&self.messages.curve_keys).wrong() {
            problems.add("messages.curve_keys", wrong);
        }
        let secret = self.tls.ticket_secret.as_ref().map(|path| read_ticket_secret(path));
        if let Some(wrong) = secret.and_then(Result::err) {
            problems.add("tls.ticket_secret", wrong);
        }
        let of_worker = self.capacity.connections + 2 * HAIRPINS + UPSTREAMS;
        let indices = of_worker as u64 * u64::from(self.workers);
        if indices >= 1 << csp_types::INDEX_BITS {
            problems.add(
                "capacity.connections",
                "workers times (connections + 4,608) must stay below 4,194,304 (22-bit labels)",
            );
        }
    }
}

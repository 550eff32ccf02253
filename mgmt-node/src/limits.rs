//! Bounds of the management node and its clients.

use std::time::Duration;

/// Longest policy file, in bytes.
pub const POLICY_LEN_MAX: usize = 8 << 20;
/// Nodes asked at the same time.
pub const FANOUT_PARALLEL_MAX: usize = 16;
/// Questions whose answers take long under way at the same time.
pub const FANOUT_SLOW_MAX: usize = 32;
/// How long one node may take to answer.
pub const FANOUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer of one node, in bytes.
pub const FANOUT_BODY_LEN_MAX: usize = 8 << 20;
/// Flows in one answer.
pub const FLOWS_MAX: usize = 10_000;
/// Events in one trace.
pub const TRACE_EVENTS_MAX: usize = 20_000;
/// Flows that belong to a traced one and whose traces are added to it.
pub const RELATED_MAX: usize = 8;
/// Flows in one list of recent flows.
pub const RECENT_MAX: usize = 1000;
/// How old a login may be with which a page applies a policy or rolls back.
pub const FRESH_LOGIN: Duration = Duration::from_secs(600);
/// Records of the audit log in one answer.
pub const AUDIT_MAX: usize = 1000;
/// Generations in one history.
pub const HISTORY_MAX: usize = 100;
/// How often members are asked for readiness and metrics.
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Members of pools with metrics, each counted once for every node that reports it.
pub const SERVICE_MEMBERS_SHOWN: usize = 20_000;
/// Samples of a counter kept for the drops of the last minute.
pub const DROP_SAMPLES_MAX: usize = 30;
/// Drop reasons kept per node; a node that names more is misbehaving.
pub const DROP_REASONS_MAX: usize = 256;
/// Time between two values of a figure.
pub const SERIES_INTERVAL: Duration = Duration::from_secs(10);
/// Values kept of a figure: an hour.
pub const SERIES_POINTS: usize = 360;
/// Nodes and services whose figures are kept.
pub const SERIES_OBJECTS_MAX: usize = 2048;
/// Figures of one of them.
pub const SERIES_FIGURES_MAX: usize = 16;
/// Objects in one answer of `/api/v1/series`.
pub const SERIES_ASKED_MAX: usize = 64;
/// Longest wait of one long-poll, in seconds.
pub const WAIT_S_MAX: u64 = 30;
/// How long nodes may take to agree on a policy, in seconds: default and most.
pub const ACK_TIMEOUT_S: u64 = 15;
/// See [`ACK_TIMEOUT_S`].
pub const ACK_TIMEOUT_S_MAX: u64 = 600;
/// How often policy and acknowledgements are read from etcd.
pub const POLICY_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How often the history is read when nothing is known to have changed.
pub const HISTORY_INTERVAL: Duration = Duration::from_secs(5);
/// How often acknowledgements are looked at while a policy is being published.
pub const ACK_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How old an answer to `/api/v1/overview` may be: all open pages share one fan-out.
pub const OVERVIEW_KEPT: Duration = Duration::from_secs(1);
/// Flows on the operations page.
pub const OVERVIEW_FLOWS: usize = 10;
/// Flows asked of each proxy to find those.
pub const OVERVIEW_FLOWS_ASKED: usize = 1000;

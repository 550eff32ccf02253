//! What the workers record and count for others: logs of connections and of HTTP requests, and boards from
//! which `/metrics` is written.

use std::sync::Arc;

use csp_cache::Store;
use csp_daemon::DaemonError;
use csp_telemetry::Exposition;

use crate::ProxyWorker;

use super::config::Config;
use super::metrics::{CacheMetrics, HttpBoard, HttpMetrics, ServiceBoard, ServiceMetrics};
use super::record_log::{ConnectionLog, HttpLog, RecordLog};

/// The logs and boards of a node. Clones share them.
#[derive(Clone, Debug)]
pub struct Recorders {
    /// Where connections are recorded.
    pub connections: Option<ConnectionLog>,
    /// Where HTTP requests are recorded.
    pub requests: Option<HttpLog>,
    services: Vec<ServiceBoard>,
    http: Vec<HttpBoard>,
    /// The cache of HTTP responses; `None`: nothing is stored.
    pub cache: Option<Arc<Store>>,
}

impl Recorders {
    /// Starts the writers of the logs that the configuration names.
    pub fn start(config: &Config) -> Result<Self, DaemonError> {
        let node = config.node.id;
        let connections =
            config.connection_log.as_ref().map(|log| RecordLog::start(log, node)).transpose()?;
        let requests = config.http_log.as_ref().map(|log| RecordLog::start(log, node)).transpose()?;
        let services = (0..config.workers).map(|_| ServiceBoard::default()).collect();
        let http = (0..config.workers).map(|_| HttpBoard::default()).collect();
        let memory = (config.http_cache.memory_mib as usize) << 20;
        let cache = (memory > 0).then(|| Store::new(memory, rand::random()));
        Ok(Recorders { connections, requests, services, http, cache })
    }

    /// Gives a worker its part.
    pub fn equip(&self, worker: &mut ProxyWorker) {
        let number = usize::from(worker.number());
        worker.gateway_mut().set_cache(self.cache.clone());
        self.connections.iter().for_each(|log| worker.set_connection_log(log.clone()));
        worker.set_service_board(self.services.get(number).cloned().unwrap_or_default());
        worker.set_http(self.requests.clone(), self.http.get(number).cloned().unwrap_or_default());
    }

    /// Registers the metrics, and begins to follow SIGHUP.
    pub fn serve(&self, metrics: &Exposition) {
        metrics.register(ServiceMetrics(self.services.clone()));
        metrics.register(HttpMetrics(self.http.clone()));
        self.cache.iter().for_each(|store| metrics.register(CacheMetrics(Arc::clone(store))));
        if let Some(log) = &self.connections {
            metrics.register(log.clone());
            tokio::spawn(log.clone().follow_hangups());
        }
        if let Some(log) = &self.requests {
            metrics.register(log.clone());
            tokio::spawn(log.clone().follow_hangups());
        }
    }

    /// Says what a policy has recorded, and this node does not.
    pub fn warn_of(&self, policy: &csp_policy::Policy) {
        for (section, lacks) in [
            ("connection_log", self.connections.is_none() && policy.connection_log.is_some()),
            ("http_log", self.requests.is_none() && policy.http_log.is_some()),
        ] {
            if lacks {
                tracing::warn!(
                    section,
                    "the policy has records made, and the section of this node's configuration does not say where"
                );
            }
        }
    }

    /// Waits until what the workers have given is written.
    pub fn finish(&self) {
        self.connections.iter().for_each(RecordLog::finish);
        self.requests.iter().for_each(RecordLog::finish);
    }
}

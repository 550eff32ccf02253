//! The core itself: construction, control and time.

use std::net::{IpAddr, SocketAddr};

use csp_classify::RuleError;
use csp_lan::Frame;
use csp_types::{Instant, NodeId, TraceRing};
use csp_wire::tunnel::Record;

use super::api::{CoreConfig, Counters, FlowInfo, NetworkOutput, PortId, ProxyId};

/// The network node's logic; one worker's own.
pub struct NetworkCore {
    counters: Counters,
    trace: TraceRing,
}

impl NetworkCore {
    /// A core without services and proxies. All tables are allocated here.
    pub fn new(config: CoreConfig) -> Self {
        NetworkCore { counters: Counters::default(), trace: TraceRing::new(config.trace_len) }
    }

    /// Replaces the services (virtual address and port) and egress addresses; flows go on. Addresses that are new are
    /// announced to the LAN.
    pub fn set_services(
        &mut self,
        now: Instant,
        services: &[SocketAddr],
        egress: &[IpAddr],
        out: &mut impl NetworkOutput,
    ) -> Result<(), RuleError> {
        let _ = (now, services, egress, out);
        Ok(())
    }

    /// All `workers` of a proxy can be sent to.
    pub fn proxy_up(&mut self, proxy: ProxyId, node: NodeId, workers: u8) {
        for worker in 0..workers {
            self.worker_up(proxy, node, worker);
        }
    }

    /// The proxy is dead or gone: its flows are forgotten, their next segments go to other proxies.
    pub fn proxy_down(&mut self, proxy: ProxyId) {
        let _ = proxy;
    }

    /// One worker of a proxy can be sent to.
    pub fn worker_up(&mut self, proxy: ProxyId, node: NodeId, worker: u8) {
        let _ = (proxy, node, worker);
    }

    /// One worker of a proxy is dead or gone, as [`proxy_down`](Self::proxy_down).
    pub fn worker_down(&mut self, proxy: ProxyId, worker: u8) {
        let _ = (proxy, worker);
    }

    /// Takes a frame from a LAN port.
    pub fn on_frame(&mut self, now: Instant, port: PortId, frame: &Frame<'_>, out: &mut impl NetworkOutput) {
        let _ = (now, port, frame, out);
    }

    /// Takes a record from the tunnel of worker `record.worker` of `proxy`; the caller checks that it came over that
    /// worker's link.
    pub fn on_record(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        out: &mut impl NetworkOutput,
    ) {
        let _ = (now, proxy, record, out);
    }

    /// Does what is due.
    pub fn on_timeout(&mut self, now: Instant, out: &mut impl NetworkOutput) {
        let _ = (now, out);
    }

    /// When to call [`on_timeout`](Self::on_timeout) next.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The flight recorder.
    pub fn trace(&self) -> &TraceRing {
        &self.trace
    }

    /// The flows in the table, in no order.
    pub fn flows(&self) -> impl Iterator<Item = FlowInfo> + '_ {
        std::iter::empty()
    }

    /// How many flows are in the table.
    pub fn flow_count(&self) -> usize {
        0
    }

    /// How many labels are bound.
    pub fn label_count(&self) -> usize {
        0
    }
}

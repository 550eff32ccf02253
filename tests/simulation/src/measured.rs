//! Turns of the nodes, each a function of its own, by whose name callgrind finds it.

use csp_network_node::NetworkWorker;
use csp_proxy_node::ProxyWorker;
use csp_types::Instant;

use crate::application::Application;

#[inline(never)]
pub(crate) fn measured_network_turn(worker: &mut NetworkWorker, now: Instant) -> bool {
    worker.turn(now, 1)
}

#[inline(never)]
pub(crate) fn measured_proxy_turn(worker: &mut ProxyWorker, now: Instant) -> bool {
    worker.turn(now, 1)
}

#[inline(never)]
pub(crate) fn measured_process_turn(process: &mut Application, now: Instant) -> bool {
    process.turn(now)
}

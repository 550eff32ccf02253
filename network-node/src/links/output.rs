//! The core's outputs: records into tunnels, frames onto LAN ports, to plug-in hosts and to the kernel.

use csp_lan::{TxOffload, steering};
use csp_plugins::EnvironmentId;
use csp_types::Instant;
use csp_wire::packets::Head;
use csp_wire::tunnel::Record;

use super::{Links, State};
use crate::core::{NetworkOutput, PortId, ProxyId, TunnelFull};

impl NetworkOutput for Links {
    fn tunnel(
        &mut self,
        now: Instant,
        proxy: ProxyId,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), TunnelFull> {
        let at = self.places.of_worker(proxy, record.worker).ok_or(TunnelFull)?;
        let tunnel = self.tunnels.get_mut(at).ok_or(TunnelFull)?;
        let (State::Up(..), Some(batch)) = (tunnel.state, &mut tunnel.batch) else { return Err(TunnelFull) };
        if let Some(inbox) = &tunnel.inbox {
            // What is queued stays before what follows.
            if batch.is_empty() && inbox.leave(record, parts) {
                return Ok(());
            }
            inbox.shut();
        }
        let endpoint = &mut self.endpoints[tunnel.spec.endpoint];
        batch.send(now, endpoint, record, parts).map_err(|_| TunnelFull)
    }

    fn host(
        &mut self,
        now: Instant,
        host: EnvironmentId,
        head: &Head,
        frame: &[u8],
    ) -> Result<(), TunnelFull> {
        self.hosts.send(now, host, (head, frame), &mut self.endpoints)
    }

    fn kernel(&mut self, port: PortId, frame: &[u8], offload: Option<TxOffload>) {
        // Every worker has a copy of these frames; the kernel must receive only one.
        if self.worker != 0 && steering::is_shared(frame) {
            return;
        }
        if let Some(Some(kernel)) = self.kernels.get_mut(usize::from(port.0)) {
            // A frame without room is counted by the device.
            let _ = kernel.transmit(&[frame], offload);
        }
    }

    fn lan(&mut self, port: PortId, parts: &[&[u8]], offload: Option<TxOffload>) {
        if let Some(transmitter) = self.transmitters.get_mut(usize::from(port.0)) {
            // A port that has no room for the frame has counted it.
            let _ = transmitter.transmit(parts, offload);
        }
    }
}

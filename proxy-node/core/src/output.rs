//! The output interface of the core: room in tunnels and channels, and sending.

use csp_types::{FourTuple, Instant};
use csp_wire::channel::MessageHeader;
use csp_wire::tunnel::Record;

use super::ChannelId;

/// One VI of a channel's pool. All messages of a flow use the same one, so that they stay in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane(pub u32);

/// The message was not sent, not even in part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// Try again after credits were returned.
    NoCredit,
    /// The tunnel or channel does not exist, or no longer.
    Gone,
}

/// The worker of a network node through which the proxy opens a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// Its number in the TCP engine.
    pub via: u32,
    /// Another local port may be better: the answers reach another worker, whose tunnel is down, or this
    /// worker runs in another thread, while one of the same network node runs in the proxy worker's own.
    pub is_far: bool,
}

/// The outputs of a proxy worker. Payloads are gathered from `parts`, which may be reused when a call
/// returns.
pub trait ProxyOutput {
    /// Returns whether the tunnel to `via` would accept a full-sized record. Also `true` if there is no such
    /// tunnel, so that nothing waits for it.
    fn tunnel_ready(&self, via: u32) -> bool;

    /// Sends a record to the network node `via`; the record's `payload` field is ignored.
    fn tunnel(&mut self, now: Instant, via: u32, record: &Record<'_>, parts: &[&[u8]])
    -> Result<(), Blocked>;

    /// Returns the worker of a network node through which to open a connection with these addresses: the one
    /// that receives the answers. `None` if no connected network node owns the local address, whatever the
    /// local port.
    fn network_node(&self, tuple: &FourTuple) -> Option<Way>;

    /// Sends a message to an application process. Without credit, all kinds but DATA are queued; their only
    /// error is [`Blocked::Gone`].
    fn channel(
        &mut self,
        now: Instant,
        lane: Lane,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), Blocked>;

    /// Returns whether `lane` would accept DATA. Also `true` if the lane is down, so that nothing waits for
    /// it.
    fn lane_ready(&self, lane: Lane) -> bool;

    /// Returns the lane of `channel` for a new flow; `number` distributes flows over the channel's VIs.
    fn lane(&self, channel: ChannelId, number: u32) -> Option<Lane>;
}

//! The ways out of the core: room in tunnels and channels, and sending.

use csp_types::Instant;
use csp_wire::channel::MessageHeader;
use csp_wire::tunnel::Record;

use super::ChannelId;

/// One VI of a channel's pool: all messages of a flow take the same one, so that they stay in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lane(pub u32);

/// The message could not be sent now; nothing of it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// Try again after credits came back.
    NoCredit,
    /// There is no such tunnel or channel (any more).
    Gone,
}

/// The ways out of a proxy worker. Payloads are gathered from `parts`; they may be reused when the call returns.
pub trait ProxyOutput {
    /// Whether a full-sized record would be taken by the tunnel to `via`; `true` as well where there is no such tunnel
    /// (any more), so that nothing waits for it.
    fn tunnel_ready(&self, via: u32) -> bool;

    /// Sends a record to the network node `via`; its `payload` field is not looked at.
    fn tunnel(&mut self, now: Instant, via: u32, record: &Record<'_>, parts: &[&[u8]])
    -> Result<(), Blocked>;

    /// A network node that is connected, for active opens.
    fn network_node(&self) -> Option<u32>;

    /// Sends a message to an application process. Everything but DATA is queued when there is no credit and returns
    /// [`Blocked::Gone`] at worst.
    fn channel(
        &mut self,
        now: Instant,
        lane: Lane,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), Blocked>;

    /// Whether DATA would be taken on `lane`; `true` as well where the lane is gone, so that nothing waits for it.
    fn lane_ready(&self, lane: Lane) -> bool;

    /// The lane of `channel` for a new flow; `number` spreads flows over the channel's pool of VIs.
    fn lane(&self, channel: ChannelId, number: u32) -> Option<Lane>;
}

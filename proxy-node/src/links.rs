//! The worker's links: tunnels to network nodes, channels to processes. Implements the core's output.

use std::collections::{BTreeMap, HashMap};

use csp_transport::{Channel, ChannelConfig, Endpoint, LinkId, PeerIdentity, ProcessId, TunnelBatch};
use csp_types::{Instant, NodeId, limits};
use csp_wire::channel::MessageHeader;
use csp_wire::tunnel::Record;

use crate::core::{Blocked, ChannelId, Lane, ProxyOutput};

/// A tunnel to a network node, with the number that the TCP engine stores (`via`; never reused).
#[derive(Debug)]
struct Tunnel {
    via: u32,
    endpoint: usize,
    link: LinkId,
    node: NodeId,
    /// The network node's worker.
    worker: u8,
    batch: TunnelBatch,
}

/// Identifies the process of a channel; a restarted process is a different one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ProcessKey {
    node: NodeId,
    process: ProcessId,
    incarnation: u64,
}

/// The channel of a process, whose links all belong to one endpoint.
struct ProcessChannel {
    endpoint: usize,
    process: ProcessKey,
    channel: Channel,
}

/// Bits of a lane's number that hold the link's slot in its endpoint; the others hold the endpoint's index.
const LANE_SLOT_BITS: u32 = 16;

fn lane(endpoint: usize, link: LinkId) -> Lane {
    Lane((endpoint as u32) << LANE_SLOT_BITS | link.index() as u32)
}

/// All links of one worker.
pub(crate) struct Links {
    pub(crate) tunnel_endpoints: Vec<Endpoint>,
    pub(crate) channel_endpoints: Vec<Endpoint>,
    tunnels: Vec<Tunnel>,
    next_via: u32,
    /// In ascending order of their numbers, so that equal runs send in the same order.
    channels: BTreeMap<ChannelId, ProcessChannel>,
    by_process: HashMap<(usize, ProcessKey), ChannelId>,
    next_channel: u32,
    /// By endpoint, then by the link's slot in it.
    lanes: Vec<Vec<Option<(ChannelId, LinkId)>>>,
    spare_batches: Vec<TunnelBatch>,
}

impl Links {
    pub(crate) fn new(tunnel_endpoints: Vec<Endpoint>, channel_endpoints: Vec<Endpoint>) -> Self {
        Links {
            tunnel_endpoints,
            tunnels: Vec::new(),
            next_via: 1,
            channels: BTreeMap::new(),
            by_process: HashMap::new(),
            next_channel: 1,
            lanes: channel_endpoints.iter().map(|_| Vec::new()).collect(),
            channel_endpoints,
            spare_batches: Vec::new(),
        }
    }

    /// Adds a tunnel; returns its `via`.
    pub(crate) fn tunnel_up(&mut self, endpoint: usize, link: LinkId, peer: &PeerIdentity) -> u32 {
        let batch = match self.spare_batches.pop() {
            Some(mut batch) => {
                batch.reset(link);
                batch
            }
            None => TunnelBatch::new(&self.tunnel_endpoints[endpoint], link),
        };
        let via = self.next_via;
        self.tunnels.push(Tunnel { via, endpoint, link, node: peer.node, worker: peer.worker, batch });
        self.next_via += 1;
        via
    }

    /// Removes a tunnel; returns its `via`.
    pub(crate) fn tunnel_down(&mut self, endpoint: usize, link: LinkId) -> Option<u32> {
        let at = self.tunnels.iter().position(|t| (t.endpoint, t.link) == (endpoint, link))?;
        let gone = self.tunnels.swap_remove(at);
        self.spare_batches.push(gone.batch);
        Some(gone.via)
    }

    /// Returns the `via` of a link.
    pub(crate) fn via(&self, endpoint: usize, link: LinkId) -> Option<u32> {
        self.tunnels.iter().find(|t| (t.endpoint, t.link) == (endpoint, link)).map(|t| t.via)
    }

    /// Returns the connected network nodes.
    pub(crate) fn network_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.tunnels.iter().map(|t| t.node)
    }

    /// Adds a VI of a process; returns the channel, and whether it is new. `None` if the channel has all its VIs.
    pub(crate) fn channel_link_up(
        &mut self,
        at: usize,
        link: LinkId,
        peer: &PeerIdentity,
    ) -> Option<(ChannelId, bool)> {
        let process = ProcessKey { node: peer.node, process: peer.process, incarnation: peer.incarnation };
        let known = self.by_process.get(&(at, process)).copied();
        let id = known.unwrap_or(ChannelId(self.next_channel));
        let endpoint = &self.channel_endpoints[at];
        let new_channel = || {
            let pool = usize::from(peer.pool_size).max(1);
            let config = ChannelConfig { links_max: pool, ..ChannelConfig::default() };
            ProcessChannel { endpoint: at, process, channel: Channel::new(endpoint, config) }
        };
        if !self.channels.entry(id).or_insert_with(new_channel).channel.add_link(link) {
            return None;
        }
        if known.is_none() {
            self.by_process.insert((at, process), id);
            self.next_channel += 1;
        }
        let lanes = &mut self.lanes[at];
        if lanes.len() <= link.index() {
            lanes.resize(link.index() + 1, None);
        }
        lanes[link.index()] = Some((id, link));
        Some((id, known.is_none()))
    }

    /// Removes a VI of a process; returns its channel and lane, and whether it was the channel's last.
    pub(crate) fn channel_link_down(&mut self, at: usize, link: LinkId) -> Option<(ChannelId, Lane, bool)> {
        let (id, _) = self.lanes[at].get_mut(link.index())?.take_if(|(_, l)| *l == link)?;
        let known = self.channels.get_mut(&id)?;
        known.channel.remove_link(link);
        let last = known.channel.is_empty();
        if last {
            let process = known.process;
            self.channels.remove(&id);
            self.by_process.remove(&(at, process));
        }
        Some((id, lane(at, link), last))
    }

    /// Returns the channel and lane of a link that is up.
    pub(crate) fn channel_of(&self, at: usize, link: LinkId) -> Option<(ChannelId, Lane)> {
        let (id, known) = (*self.lanes[at].get(link.index())?)?;
        (known == link).then_some((id, lane(at, link)))
    }

    /// Returns the channel and link of a lane.
    fn of_lane(&self, lane: Lane) -> Option<(ChannelId, LinkId)> {
        let lanes = self.lanes.get((lane.0 >> LANE_SLOT_BITS) as usize)?;
        *lanes.get(lane.0 as usize & ((1 << LANE_SLOT_BITS) - 1))?
    }

    /// Sends batches and queues as far as there is credit. Returns whether nothing is left.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        let mut all = true;
        for tunnel in &mut self.tunnels {
            all &= tunnel.batch.flush(now, &mut self.tunnel_endpoints[tunnel.endpoint]).is_ok();
        }
        for ProcessChannel { endpoint, channel, .. } in self.channels.values_mut() {
            all &= channel.flush(now, &mut self.channel_endpoints[*endpoint]);
        }
        all
    }
}

impl ProxyOutput for Links {
    fn tunnel_ready(&self, via: u32) -> bool {
        // One credit for the queued batch, one for the segment after it.
        let tunnel = self.tunnels.iter().find(|t| t.via == via);
        tunnel.is_none_or(|t| self.tunnel_endpoints[t.endpoint].credits(t.link) >= 2)
    }

    fn tunnel(
        &mut self,
        now: Instant,
        via: u32,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), Blocked> {
        let tunnel = self.tunnels.iter_mut().find(|t| t.via == via).ok_or(Blocked::Gone)?;
        let endpoint = &mut self.tunnel_endpoints[tunnel.endpoint];
        tunnel.batch.send(now, endpoint, record, parts).map_err(|_| Blocked::NoCredit)
    }

    fn network_node(&self) -> Option<u32> {
        // Answers to connections that applications open arrive at the network node's worker 0 (`csp_lan::steering`).
        let answered = self.tunnels.iter().find(|t| t.worker == limits::EGRESS_LAN_WORKER);
        answered.or(self.tunnels.first()).map(|t| t.via)
    }

    fn channel(
        &mut self,
        now: Instant,
        lane: Lane,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), Blocked> {
        let (id, link) = self.of_lane(lane).ok_or(Blocked::Gone)?;
        let ProcessChannel { endpoint, channel, .. } = self.channels.get_mut(&id).ok_or(Blocked::Gone)?;
        let endpoint = &mut self.channel_endpoints[*endpoint];
        channel.send(now, endpoint, link, &header, parts).map_err(|error| match error {
            csp_transport::ChannelError::Blocked => Blocked::NoCredit,
            _ => {
                // The queue of control messages overflows only if the process does not read at all.
                endpoint.fail(now, link);
                Blocked::Gone
            }
        })
    }

    fn lane_ready(&self, lane: Lane) -> bool {
        let Some((id, link)) = self.of_lane(lane) else { return true };
        let Some(known) = self.channels.get(&id) else { return true };
        known.channel.writable(&self.channel_endpoints[known.endpoint], link)
    }

    fn lane(&self, channel: ChannelId, number: u32) -> Option<Lane> {
        let known = self.channels.get(&channel)?;
        known.channel.pick(number).map(|link| lane(known.endpoint, link))
    }
}

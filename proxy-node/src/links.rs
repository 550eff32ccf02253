//! The worker's links: tunnels to network nodes, channels to processes. The core's way out.

use std::collections::{BTreeMap, HashMap};

use csp_transport::{Channel, ChannelConfig, Endpoint, LinkId, PeerIdentity, ProcessId, TunnelBatch};
use csp_types::{Instant, NodeId};
use csp_wire::channel::MessageHeader;
use csp_wire::tunnel::Record;

use crate::core::{Blocked, ChannelId, Lane, ProxyOutput};

/// A tunnel to a network node, by the number that the TCP engine remembers (`via`; never used twice).
#[derive(Debug)]
struct Tunnel {
    via: u32,
    endpoint: usize,
    link: LinkId,
    node: NodeId,
    batch: TunnelBatch,
}

/// Which process a channel belongs to; a process that comes back is another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ProcessKey {
    node: NodeId,
    process: ProcessId,
    incarnation: u64,
}

/// All links of one worker.
pub(crate) struct Links {
    pub(crate) now: Instant,
    pub(crate) tunnel_endpoints: Vec<Endpoint>,
    pub(crate) channel_endpoint: Endpoint,
    tunnels: Vec<Tunnel>,
    next_via: u32,
    /// In order of their numbers, so that equal runs send in equal order.
    channels: BTreeMap<ChannelId, (ProcessKey, Channel)>,
    by_process: HashMap<ProcessKey, ChannelId>,
    next_channel: u32,
    /// By slot of the link in its endpoint; a lane's number is that slot.
    lanes: Vec<Option<(ChannelId, LinkId)>>,
    spare_batches: Vec<TunnelBatch>,
}

impl Links {
    pub(crate) fn new(tunnel_endpoints: Vec<Endpoint>, channel_endpoint: Endpoint) -> Self {
        Links {
            now: Instant::ZERO,
            tunnel_endpoints,
            channel_endpoint,
            tunnels: Vec::new(),
            next_via: 1,
            channels: BTreeMap::new(),
            by_process: HashMap::new(),
            next_channel: 1,
            lanes: Vec::new(),
            spare_batches: Vec::new(),
        }
    }

    /// A tunnel came up; its `via`.
    pub(crate) fn tunnel_up(&mut self, endpoint: usize, link: LinkId, node: NodeId) -> u32 {
        let batch = match self.spare_batches.pop() {
            Some(mut batch) => {
                batch.reset(link);
                batch
            }
            None => TunnelBatch::new(&self.tunnel_endpoints[endpoint], link),
        };
        let via = self.next_via;
        self.tunnels.push(Tunnel { via, endpoint, link, node, batch });
        self.next_via += 1;
        via
    }

    /// A tunnel went down; its `via`.
    pub(crate) fn tunnel_down(&mut self, endpoint: usize, link: LinkId) -> Option<u32> {
        let at = self.tunnels.iter().position(|t| (t.endpoint, t.link) == (endpoint, link))?;
        let gone = self.tunnels.swap_remove(at);
        self.spare_batches.push(gone.batch);
        Some(gone.via)
    }

    /// The `via` of a link.
    pub(crate) fn via(&self, endpoint: usize, link: LinkId) -> Option<u32> {
        self.tunnels.iter().find(|t| (t.endpoint, t.link) == (endpoint, link)).map(|t| t.via)
    }

    /// Network nodes that are connected.
    pub(crate) fn network_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.tunnels.iter().map(|t| t.node)
    }

    /// A VI of a process came up; the channel, and whether it is new. `None`: its pool is full.
    pub(crate) fn channel_link_up(&mut self, link: LinkId, peer: &PeerIdentity) -> Option<(ChannelId, bool)> {
        let key = ProcessKey { node: peer.node, process: peer.process, incarnation: peer.incarnation };
        let known = self.by_process.get(&key).copied();
        let id = known.unwrap_or(ChannelId(self.next_channel));
        let endpoint = &self.channel_endpoint;
        let new_channel = || {
            let pool = usize::from(peer.pool_size).max(1);
            (key, Channel::new(endpoint, ChannelConfig { links_max: pool, ..ChannelConfig::default() }))
        };
        let (_, channel) = self.channels.entry(id).or_insert_with(new_channel);
        if !channel.add_link(link) {
            return None;
        }
        if known.is_none() {
            self.by_process.insert(key, id);
            self.next_channel += 1;
        }
        if self.lanes.len() <= link.index() {
            self.lanes.resize(link.index() + 1, None);
        }
        self.lanes[link.index()] = Some((id, link));
        Some((id, known.is_none()))
    }

    /// A VI of a process went down: its channel and lane, and whether it was the channel's last.
    pub(crate) fn channel_link_down(&mut self, link: LinkId) -> Option<(ChannelId, Lane, bool)> {
        let (id, _) = self.lanes.get_mut(link.index())?.take_if(|(_, l)| *l == link)?;
        let (key, channel) = self.channels.get_mut(&id)?;
        channel.remove_link(link);
        let last = channel.is_empty();
        if last {
            let key = *key;
            self.channels.remove(&id);
            self.by_process.remove(&key);
        }
        Some((id, Lane(link.index() as u32), last))
    }

    /// The channel and lane of a link that is up.
    pub(crate) fn channel_of(&self, link: LinkId) -> Option<(ChannelId, Lane)> {
        let (id, known) = (*self.lanes.get(link.index())?)?;
        (known == link).then_some((id, Lane(link.index() as u32)))
    }

    /// Sends what waits in batches and queues, as far as there is credit; whether nothing waits any more.
    pub(crate) fn flush(&mut self) -> bool {
        let mut all = true;
        for tunnel in &mut self.tunnels {
            all &= tunnel.batch.flush(self.now, &mut self.tunnel_endpoints[tunnel.endpoint]).is_ok();
        }
        for (_, channel) in self.channels.values_mut() {
            all &= channel.flush(self.now, &mut self.channel_endpoint);
        }
        all
    }
}

impl ProxyOutput for Links {
    fn tunnel_ready(&self, via: u32) -> bool {
        // One credit for what waits in the batch, one for the segment after it.
        let tunnel = self.tunnels.iter().find(|t| t.via == via);
        tunnel.is_none_or(|t| self.tunnel_endpoints[t.endpoint].credits(t.link) >= 2)
    }

    fn tunnel(&mut self, via: u32, record: &Record<'_>, parts: &[&[u8]]) -> Result<(), Blocked> {
        let tunnel = self.tunnels.iter_mut().find(|t| t.via == via).ok_or(Blocked::Gone)?;
        let endpoint = &mut self.tunnel_endpoints[tunnel.endpoint];
        tunnel.batch.send(self.now, endpoint, record, parts).map_err(|_| Blocked::NoCredit)
    }

    fn network_node(&self) -> Option<u32> {
        self.tunnels.first().map(|t| t.via)
    }

    fn channel(&mut self, lane: Lane, header: MessageHeader, parts: &[&[u8]]) -> Result<(), Blocked> {
        let (id, link) = self.lanes.get(lane.0 as usize).copied().flatten().ok_or(Blocked::Gone)?;
        let (_, channel) = self.channels.get_mut(&id).ok_or(Blocked::Gone)?;
        channel.send(self.now, &mut self.channel_endpoint, link, &header, parts).map_err(
            |error| match error {
                csp_transport::ChannelError::Blocked => Blocked::NoCredit,
                _ => {
                    // A queue of control messages that overflows belongs to a process that reads nothing at all.
                    self.channel_endpoint.fail(self.now, link);
                    Blocked::Gone
                }
            },
        )
    }

    fn lane_ready(&self, lane: Lane) -> bool {
        let Some((id, link)) = self.lanes.get(lane.0 as usize).copied().flatten() else { return true };
        let Some((_, channel)) = self.channels.get(&id) else { return true };
        channel.writable(&self.channel_endpoint, link)
    }

    fn lane(&self, channel: ChannelId, number: u32) -> Option<Lane> {
        let (_, channel) = self.channels.get(&channel)?;
        channel.pick(number).map(|link| Lane(link.index() as u32))
    }
}

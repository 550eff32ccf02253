//! The worker's links: tunnels to network nodes, channels to processes. Implements the core's output.

mod adjacent;
mod holders;
mod network_workers;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use csp_transport::{Channel, ChannelConfig, Endpoint, LinkId, PeerIdentity, ProcessId, TunnelBatch};
use csp_types::{FourTuple, Instant, NodeId, OwnedAddresses, steering};
use csp_wire::channel::MessageHeader;
use csp_wire::tunnel::Record;

use crate::core::{Blocked, ChannelId, Lane, ProxyOutput, Way};
use adjacent::Adjacent;
use holders::Holders;
use network_workers::{NetworkWorker, NetworkWorkers, Tunnel};

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
    /// Those with a tunnel; and those without, until their connections use another node
    /// ([`Links::next_move`]).
    network_workers: NetworkWorkers,
    /// What network nodes own, by their registrations; a node that is not in it owns all addresses.
    owned: HashMap<NodeId, OwnedAddresses>,
    /// Among how many workers network nodes distribute the answers to connections that the proxy opens, by
    /// their registrations.
    lan_workers: HashMap<NodeId, u8>,
    /// Who holds groups of addresses.
    pub(crate) holders: Holders,
    /// In ascending order of their numbers, so that equal runs send in the same order.
    channels: BTreeMap<ChannelId, ProcessChannel>,
    by_process: HashMap<(usize, ProcessKey), ChannelId>,
    next_channel: u32,
    /// By endpoint, then by the link's slot in it.
    lanes: Vec<Vec<Option<(ChannelId, LinkId)>>>,
    spare_batches: Vec<TunnelBatch>,
    pub(crate) adjacent: Adjacent,
}

impl Links {
    pub(crate) fn new(tunnel_endpoints: Vec<Endpoint>, channel_endpoints: Vec<Endpoint>) -> Self {
        Links {
            network_workers: NetworkWorkers::new(tunnel_endpoints.len()),
            owned: HashMap::new(),
            lan_workers: HashMap::new(),
            holders: Holders::default(),
            tunnel_endpoints,
            channels: BTreeMap::new(),
            by_process: HashMap::new(),
            next_channel: 1,
            lanes: channel_endpoints.iter().map(|_| Vec::new()).collect(),
            channel_endpoints,
            spare_batches: Vec::new(),
            adjacent: Adjacent::default(),
        }
    }

    /// Adds the tunnel of a network node's worker; returns the worker's `via`. A tunnel that it had before is
    /// over, whether or not its end has been noticed. `None` if too many workers are known.
    pub(crate) fn tunnel_up(&mut self, endpoint: usize, link: LinkId, peer: &PeerIdentity) -> Option<u32> {
        let batch = match self.spare_batches.pop() {
            Some(mut batch) => {
                batch.reset(link);
                batch
            }
            None => TunnelBatch::new(&self.tunnel_endpoints[endpoint], link),
        };
        let adjacent = self.adjacent.is(peer.node, peer.worker);
        let tunnel = Tunnel { endpoint, link, batch, adjacent };
        let (via, before) = self.network_workers.connect(peer.node, peer.worker, tunnel)?;
        if adjacent {
            self.adjacent.tunnel_up(via);
        }
        self.spare_batches.extend(before.map(|before| before.batch));
        Some(via)
    }

    /// Removes a tunnel. Its connections wait for the next one of the same network node's worker, unless
    /// [`next_move`](Self::next_move) reports otherwise. Returns the network node if it was its last tunnel.
    pub(crate) fn tunnel_down(&mut self, endpoint: usize, link: LinkId) -> Option<NodeId> {
        let via = self.network_workers.of_link(endpoint, link)?;
        self.adjacent.tunnel_down(via);
        let worker = self.network_workers.get_mut(via)?;
        let node = worker.node;
        let gone = worker.tunnel.take();
        self.spare_batches.extend(gone.map(|gone| gone.batch));
        let is_last = !self.network_workers.iter().any(|w| w.node == node && w.is_up());
        is_last.then_some(node)
    }

    /// Returns the network node of a worker.
    pub(crate) fn node_of(&self, via: u32) -> Option<NodeId> {
        self.network_workers.get(via).map(|worker| worker.node)
    }

    /// Sends a message of the election to worker 0 of a network node, from worker `number` of this proxy.
    /// What finds no room is lost: the next one follows soon.
    pub(crate) fn send_election(&mut self, now: Instant, node: NodeId, number: u8, message: &[u8]) {
        let Links { network_workers, tunnel_endpoints, .. } = self;
        let first = |w: &&mut NetworkWorker| w.node == node && w.worker == 0;
        let Some(tunnel) = network_workers.iter_mut().find(first).and_then(|w| w.tunnel.as_mut()) else {
            return;
        };
        let record = Record::election(number, message);
        let _ = tunnel.batch.send(now, &mut tunnel_endpoints[tunnel.endpoint], &record, &[message]);
    }

    /// Returns how many tunnels have lost their VI so far and waited for another.
    pub(crate) fn interruptions(&self) -> u64 {
        self.tunnel_endpoints.iter().map(|endpoint| endpoint.counters().links_interrupted).sum()
    }

    /// Returns the network nodes none of whose tunnels has a VI.
    pub(crate) fn interrupted_nodes(&self) -> Vec<NodeId> {
        let is_interrupted = |w: &NetworkWorker| {
            let tunnel = w.tunnel.as_ref()?;
            Some(self.tunnel_endpoints[tunnel.endpoint].link(tunnel.link)?.interrupted)
        };
        let mut nodes: Vec<NodeId> = self.network_nodes().collect();
        nodes.dedup();
        let all = |node: &NodeId| {
            let mut of_node =
                self.network_workers.iter().filter(|w| w.node == *node).filter_map(is_interrupted);
            of_node.all(|interrupted| interrupted)
        };
        nodes.retain(all);
        nodes
    }

    /// Returns the worker that connections of `local` are to use, if another network node than that of `via`
    /// holds the address: preferably the one of the same number.
    pub(crate) fn holders_worker(&self, local: IpAddr, via: u32) -> Option<u32> {
        let holder = self.holders.of(local)?;
        let now = self.network_workers.get(via);
        if now.is_some_and(|worker| worker.node == holder) {
            return None;
        }
        let number = now.map(|worker| worker.worker);
        self.worker_of(holder, number).map(|worker| worker.via)
    }

    /// Returns a worker of a network node that is up, preferably the one of this number.
    fn worker_of(&self, node: NodeId, number: Option<u8>) -> Option<&NetworkWorker> {
        let up = || self.network_workers.iter().filter(|w| w.node == node && w.is_up());
        up().find(|w| Some(w.worker) == number).or_else(|| up().next())
    }

    /// Returns the number of the network node's worker that receives the answers to a connection that the
    /// proxy opens. A node that has not registered yet has the workers that have connected.
    fn receiver_of(&self, node: NodeId, tuple: &FourTuple) -> u8 {
        let connected = || self.network_workers.iter().filter(|w| w.node == node).map(|w| w.worker).max();
        let registered = self.lan_workers.get(&node).copied();
        let workers = registered.or_else(|| connected().map(|last| last.saturating_add(1)));
        steering::worker_of(tuple, workers.unwrap_or(1))
    }

    /// Replaces the numbers of workers among which network nodes distribute answers. A node that is not
    /// registered any more still does as it did.
    pub(crate) fn set_lan_workers(&mut self, workers: HashMap<NodeId, u8>) {
        let Links { lan_workers, network_workers, .. } = self;
        lan_workers.retain(|node, _| network_workers.iter().any(|w| w.node == *node));
        lan_workers.extend(workers);
    }

    /// Replaces what network nodes own. A node that is not registered any more still owns what its
    /// connections use.
    pub(crate) fn set_owned(&mut self, owned: HashMap<NodeId, OwnedAddresses>) {
        let before = std::mem::replace(&mut self.owned, owned);
        for (node, owned) in before {
            if self.network_workers.iter().any(|w| w.node == node) {
                self.owned.entry(node).or_insert(owned);
            }
        }
    }

    /// Forgets a worker of a network node to which no tunnel is left. Returns its `via` and that of the
    /// worker of another network node that its connections are to use, one that owns all addresses of the
    /// first; `None` if there is no such pair: connections wait for the node that owns their addresses.
    pub(crate) fn next_move(&mut self) -> Option<(u32, u32)> {
        let all = &self.network_workers;
        let reached = |node: NodeId| all.iter().any(|w| w.node == node && w.is_up());
        let lost = all.iter().filter(|w| !reached(w.node));
        let (from, to) = lost.filter_map(|from| Some((from.via, self.substitute(from)?))).next()?;
        self.network_workers.remove(from);
        Some((from, to))
    }

    /// Returns the worker that connections of `lost` can use instead, preferably the one of the same number.
    fn substitute(&self, lost: &NetworkWorker) -> Option<u32> {
        let may = |node| self.owned_by(node).covers(self.owned_by(lost.node));
        let able = || self.network_workers.iter().filter(|w| w.is_up() && may(w.node));
        let same_number = able().find(|w| w.worker == lost.worker);
        same_number.or_else(|| able().next()).map(|w| w.via)
    }

    fn owned_by(&self, node: NodeId) -> &OwnedAddresses {
        static ALL: OwnedAddresses = OwnedAddresses::ALL;
        self.owned.get(&node).unwrap_or(&ALL)
    }

    /// Returns the `via` of a link.
    pub(crate) fn via(&self, endpoint: usize, link: LinkId) -> Option<u32> {
        self.network_workers.of_link(endpoint, link)
    }

    /// Returns the connected network nodes.
    pub(crate) fn network_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.network_workers.iter().filter(|w| w.is_up()).map(|w| w.node)
    }

    /// Adds a VI of a process; returns the channel, and whether it is new. `None` if the channel has all its
    /// VIs.
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
        for tunnel in self.network_workers.tunnels_mut() {
            all &= tunnel.batch.flush(now, &mut self.tunnel_endpoints[tunnel.endpoint]).is_ok();
        }
        for ProcessChannel { endpoint, channel, .. } in self.channels.values_mut() {
            all &= channel.flush(now, &mut self.channel_endpoints[*endpoint]);
        }
        self.adjacent.flush(now);
        all
    }
}

impl ProxyOutput for Links {
    fn tunnel_ready(&self, via: u32) -> bool {
        // One credit for the queued batch, one for the segment after it.
        let known = self.network_workers.get(via);
        let ready = |t: &Tunnel| match t.adjacent {
            true if self.adjacent.is_up() => self.adjacent.is_ready(),
            _ => self.tunnel_endpoints[t.endpoint].credits(t.link) >= 2,
        };
        known.and_then(|w| w.tunnel.as_ref()).is_none_or(ready)
    }

    fn tunnel(
        &mut self,
        now: Instant,
        via: u32,
        record: &Record<'_>,
        parts: &[&[u8]],
    ) -> Result<(), Blocked> {
        let known = self.network_workers.get_mut(via);
        let tunnel = known.and_then(|w| w.tunnel.as_mut()).ok_or(Blocked::Gone)?;
        if tunnel.adjacent && self.adjacent.take(now, record, parts) {
            return Ok(());
        }
        let endpoint = &mut self.tunnel_endpoints[tunnel.endpoint];
        tunnel.batch.send(now, endpoint, record, parts).map_err(|_| Blocked::NoCredit)
    }

    fn network_node(&self, tuple: &FourTuple) -> Option<Way> {
        let source = tuple.local.ip();
        let owns = |w: &&NetworkWorker| self.owned_by(w.node).contains(source);
        let up = || self.network_workers.iter().filter(|w| w.is_up());
        let held = self.holders.of(source).filter(|node| up().any(|w| w.node == *node));
        let node = held.or_else(|| up().find(owns).map(|w| w.node))?;
        let receiver = self.receiver_of(node, tuple);
        let worker = self.worker_of(node, Some(receiver))?;
        let adjacent = self.adjacent.via().filter(|via| self.node_of(*via) == Some(node));
        let is_far = worker.worker != receiver || adjacent.is_some_and(|via| via != worker.via);
        Some(Way { via: worker.via, is_far })
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests")]
mod tests;

//! The scripted proxy: what a proxy worker does on a channel, driven by the test's own thread.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use csp_transport::{
    ClusterKey, Endpoint, EndpointConfig, LinkEvent, LinkId, MessageKind as LinkMessage, PeerIdentity,
};
use csp_types::{FlowLabel, Instant, LabelAllocator, Role};
use csp_vi::shm::ShmProvider;
use csp_vi::{Armed, ViAddress};
use csp_wire::channel::{
    CLOSE_UNREAD, ConnectPayload, InfoPayload, ListenPayload, Message, MessageHeader, MessageKind, Messages,
    OpenPayload, OptionPayload, TakeOverPayload, TakenOverPayload, Ticket,
};

#[path = "hairpin.rs"]
mod hairpin;

/// Nothing that is waited for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that programs may have on their way.
const WINDOW: u32 = 256 * 1024;
const CHUNK: usize = 16 * 1024;

#[derive(Debug)]
struct Listener {
    link: LinkId,
    id: u32,
    address: SocketAddr,
    backlog: u32,
    credit: u32,
    opened: u64,
}

/// A connection as its client sees it.
#[derive(Debug, Default)]
pub struct Flow {
    link: Option<LinkId>,
    /// What the program sent.
    pub received: Vec<u8>,
    /// It will send no more.
    pub ended: bool,
    /// It closed, and the label is free.
    pub closed: bool,
    /// It was reset, for this reason.
    pub reset: Option<u32>,
    /// The program took it.
    pub accepted: bool,
    /// It was returned before.
    pub refused: bool,
    window: u32,
    to_send: Vec<u8>,
    sent: usize,
    shutdown_after: bool,
    /// Kinds of messages that came, in order, without CREDIT.
    pub kinds: Vec<MessageKind>,
    /// The other half, if both ends are applications.
    pair: Option<u32>,
    /// When it was offered to a process, and at which of its listeners.
    offered: Option<(Clock, u32)>,
    /// Its local and remote address, as the application sees them.
    ends: Option<(SocketAddr, SocketAddr)>,
    reset_after: bool,
    reset_sent: bool,
    /// SHUTDOWN went to it.
    end_sent: bool,
    /// A process left it to the process that presents this ticket.
    ticket: Option<Ticket>,
    /// How often that happened.
    pub handovers: u32,
    /// Options that the program set.
    pub options: Vec<(u32, u64)>,
}

/// A CONNECT that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Connect {
    link: LinkId,
    request: u32,
    window: u32,
    pub remote: SocketAddr,
    pub local: Option<SocketAddr>,
}

pub struct Proxy {
    endpoint: Endpoint,
    links: Vec<(LinkId, PeerIdentity)>,
    listeners: Vec<Listener>,
    flows: BTreeMap<u32, Flow>,
    pub asked: Vec<Connect>,
    labels: LabelAllocator<Vec<u32>>,
    /// What waits for descriptors.
    outbox: VecDeque<(LinkId, MessageHeader, Vec<u8>)>,
    scratch: Vec<u8>,
    hairpin: Option<hairpin::Hairpin>,
}

pub fn now() -> Instant {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn unix_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

impl Proxy {
    pub fn listen(path: &Path, key: ClusterKey) -> Proxy {
        let identity = PeerIdentity::daemon(Role::ProxyNode, "pn-1".parse().unwrap(), 7, 0);
        let config = EndpointConfig::channel(identity, Some(key.into()));
        let mut endpoint = Endpoint::new(Box::new(ShmProvider::new().unwrap()), config);
        endpoint.listen(&ViAddress::Path(path.to_owned())).unwrap();
        let scratch = vec![0; endpoint.message_len()];
        Proxy {
            endpoint,
            links: Vec::new(),
            listeners: Vec::new(),
            flows: BTreeMap::new(),
            asked: Vec::new(),
            labels: LabelAllocator::new(0, vec![0; 4096], vec![0; 4096]),
            outbox: VecDeque::new(),
            scratch,
            hairpin: None,
        }
    }

    /// Runs until `done` returns `true`; panics with `what` after [`PATIENCE`].
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Proxy) -> bool) {
        let deadline = Clock::now() + PATIENCE;
        while !done(self) {
            if !self.turn() {
                self.sleep();
            }
            assert!(Clock::now() < deadline, "waited in vain for {what}; flows: {:?}", self.summary());
        }
    }

    /// Runs for a time.
    pub fn run_for(&mut self, time: Duration) {
        let deadline = Clock::now() + time;
        while Clock::now() < deadline {
            if !self.turn() {
                self.sleep();
            }
        }
    }

    fn summary(&self) -> Vec<String> {
        let one = |(label, f): (&u32, &Flow)| {
            format!(
                "{label:x}: {} bytes, sent {}/{}, accepted {}, ended {}, closed {}, kinds {:?}",
                f.received.len(),
                f.sent,
                f.to_send.len(),
                f.accepted,
                f.ended,
                f.closed,
                f.kinds
            )
        };
        self.flows.iter().map(one).chain(self.listeners.iter().map(|l| format!("{l:?}"))).collect()
    }

    fn sleep(&mut self) {
        if self.endpoint.arm() == Ok(Armed::Busy) {
            return;
        }
        let mut wakes = Vec::new();
        self.endpoint.wake(&mut wakes);
        let mut fds: Vec<_> =
            wakes.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: the array is writable.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 20) };
    }

    /// One turn of the proxy's loop; whether anything happened.
    pub fn turn(&mut self) -> bool {
        let (begun, mut any) = (Clock::now(), self.endpoint.progress(now(), unix_s()));
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                any = true;
                match event {
                    LinkEvent::Up { link, peer, .. } => self.links.push((link, peer)),
                    LinkEvent::Down { link, .. } => self.lost(link),
                }
            }
            let mut scratch = std::mem::take(&mut self.scratch);
            let received = self.endpoint.receive(now(), &mut scratch);
            if let Some(received) = received {
                any = true;
                for message in Messages::new(&scratch[..received.len]) {
                    self.message(received.link, &message.unwrap());
                }
            }
            self.scratch = scratch;
            if received.is_none() {
                break;
            }
        }
        self.offer_waiting(begun);
        self.flush();
        if self.outbox.is_empty() {
            self.push_data();
        }
        any
    }

    fn lost(&mut self, link: LinkId) {
        self.links.retain(|(l, _)| *l != link);
        self.listeners.retain(|l| l.link != link);
        self.drop_void(link);
        let of_pairs =
            |(label, f): (&u32, &Flow)| (f.link == Some(link) && f.pair.is_some()).then_some(*label);
        let pairs: Vec<u32> = self.flows.iter().filter_map(of_pairs).collect();
        for label in pairs {
            if self.flows.get(&label).is_some_and(|f| !f.closed) {
                self.ended_by_application(label, false);
            }
        }
        for flow in self.flows.values_mut().filter(|f| f.link == Some(link)) {
            flow.link = None;
            flow.ended = true;
            flow.closed = true;
        }
    }

    fn send(&mut self, link: LinkId, header: MessageHeader, payload: &[u8]) -> bool {
        let header = MessageHeader { payload_len: payload.len() as u32, ..header }.emit();
        let padding = [0; 8];
        let pad = payload.len().next_multiple_of(8) - payload.len();
        let gather = [&header[..], payload, &padding[..pad]];
        self.endpoint.send(now(), link, LinkMessage::Channel, 0, &gather).is_ok()
    }

    fn send_control(&mut self, link: LinkId, kind: MessageKind, id: u32, argument: u32) {
        self.send_with(link, MessageHeader::new(kind, id, argument, 0), &[]);
    }

    /// Sends when a descriptor is free, in order.
    fn send_with(&mut self, link: LinkId, header: MessageHeader, payload: &[u8]) {
        self.outbox.push_back((link, header, payload.to_vec()));
        self.flush();
    }

    fn flush(&mut self) {
        while let Some((link, header, payload)) = self.outbox.pop_front() {
            if !self.send(link, header, &payload) && self.endpoint.link(link).is_some() {
                self.outbox.push_front((link, header, payload));
                return;
            }
        }
    }

    fn message(&mut self, link: LinkId, message: &Message<'_>) {
        let header = message.header;
        match header.kind {
            MessageKind::Listen => {
                let address = ListenPayload::parse(message.payload).unwrap().address;
                let (id, backlog) = (header.id, header.argument);
                self.listeners.push(Listener { link, id, address, backlog, credit: 0, opened: 0 });
            }
            MessageKind::Unlisten => self.listeners.retain(|l| l.link != link || l.id != header.id),
            MessageKind::AcceptCredit => {
                let l = self.listeners.iter_mut().find(|l| l.link == link && l.id == header.id).unwrap();
                if header.argument > 0 {
                    return l.credit += header.argument;
                }
                let unused = std::mem::take(&mut l.credit);
                self.send_control(link, MessageKind::AcceptCredit, header.id, unused);
            }
            MessageKind::Connect => {
                let ConnectPayload { remote, local } = ConnectPayload::parse(message.payload).unwrap();
                let asked = Connect { link, request: header.id, window: header.argument, remote, local };
                if self.hairpin.is_some() && remote.ip().is_loopback() {
                    self.connect_asked(asked);
                } else {
                    self.asked.push(asked);
                }
            }
            MessageKind::TakeOver => self.take_over(link, message),
            _ if self.is_void(link, &header) => {}
            _ => self.flow_message(link, message),
        }
    }

    /// Another process brings the ticket of a connection that was left.
    fn take_over(&mut self, link: LinkId, message: &Message<'_>) {
        let TakeOverPayload { label, ticket } = TakeOverPayload::parse(message.payload).unwrap();
        let (label, request) = (label.to_wire(), message.header.id);
        let Some(flow) = self.flows.get_mut(&label).filter(|f| f.ticket == Some(ticket)) else {
            return self.send_control(link, MessageKind::Refused, request, libc::ECONNRESET as u32);
        };
        flow.ticket = None;
        flow.link = Some(link);
        flow.accepted = true;
        flow.window = message.header.argument;
        flow.shutdown_after |= std::mem::take(&mut flow.end_sent);
        let ((local, remote), shut) = (flow.ends.unwrap(), flow.ended);
        let pair = flow.pair.and_then(|partner| self.flows.get(&partner));
        // Bytes that the other application has not been given yet.
        let in_flight = pair.map_or(0, |partner| (partner.to_send.len() - partner.sent) as u32);
        let open = OpenPayload { local, remote, window: WINDOW };
        let payload = TakenOverPayload { open, in_flight, shut }.emit();
        self.send_with(link, MessageHeader::new(MessageKind::TakenOver, label, request, 0), &payload);
    }

    fn flow_message(&mut self, link: LinkId, message: &Message<'_>) {
        let header = message.header;
        let flow = self.flows.get_mut(&header.id).unwrap_or_else(|| panic!("{header:?}"));
        if header.kind == MessageKind::Option {
            flow.options.push((header.argument, OptionPayload::parse(message.payload).unwrap().value));
            return;
        }
        if header.kind == MessageKind::Info {
            let info = InfoPayload {
                state: flow.state(),
                rtt_us: 1_234,
                mss: 1_448,
                cwnd: 14_480,
                ..InfoPayload::default()
            };
            let header = MessageHeader::new(MessageKind::Info, header.id, 0, 0);
            return self.send_with(link, header, &info.emit());
        }
        if header.kind != MessageKind::Credit {
            flow.kinds.push(header.kind);
        }
        if header.kind == MessageKind::HandOver {
            flow.ticket = Some(Ticket::parse(message.payload).unwrap());
            flow.handovers += 1;
            flow.accepted = false;
            flow.link = None;
            return self.send_control(link, MessageKind::HandedOver, header.id, 0);
        }
        if let Some(partner) = flow.pair {
            return self.paired_message(link, message, partner);
        }
        match header.kind {
            MessageKind::Accepted => {
                flow.accepted = true;
                flow.window = header.argument;
            }
            MessageKind::Refused => {
                flow.refused = true;
                flow.closed = true;
            }
            MessageKind::Data => {
                assert!(!flow.ended, "data after the end");
                flow.received.extend_from_slice(message.payload);
                self.send_control(link, MessageKind::Credit, header.id, header.payload_len);
            }
            MessageKind::Credit => flow.window += header.argument,
            MessageKind::Shutdown => flow.ended = true,
            MessageKind::Close | MessageKind::Reset => {
                flow.ended = true;
                if header.kind == MessageKind::Reset {
                    flow.reset = Some(header.argument);
                }
                if !std::mem::replace(&mut flow.closed, true) {
                    self.send_control(link, MessageKind::Close, header.id, 0);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn push_data(&mut self) {
        let labels: Vec<u32> = self.flows.keys().copied().collect();
        for label in labels {
            while self.flows.contains_key(&label) && self.push_some(label) {}
        }
    }

    fn push_some(&mut self, label: u32) -> bool {
        let flow = &self.flows[&label];
        let Some(link) = flow.link.filter(|_| flow.accepted && !flow.closed) else { return false };
        let n = (flow.to_send.len() - flow.sent).min(flow.window as usize).min(CHUNK);
        if n == 0 {
            self.push_end(label, link);
            return false;
        }
        let chunk = flow.to_send[flow.sent..flow.sent + n].to_vec();
        let header = MessageHeader::new(MessageKind::Data, label, 0, 0);
        if !self.send(link, header, &chunk) {
            return false;
        }
        let flow = self.flows.get_mut(&label).unwrap();
        flow.sent += n;
        flow.window -= n as u32;
        let Some(partner) = flow.pair else { return true };
        flow.to_send.drain(..std::mem::take(&mut flow.sent));
        if let Some(Flow { link: Some(link), closed: false, reset_sent: false, .. }) =
            self.flows.get(&partner)
        {
            self.send_control(*link, MessageKind::Credit, partner, n as u32);
        }
        true
    }

    /// Processes that listen on `port`, and how many of them take connections now.
    pub fn listening(&self, port: u16) -> (usize, usize) {
        let of = |l: &&Listener| l.address.port() == port;
        let all = self.listeners.iter().filter(of);
        (all.clone().count(), all.filter(|l| l.credit > 0).count())
    }

    /// How many connections each process that listens on `port` was given.
    pub fn shares(&self, port: u16) -> Vec<u64> {
        self.listeners.iter().filter(|l| l.address.port() == port).map(|l| l.opened).collect()
    }

    /// Opens a connection to `port` and queues what the client sends; waits until someone takes connections.
    pub fn open(&mut self, port: u16, data: &[u8], then_shutdown: bool) -> u32 {
        self.until("a process that takes connections", |p| p.listening(port).1 > 0);
        let label = self.labels.allocate().unwrap().to_wire();
        let eligible = self.listeners.iter_mut().filter(|l| l.address.port() == port && l.credit > 0);
        let listener = eligible.min_by_key(|l| l.opened).unwrap();
        listener.credit -= 1;
        listener.opened += 1;
        let (link, id) = (listener.link, listener.id);
        let remote = SocketAddr::from(([10, 76, 0, 1], 40_000 + (label % 20_000) as u16));
        let local = SocketAddr::from(([10, 76, 0, 100], port));
        let payload = OpenPayload { local, remote, window: WINDOW };
        let flow = Flow {
            link: Some(link),
            ends: Some((local, remote)),
            to_send: data.to_vec(),
            shutdown_after: then_shutdown,
            ..Flow::default()
        };
        self.flows.insert(label, flow);
        self.send_with(link, MessageHeader::new(MessageKind::Open, label, id, 0), &payload.emit());
        label
    }

    pub fn flow(&self, label: u32) -> &Flow {
        &self.flows[&label]
    }

    /// Adds to what the client sends.
    pub fn write(&mut self, label: u32, data: &[u8]) {
        self.flows.get_mut(&label).unwrap().to_send.extend_from_slice(data);
    }

    pub fn shutdown(&mut self, label: u32) {
        self.flows.get_mut(&label).unwrap().shutdown_after = true;
    }

    pub fn reset(&mut self, label: u32) {
        self.until("somebody to have it", |p| p.flow(label).link.is_some());
        let link = self.flows[&label].link.unwrap();
        self.send_control(link, MessageKind::Reset, label, libc::ECONNRESET as u32);
        self.flows.get_mut(&label).unwrap().closed = true;
    }

    /// A whole exchange: sends `request`, waits until the program closes, returns what it answered.
    pub fn exchange(&mut self, port: u16, request: &[u8]) -> Vec<u8> {
        let label = self.open(port, request, false);
        self.until("the answer's end", |p| p.flow(label).ended);
        // A client that has everything closes.
        self.shutdown(label);
        self.until("the program to close", |p| p.flow(label).closed);
        self.take_flow(label).received
    }

    /// The flow's end; its label may be used again.
    pub fn take_flow(&mut self, label: u32) -> Flow {
        let flow = self.flows.remove(&label).unwrap();
        assert!(flow.closed, "the label is still in use");
        self.labels.release(FlowLabel::from_wire(label).unwrap());
        flow
    }

    /// Answers a CONNECT.
    pub fn connected(&mut self, asked: Connect) -> u32 {
        let label = self.labels.allocate().unwrap().to_wire();
        let local = SocketAddr::from(([10, 76, 0, 101], 50_000));
        let payload = OpenPayload { local, remote: asked.remote, window: WINDOW };
        let (link, ends) = (Some(asked.link), Some((local, asked.remote)));
        let flow = Flow { link, ends, accepted: true, window: asked.window, ..Flow::default() };
        self.flows.insert(label, flow);
        let header = MessageHeader::new(MessageKind::Connected, label, asked.request, 0);
        self.send_with(asked.link, header, &payload.emit());
        label
    }

    pub fn connect_refused(&mut self, asked: Connect, reason: i32) {
        self.send_control(asked.link, MessageKind::Refused, asked.request, reason as u32);
    }

    /// Ids of the processes that have a link.
    pub fn processes(&self) -> Vec<String> {
        self.links.iter().map(|(_, peer)| peer.process.as_str().to_owned()).collect()
    }
}

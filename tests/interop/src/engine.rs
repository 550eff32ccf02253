//! The engine's host: csp-tcp on a raw-socket port, which serves [`Session`]s.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use csp_lan::af_packet::{self, AfPacketConfig};
use csp_lan::{Frame, LanReceiver, LanTransmitter, RECEIVE_BATCH_MAX};
use csp_tcp::{Arrival, Event, Stack, StackConfig};
use csp_types::{Duration, FlowLabel, Instant, MacAddr};
use csp_wire::Ecn;

use crate::frames::{self, Received};
use crate::host;
use crate::session::{Session, Tally, Want};

/// Interval of the checks for commands while there is no work.
const IDLE: Duration = Duration::from_millis(5);
/// Largest number of bytes per read.
const READ_MAX: usize = 1 << 20;

/// Addresses of the host.
#[derive(Clone, Debug)]
pub struct Place {
    /// Name of the interface.
    pub interface: String,
    /// Ethernet address of the interface.
    pub mac: MacAddr,
    /// IP address.
    pub ip: Ipv4Addr,
    /// TCP port to listen on.
    pub port: u16,
}

/// The engine's host, controlled by commands.
pub struct EngineHost {
    orders: Option<Sender<Sender<String>>>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the configuration under test: the defaults, with windows and pools large enough for the fastest
/// cell.
pub fn stack_config(seed: u64) -> StackConfig {
    let mut isn_secret = [0x5a; 16];
    isn_secret[..8].copy_from_slice(&seed.to_be_bytes());
    StackConfig {
        connections: 4_096,
        blocks: 131_072,
        time_wait_entries: 65_536,
        // Equal to the limits of Linux' tcp_rmem and tcp_wmem.
        receive_window_max: 6 << 20,
        send_buffer_max: 4 << 20,
        isn_secret,
        ..StackConfig::default()
    }
}

impl EngineHost {
    /// Starts the host in the calling thread's namespace, which contains its interface.
    pub fn start(place: Place, config: StackConfig, tally: Arc<Tally>) -> Result<Self> {
        let port = af_packet::open(&AfPacketConfig::new(&place.interface)).context("the engine's port")?;
        let mut stack = Stack::new(config);
        stack.listen(SocketAddr::new(IpAddr::V4(place.ip), place.port), 0).context("the engine listens")?;
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
            if let Err(error) = host::raise_priority(host::HOST_PRIORITY) {
                eprintln!("the engine runs without real-time priority: {error:#}");
            }
            let sessions = HashMap::new();
            let service = Service { stack, sessions, tally };
            let (receiver, transmitter) = (port.receiver, port.transmitter);
            let link = Link { transmitter, place, peer: MacAddr::BROADCAST, identification: 0 };
            Worker { receiver, link, service, scratch: Vec::with_capacity(1 << 16) }.run(&inbox);
        })?;
        Ok(EngineHost { orders: Some(orders), thread: Some(thread) })
    }

    /// Aborts all connections. Returns the engine's counters.
    pub fn reset(&self) -> Result<String> {
        let (reply, answer) = channel();
        let Some(orders) = &self.orders else { bail!("the engine was stopped") };
        orders.send(reply).ok().context("the engine has ended")?;
        answer.recv().context("the engine has ended")
    }
}

impl Drop for EngineHost {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The engine and the sessions on it.
struct Service {
    stack: Stack,
    sessions: HashMap<FlowLabel, Session>,
    tally: Arc<Tally>,
}

/// The transmit path.
struct Link {
    transmitter: Box<dyn LanTransmitter>,
    place: Place,
    /// Ethernet address of the only client.
    peer: MacAddr,
    identification: u16,
}

struct Worker {
    receiver: Box<dyn LanReceiver>,
    link: Link,
    service: Service,
    scratch: Vec<u8>,
}

impl Worker {
    fn run(&mut self, inbox: &Receiver<Sender<String>>) {
        let descriptors: Vec<_> = self.receiver.fds().into_iter().flatten().collect();
        loop {
            match inbox.try_recv() {
                Ok(reply) => {
                    self.service.abort_all(host::now());
                    let counters = format!("{:?}", self.service.stack.counters());
                    let _ = reply.send(counters);
                }
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            let now = host::now();
            let (link, service) = (&mut self.link, &mut self.service);
            let taken = self.receiver.receive(&mut |frame| on_frame(now, &frame, link, service));
            self.service.stack.on_timeout(host::now());
            self.service.serve(host::now());
            self.transmit(host::now());
            if taken < RECEIVE_BATCH_MAX {
                let idle = host::now() + IDLE;
                let until = self.service.stack.next_timeout().map_or(idle, |due| due.min(idle));
                host::wait_readable(&descriptors, until);
            }
        }
    }

    fn transmit(&mut self, now: Instant) {
        let link = &mut self.link;
        while let Some(transmit) = self.service.stack.poll_transmit(now) {
            let pieces = transmit.payload_len.div_ceil(usize::from(transmit.segment_size).max(1));
            let macs = (link.place.mac, link.peer);
            let fields = (link.identification, Ecn::NotEct);
            // A frame that the port drops is lost like any other, and TCP recovers.
            let _ = frames::transmit(&mut *link.transmitter, macs, fields, &transmit, &mut self.scratch);
            link.identification = link.identification.wrapping_add(pieces.max(1) as u16);
        }
        link.transmitter.flush();
    }
}

fn on_frame(now: Instant, frame: &Frame<'_>, link: &mut Link, service: &mut Service) {
    match frames::read(frame, link.place.ip) {
        Received::Segment { tuple, mac, ecn, segment } => {
            link.peer = mac;
            let arrival = Arrival {
                label: FlowLabel::NONE,
                tuple: Some(tuple),
                ingress: now,
                via: 0,
                ecn: ecn.bits(),
                segment_size: 0,
            };
            // The engine counts the segments that it refuses.
            let _ = service.stack.on_segment(now, arrival, &segment, segment.payload());
        }
        Received::ArpRequest { mac, ip } => {
            let own = (link.place.mac, link.place.ip);
            frames::reply_arp(&mut *link.transmitter, own, (mac, ip));
        }
        Received::Other | Received::Malformed => {}
    }
}

impl Service {
    fn abort_all(&mut self, now: Instant) {
        self.sessions.clear();
        let labels: Vec<FlowLabel> = self.stack.connections().map(|connection| connection.label).collect();
        for label in labels {
            self.stack.abort(now, label);
        }
    }

    fn serve(&mut self, now: Instant) {
        while let Some((label, event)) = self.stack.poll_event() {
            match event {
                Event::Established { .. } => {
                    self.sessions.insert(label, Session::default());
                }
                Event::Readable | Event::Writable | Event::Broken(_) => self.advance(now, label),
                Event::PeerFinished => {
                    self.advance(now, label);
                    if self.sessions.get(&label).is_some_and(|s| s.want() == Want::Read) {
                        self.stack.close(now, label);
                    }
                }
                Event::Closed | Event::Failed(_) | Event::Reset => {
                    self.sessions.remove(&label);
                }
            }
        }
    }

    /// Reads and writes until the session makes no more progress.
    fn advance(&mut self, now: Instant, label: FlowLabel) {
        let Some(session) = self.sessions.get_mut(&label) else { return };
        let tally = &self.tally;
        loop {
            let progress = match session.want() {
                Want::Read => {
                    self.stack.read_with(now, label, READ_MAX, |slice| session.on_bytes(slice, tally)) > 0
                }
                Want::Write => {
                    let sent = self.stack.write(now, label, session.to_send());
                    session.on_sent(sent);
                    sent > 0
                }
                Want::Close => {
                    self.stack.close(now, label);
                    self.sessions.remove(&label);
                    return;
                }
            };
            if !progress {
                return;
            }
        }
    }
}

//! The links of a worker to plug-in hosts (level 3): which instances a host runs, packets for it, calls of
//! their operations.
//!
//! ```text
//!   down ── dial ─▶ connecting ── up ─▶ configuring ── CONFIGURED ─▶ running
//!    ▲ back-off        │ refused, lost     │ refused, lost              │ lost: the rules' fallback applies
//!    └─────────────────┴───────────────────┴────────────────────────────┘
//! ```
//! A host gets the instances, packets and calls of a worker over one link, in sequence: so every packet meets
//! the instances that were in force when it was handed over.

use std::collections::VecDeque;
use std::sync::Arc;

use csp_plugins::EnvironmentId;
use csp_plugins::remote::REMOTE_LEN_MAX;
use csp_transport::{
    Backoff, BackoffConfig, DownReason, Endpoint, LinkId, PacketBatch, PeerIdentity, Purpose,
};
use csp_types::{Duration, Instant, NodeId, Role};
use csp_wire::packets::{Head, Kind};

use super::describe;
use super::spec::{DialSpec, LinkNotice, TokenSource};
use crate::core::TunnelFull;

/// Largest number of messages, 1 MiB in total, that wait for credit per host. Packets beyond are dropped.
const QUEUE_MESSAGES: usize = 16;
/// Delay before a host that has refused its instances is sent them again, since room may have become free.
const REFUSED_AGAIN: Duration = Duration::from_secs(10);
/// Largest number of unanswered calls per host.
const CALLS_MAX: usize = 16;

/// A plug-in host, as the policy names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSpec {
    /// The environment of its instances.
    pub environment: EnvironmentId,
    /// The application node on whose host it runs.
    pub node: NodeId,
    /// The address at which it listens.
    pub dial: DialSpec,
}

/// The instances of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostInstances {
    /// Their environment.
    pub environment: EnvironmentId,
    /// The output of [`csp_plugins::remote::write_hosted`].
    pub text: Arc<str>,
}

/// Receives the host's answer to a call, or the reason why there is none.
pub type Answered = Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>;

/// A change of the core's view that a host's record or link causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostTransition {
    Up(EnvironmentId),
    Down(EnvironmentId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Down,
    Connecting(LinkId),
    Up(LinkId),
}

struct Call {
    number: u32,
    instance: u32,
    text: String,
    sent: usize,
    answer: Vec<u8>,
    answered: Answered,
}

struct Host {
    spec: HostSpec,
    state: State,
    backoff: Backoff,
    failure_reported: bool,
    batch: Option<PacketBatch>,
    /// Generation of the instances, and the number of bytes of their text that were sent.
    generation: u32,
    sent: usize,
    sending: bool,
    running: bool,
    /// Why it does not run.
    absence: String,
    /// When to send it again the instances that it has refused.
    again: Option<Instant>,
    calls: VecDeque<Call>,
}

impl Host {
    fn link(&self) -> Option<LinkId> {
        match self.state {
            State::Down => None,
            State::Connecting(link) | State::Up(link) => Some(link),
        }
    }

    /// Discards the state that depends on the link.
    fn drop_link(&mut self, now: Instant) -> bool {
        self.state = State::Down;
        self.backoff.failed(now);
        (self.batch, self.sending, self.again) = (None, false, None);
        for call in self.calls.drain(..) {
            (call.answered)(Err("the plug-in host is gone".to_owned()));
        }
        std::mem::take(&mut self.running)
    }
}

/// All hosts of one worker, indexed by environment.
#[derive(Default)]
pub(crate) struct Hosts {
    hosts: Vec<Option<Host>>,
    texts: Vec<Arc<str>>,
    call_number: u32,
    notices: Vec<LinkNotice>,
}

impl Hosts {
    fn get(&mut self, environment: EnvironmentId) -> Option<&mut Host> {
        self.hosts.get_mut(usize::from(environment.0))?.as_mut()
    }

    /// Replaces the hosts. Links to hosts that are no longer listed, or listed with another address, are
    /// closed. Returns the environments that no longer run.
    pub(crate) fn set(
        &mut self,
        now: Instant,
        specs: &[HostSpec],
        endpoints: &mut [Endpoint],
    ) -> Vec<HostTransition> {
        let mut downs = Vec::new();
        for slot in &mut self.hosts {
            let Some(host) = slot.take_if(|host| !specs.contains(&host.spec)) else { continue };
            let mut host = host;
            if let Some(link) = host.link() {
                endpoints[host.spec.dial.endpoint].close(now, link);
            }
            if host.drop_link(now) {
                downs.push(HostTransition::Down(host.spec.environment));
            }
        }
        for spec in specs {
            let at = usize::from(spec.environment.0);
            if self.hosts.len() <= at {
                self.hosts.resize_with(at + 1, || None);
            }
            self.hosts[at].get_or_insert_with(|| Host {
                spec: spec.clone(),
                state: State::Down,
                backoff: Backoff::new(BackoffConfig::default(), u64::from(spec.environment.0)),
                failure_reported: false,
                batch: None,
                generation: 0,
                sent: 0,
                sending: false,
                running: false,
                absence: "it was not reached yet".to_owned(),
                again: None,
                calls: VecDeque::with_capacity(CALLS_MAX),
            });
        }
        downs
    }

    /// Returns the environments that have a host.
    pub(crate) fn environments(&self) -> impl Iterator<Item = EnvironmentId> + '_ {
        self.hosts.iter().flatten().map(|host| host.spec.environment)
    }

    /// Returns the hosts that do not run their instances, each with the reason.
    pub(crate) fn absent(&self) -> impl Iterator<Item = (EnvironmentId, &str)> {
        let absent = self.hosts.iter().flatten().filter(|host| !host.running);
        absent.map(|host| (host.spec.environment, host.absence.as_str()))
    }

    /// Replaces the instances of hosts. Packets handed over later are sent after them.
    pub(crate) fn configure(&mut self, all: &[HostInstances]) {
        for HostInstances { environment, text } in all {
            let at = usize::from(environment.0);
            if self.texts.len() <= at {
                self.texts.resize_with(at + 1, || "".into());
            }
            if std::mem::replace(&mut self.texts[at], text.clone()) != *text
                && let Some(host) = self.get(*environment).filter(|host| matches!(host.state, State::Up(_)))
            {
                host.begin_configuring();
            }
        }
    }

    /// Dials every host that is down and due. Returns whether there was any.
    pub(super) fn dial(
        &mut self,
        now: Instant,
        unix_now_s: u64,
        worker: u8,
        tokens: &mut TokenSource,
        endpoints: &mut [Endpoint],
    ) -> bool {
        let mut any = false;
        for host in self.hosts.iter_mut().flatten() {
            if host.again.take_if(|at| *at <= now).is_some() {
                host.begin_configuring();
                any = true;
            }
            if host.state != State::Down || !host.backoff.ready(now) {
                continue;
            }
            any = true;
            let token = tokens.issue_for_host(unix_now_s, host.spec.node);
            let DialSpec { endpoint, address, .. } = &host.spec.dial;
            let endpoint = &mut endpoints[*endpoint];
            match endpoint.connect(now, address, Purpose::Packets, worker, (0, 1), token.as_bytes()) {
                Ok(link) => host.state = State::Connecting(link),
                Err(error) => host.failed(now, &error.to_string(), &mut self.notices),
            }
        }
        any
    }

    /// Returns when the next host is to be dialled.
    pub(super) fn next_dial(&self) -> Option<Instant> {
        let down = self.hosts.iter().flatten().filter(|host| host.state == State::Down);
        let again = self.hosts.iter().flatten().filter_map(|host| host.again);
        down.map(|host| host.backoff.next_try()).chain(again).min()
    }

    /// Returns the environment of the host to which a link leads.
    pub(crate) fn of_link(&self, endpoint: usize, link: LinkId) -> Option<EnvironmentId> {
        let its = |host: &&Host| host.spec.dial.endpoint == endpoint && host.link() == Some(link);
        self.hosts.iter().flatten().find(its).map(|host| host.spec.environment)
    }

    /// Processes the end of a link's handshake.
    pub(crate) fn link_up(
        &mut self,
        now: Instant,
        environment: EnvironmentId,
        peer: &PeerIdentity,
        endpoints: &mut [Endpoint],
    ) {
        let Hosts { hosts, notices, .. } = self;
        let Some(host) = hosts.get_mut(usize::from(environment.0)).and_then(Option::as_mut) else { return };
        let (Some(link), node) = (host.link(), host.spec.node) else { return };
        let endpoint = &mut endpoints[host.spec.dial.endpoint];
        if (peer.role, peer.node) != (Role::AppNode, node) {
            endpoint.close(now, link);
            host.failed(now, &format!("{} {} answers there", peer.role, peer.node), notices);
            return;
        }
        host.state = State::Up(link);
        "it begins".clone_into(&mut host.absence);
        host.backoff.succeeded();
        host.failure_reported = false;
        host.batch = Some(PacketBatch::new(endpoint, link, QUEUE_MESSAGES));
        host.begin_configuring();
        notices.push(LinkNotice::HostUp { node, address: host.spec.dial.address.to_string() });
    }

    /// Processes the end of a link.
    pub(crate) fn link_down(
        &mut self,
        now: Instant,
        environment: EnvironmentId,
        reason: &DownReason,
    ) -> Option<HostTransition> {
        let Hosts { hosts, notices, .. } = self;
        let host = hosts.get_mut(usize::from(environment.0))?.as_mut()?;
        if !matches!(host.state, State::Up(_)) {
            host.failed(now, &describe(reason), notices);
            return None;
        }
        host.absence = format!("the link was lost: {}", describe(reason));
        notices.push(LinkNotice::HostLost { node: host.spec.node, reason: describe(reason) });
        host.drop_link(now).then_some(HostTransition::Down(environment))
    }

    /// Processes a record that is not about a packet. Returns false if its kind is not one that hosts send.
    pub(crate) fn on_record(
        &mut self,
        now: Instant,
        environment: EnvironmentId,
        head: &Head,
        payload: &[u8],
    ) -> Option<HostTransition> {
        let Hosts { hosts, notices, .. } = self;
        let host = hosts.get_mut(usize::from(environment.0))?.as_mut()?;
        match head.kind {
            // Records about former instances are not about these.
            Kind::Configured if head.sequence == host.generation && !host.sending => {
                if payload.is_empty() {
                    host.absence.clear();
                    let already = std::mem::replace(&mut host.running, true);
                    return (!already).then_some(HostTransition::Up(environment));
                }
                let reason = String::from_utf8_lossy(payload).into_owned();
                let absence = format!("it refuses its plug-ins: {reason}");
                host.again = Some(now + REFUSED_AGAIN);
                if std::mem::replace(&mut host.absence, absence) != host.absence {
                    notices.push(LinkNotice::HostRefused { node: host.spec.node, reason });
                }
                let ran = std::mem::take(&mut host.running);
                ran.then_some(HostTransition::Down(environment))
            }
            Kind::Answer => {
                let at = host.calls.iter().position(|call| call.number == head.sequence)?;
                let call = host.calls.get_mut(at)?;
                if call.answer.len() + payload.len() <= REMOTE_LEN_MAX {
                    call.answer.extend_from_slice(payload);
                }
                if !head.more
                    && let Some(call) = host.calls.remove(at)
                {
                    (call.answered)(Ok(call.answer));
                }
                None
            }
            _ => None,
        }
    }

    /// Sends a packet to a host, after everything that was sent before.
    pub(super) fn send(
        &mut self,
        now: Instant,
        environment: EnvironmentId,
        (head, frame): (&Head, &[u8]),
        endpoints: &mut [Endpoint],
    ) -> Result<(), TunnelFull> {
        let Hosts { hosts, texts, .. } = self;
        let host = hosts.get_mut(usize::from(environment.0)).and_then(Option::as_mut).ok_or(TunnelFull)?;
        let endpoint = &mut endpoints[host.spec.dial.endpoint];
        if host.sending {
            // The instances precede the packets for them.
            host.flush(now, texts.get(usize::from(environment.0)).map_or("", |text| text), endpoint);
        }
        if !host.running || host.sending {
            return Err(TunnelFull);
        }
        let batch = host.batch.as_mut().ok_or(TunnelFull)?;
        batch.push(now, endpoint, head, frame).map_err(|_| TunnelFull)
    }

    /// Makes a host execute an operation of an instance. `text` is the output of
    /// [`csp_plugins::remote::write_call`].
    pub(crate) fn call(
        &mut self,
        environment: EnvironmentId,
        instance: u32,
        text: String,
        answered: Answered,
    ) {
        self.call_number = self.call_number.wrapping_add(1);
        let number = self.call_number;
        match self.get(environment).filter(|host| host.running) {
            None => answered(Err("the plug-in host does not run".to_owned())),
            Some(host) if host.calls.len() >= CALLS_MAX => {
                answered(Err(format!("{CALLS_MAX} calls of the plug-in host wait already")));
            }
            Some(host) => {
                let answer = Vec::new();
                host.calls.push_back(Call { number, instance, text, sent: 0, answer, answered });
            }
        }
    }

    /// Sends instances, calls and queued packets, as far as there is credit.
    pub(super) fn flush(&mut self, now: Instant, endpoints: &mut [Endpoint]) {
        let Hosts { hosts, texts, .. } = self;
        for host in hosts.iter_mut().flatten() {
            let text = texts.get(usize::from(host.spec.environment.0)).map_or("", |text| text);
            host.flush(now, text, &mut endpoints[host.spec.dial.endpoint]);
        }
    }

    /// Closes all links cleanly.
    pub(super) fn close(&mut self, now: Instant, endpoints: &mut [Endpoint]) {
        for host in self.hosts.iter().flatten() {
            host.link().into_iter().for_each(|link| endpoints[host.spec.dial.endpoint].close(now, link));
        }
        self.hosts.clear();
    }

    pub(super) fn take_notices(&mut self) -> impl Iterator<Item = LinkNotice> + '_ {
        self.notices.drain(..)
    }
}

impl Host {
    fn failed(&mut self, now: Instant, reason: &str, notices: &mut Vec<LinkNotice>) {
        self.state = State::Down;
        self.backoff.failed(now);
        self.absence = format!("it is not reached: {reason}");
        if !std::mem::replace(&mut self.failure_reported, true) {
            notices.push(LinkNotice::HostFailed { node: self.spec.node, reason: reason.to_owned() });
        }
    }

    fn begin_configuring(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        (self.sent, self.sending, self.again) = (0, true, None);
    }

    fn flush(&mut self, now: Instant, text: &str, endpoint: &mut Endpoint) {
        let Some(batch) = &mut self.batch else { return };
        while self.sending {
            let head = Head::new(Kind::Configure, self.generation);
            match send_piece(now, &head, text, self.sent, batch, endpoint) {
                Some((sent, more)) => (self.sent, self.sending) = (sent, more),
                None => break,
            }
        }
        if !self.sending {
            for call in &mut self.calls {
                let head = Head { instance: call.instance, ..Head::new(Kind::Call, call.number) };
                while call.sent < call.text.len() {
                    match send_piece(now, &head, &call.text, call.sent, batch, endpoint) {
                        Some((sent, _)) => call.sent = sent,
                        None => break,
                    }
                }
                if call.sent < call.text.len() {
                    break;
                }
            }
        }
        // Messages without credit stay queued; the peer's next credits wake this thread.
        let _ = batch.flush(now, endpoint);
    }
}

/// Queues the part of a text from offset `sent` on. Returns the new offset, and whether more remains; `None`
/// if there is no room.
fn send_piece(
    now: Instant,
    head: &Head,
    text: &str,
    sent: usize,
    batch: &mut PacketBatch,
    endpoint: &mut Endpoint,
) -> Option<(usize, bool)> {
    let rest = text.as_bytes().get(sent..).unwrap_or_default();
    let piece = &rest[..rest.len().min(batch.payload_len_max())];
    let more = piece.len() < rest.len();
    batch.push(now, endpoint, &Head { more, ..*head }, piece).ok()?;
    Some((sent + piece.len(), more))
}

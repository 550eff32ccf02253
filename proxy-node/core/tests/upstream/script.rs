//! A local service that follows a test's script, and records each call that the core makes.

use std::collections::{BTreeMap, VecDeque};

use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::between::Between;
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{
    Ended, Ends, Excluded, OpenError, Opened, Request, ServerId, Upstream, UpstreamEnd,
};
use csp_quality::OutputLink;
use csp_types::{FlowLabel, FourTuple, Instant};

use crate::world::{CLIENT, POOL, World};

/// A call by which the core reports on an upstream connection.
#[derive(Clone, PartialEq, Debug)]
pub enum Told {
    Opened(u64, Result<Opened, OpenError>),
    Gone(FlowLabel, Ended),
}

/// A service without clients' connections of its own accord.
#[derive(Default)]
pub struct Script {
    pub requests: VecDeque<Request>,
    pub told: Vec<Told>,
    pub clients: Vec<FlowLabel>,
    /// What is to be sent to each upstream connection, and what is read of it.
    pub sends: BTreeMap<FlowLabel, Vec<u8>>,
    pub read: BTreeMap<FlowLabel, Vec<u8>>,
    /// Bytes that may be read of each, if not all.
    pub reads: Option<usize>,
    /// The step of the next visit, once all is sent.
    pub step: Option<Step>,
    pub ready: Vec<FlowLabel>,
    /// What a visit of the first connection writes to the second one.
    pub across: Option<(FlowLabel, FlowLabel, Vec<u8>)>,
    /// How to end other connections in the next visit.
    pub others: Vec<(FlowLabel, Step)>,
    /// Whether each has finished, and has ended.
    pub finished: BTreeMap<FlowLabel, (bool, Option<Ended>)>,
    pub visits: usize,
    /// A connection that is to have so much room; `None` once it has.
    pub wants: Option<(FlowLabel, usize)>,
    /// The member of each.
    pub server_of: BTreeMap<FlowLabel, ServerId>,
}

pub fn request(token: u64) -> Upstream {
    Upstream {
        token,
        service: POOL.into(),
        excluded: Excluded::NONE,
        client: (CLIENT, 4_711).into(),
        client_flow: FlowLabel::NONE,
        window: 0,
        deadline: None,
    }
}

impl Between for Script {}

impl LocalServices for Script {
    fn connected(&mut self, _: Instant, label: FlowLabel, _: u32, _: FourTuple) -> bool {
        self.clients.push(label);
        true
    }

    fn serve(&mut self, _: Instant, label: FlowLabel, ends: &mut impl Ends, _: &mut OutputLink) -> Step {
        let client = ends.client(label).unwrap();
        if client.is_finished() { Step::Close } else { Step::Idle }
    }

    fn gone(&mut self, _: Instant, label: FlowLabel) {
        self.clients.retain(|known| *known != label);
    }

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        self.ready.pop()
    }

    fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    fn opened(&mut self, _: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        self.told.push(Told::Opened(token, outcome));
        self.server_of.extend(outcome.ok().map(|opened| (opened.label, opened.server)));
        self.finished.extend(outcome.ok().map(|opened| (opened.label, (false, None))));
    }

    fn serve_upstream(
        &mut self,
        _: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        _: &mut OutputLink,
    ) -> Step {
        self.visits += 1;
        let mut server = ends.upstream(label).expect("it is served");
        let bytes = self.sends.entry(label).or_default();
        let sent = server.write(&[&bytes[..bytes.len() / 2], &[], &bytes[bytes.len() / 2..]]);
        bytes.drain(..sent);
        let is_sent = bytes.is_empty();
        self.wants.take_if(|(wanted, room)| *wanted == label && server.room() >= *room);
        let len = server.readable().min(self.reads.unwrap_or(usize::MAX));
        let read = self.read.entry(label).or_default();
        server.peek(len).for_each(|slice| read.extend_from_slice(slice));
        server.consume(len);
        self.finished.insert(label, (server.is_finished(), server.ended()));
        drop(server);
        if let Some((_, other, bytes)) = self.across.take_if(|(visited, ..)| *visited == label) {
            let sent = ends.upstream(other).expect("it is served").write(&[&bytes]);
            self.sends.entry(other).or_default().extend_from_slice(&bytes[sent..]);
        }
        self.others.drain(..).for_each(|(other, how)| ends.end(other, how));
        match self.step.take_if(|_| is_sent) {
            Some(step) => step,
            None if sent + len > 0 => Step::Moved,
            None => Step::Idle,
        }
    }

    fn upstream_gone(&mut self, _: Instant, label: FlowLabel, how: Ended) {
        assert!(self.finished.remove(&label).is_some(), "once for each connection");
        self.server_of.remove(&label);
        self.told.push(Told::Gone(label, how));
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

impl World<Script> {
    pub fn script(members: &[u16]) -> Self {
        World::new(Script::default(), members)
    }

    pub fn request(&mut self, request: Request) {
        self.core.local_mut().requests.push_back(request);
        self.settle();
    }

    /// Requests a connection; returns the error if there is one at once. What else is reported stays.
    pub fn open_only(&mut self, upstream: Upstream) -> Option<OpenError> {
        self.request(Request::Open(upstream));
        let last = self.core.local_mut().told.pop_if(|told| matches!(told, Told::Opened(_, Err(_))))?;
        match last {
            Told::Opened(_, outcome) => outcome.err(),
            Told::Gone(..) => None,
        }
    }

    /// Requests a connection; returns the errors that are known at once.
    pub fn open(&mut self, upstream: Upstream) -> Option<OpenError> {
        self.request(Request::Open(upstream));
        self.told().into_iter().find_map(|told| match told {
            Told::Opened(_, outcome) => outcome.err(),
            Told::Gone(..) => None,
        })
    }

    /// Opens a connection, which a process accepts with this room; returns what the core reports to the
    /// service.
    pub fn opened(&mut self, room: u32) -> Opened {
        assert_eq!(self.open(request(9)), None);
        self.accept(room);
        let [Told::Opened(9, Ok(opened))] = self.told()[..] else { panic!("it is opened") };
        opened
    }

    /// Has the service send something, and then return a step.
    pub fn serve(&mut self, label: FlowLabel, bytes: &[u8], step: Option<Step>) {
        let script = self.core.local_mut();
        script.sends.entry(label).or_default().extend_from_slice(bytes);
        script.step = step;
        script.ready.push(label);
        self.settle();
    }

    /// Removes and returns the core's reports to the service.
    pub fn told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.core.local_mut().told)
    }
}

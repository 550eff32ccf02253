//! A small reverse proxy: requests of a line each, with a body that passes without being touched.
//!
//! ```text
//!  client ── "get 3\n" ──▶ proxy ──▶ member ── "3\nabc" ──▶ proxy ──▶ client
//!         ── "put 3\nabc" ─▶ …    ──▶       ── "ok 3\n" ──▶
//! ```
//! Connections to members are kept and used for one client after the other. A member that refuses is excluded
//! from the next try; what else fails is answered with `error`.

use std::collections::{BTreeMap, VecDeque};

use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::between::Between;
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{
    Ended, Ends, Excluded, OpenError, Opened, Request, Upstream, UpstreamEnd,
};
use csp_quality::OutputLink;
use csp_types::{FlowLabel, FourTuple, Instant};

use crate::world::POOL;

/// Longest line, with its end.
const LINE_MAX: usize = 32;

/// A line that is read and has to be written.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    /// Returns the line at the beginning of these slices; `None` if its end has not come.
    fn parse<'a>(slices: impl Iterator<Item = &'a [u8]>) -> Option<Line> {
        let mut line = Line::default();
        for byte in slices.flatten().take(LINE_MAX) {
            line.bytes[line.len] = *byte;
            line.len += 1;
            if *byte == b'\n' {
                return Some(line);
            }
        }
        assert!(line.len < LINE_MAX, "too long");
        None
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the number behind the first `skip` bytes.
    fn number(&self, skip: usize) -> usize {
        std::str::from_utf8(&self.bytes[skip..self.len - 1]).unwrap().parse().unwrap()
    }
}

/// What a client's connection waits for.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// A request.
    Idle,
    /// A connection to a member, for this request.
    Opening { token: u64, request: Line, excluded: Excluded },
    /// The rest of the request: its line, then this many bytes of body.
    Up { upstream: FlowLabel, line: Option<Line>, body: usize },
    /// The line of the answer.
    Answer { upstream: FlowLabel },
    /// The rest of the answer.
    Down { upstream: FlowLabel, line: Option<Line>, body: usize },
    /// The answer that nobody is there.
    Error,
}

#[derive(Default)]
pub struct Lines {
    clients: BTreeMap<FlowLabel, Phase>,
    addresses: BTreeMap<FlowLabel, FourTuple>,
    /// The client that uses each connection to a member.
    users: BTreeMap<FlowLabel, Option<FlowLabel>>,
    idle: VecDeque<FlowLabel>,
    asked: BTreeMap<u64, FlowLabel>,
    requests: VecDeque<Request>,
    ready: VecDeque<FlowLabel>,
    tokens: u64,
    /// Requests that were answered, connections that were opened, refusals after which another member was
    /// tried.
    pub answered: usize,
    pub opened: usize,
    pub retried: usize,
}

impl Lines {
    /// Returns the number of connections of either side and of requests for them.
    pub fn len(&self) -> usize {
        self.clients.len() + self.users.len() + self.asked.len()
    }

    fn ask(&mut self, client: FlowLabel, request: Line, excluded: Excluded) -> Phase {
        let token = self.tokens;
        self.tokens += 1;
        self.asked.insert(token, client);
        self.requests.push_back(Request::Open(Upstream {
            token,
            service: POOL.into(),
            excluded,
            client: self.addresses[&client].remote,
            client_flow: client,
            window: 0,
            deadline: None,
        }));
        Phase::Opening { token, request, excluded }
    }

    fn begin(&mut self, client: FlowLabel, upstream: FlowLabel, line: Line) -> Phase {
        self.users.insert(upstream, Some(client));
        let body = if line.text().starts_with(b"put ") { line.number(4) } else { 0 };
        Phase::Up { upstream, line: Some(line), body }
    }

    /// Releases the connection of an answered request.
    fn release(&mut self, upstream: FlowLabel) -> Phase {
        self.users.insert(upstream, None);
        self.idle.push_back(upstream);
        self.answered += 1;
        Phase::Idle
    }

    /// Moves what can be moved for a client. Returns whether anything was, and the step of its connection.
    fn advance(&mut self, label: FlowLabel, ends: &mut impl Ends) -> (bool, Step) {
        let mut moved = false;
        let Some(mut phase) = self.clients.get(&label).copied() else { return (false, Step::Idle) };
        loop {
            let next = self.step(label, phase, ends);
            let Ok(next) = next else { return (moved, next.unwrap_err()) };
            let Some((next, goes_on)) = next else { break };
            (phase, moved) = (next, true);
            self.clients.insert(label, phase);
            if !goes_on {
                break;
            }
        }
        (moved, if moved { Step::Moved } else { Step::Idle })
    }

    /// Takes one step of an exchange: returns the next phase if something was moved, and whether more may be.
    fn step(
        &mut self,
        label: FlowLabel,
        phase: Phase,
        ends: &mut impl Ends,
    ) -> Result<Option<(Phase, bool)>, Step> {
        Ok(match phase {
            Phase::Idle => {
                let mut client = ends.client(label).ok_or(Step::Idle)?;
                let Some(line) = Line::parse(client.peek(LINE_MAX)) else {
                    return if client.is_finished() { Err(Step::Close) } else { Ok(None) };
                };
                client.consume(line.len);
                drop(client);
                match self.idle.pop_front() {
                    Some(upstream) => {
                        ends.relate(label, upstream);
                        Some((self.begin(label, upstream, line), true))
                    }
                    None => Some((self.ask(label, line, Excluded::NONE), false)),
                }
            }
            Phase::Opening { .. } => None,
            Phase::Error => {
                let mut client = ends.client(label).ok_or(Step::Idle)?;
                if client.room() < 6 {
                    return Ok(None);
                }
                client.write(b"error\n", None);
                return Err(Step::Close);
            }
            Phase::Up { upstream, line: Some(line), body } => {
                let mut server = ends.upstream(upstream).ok_or(Step::Idle)?;
                if server.room() < line.len || server.write(&[line.text()]) == 0 {
                    return Ok(None);
                }
                Some((Phase::Up { upstream, line: None, body }, true))
            }
            Phase::Up { upstream, line: None, body: 0 } => Some((Phase::Answer { upstream }, true)),
            Phase::Up { upstream, line: None, body } => match ends.splice(label, upstream, body) {
                0 => None,
                moved => Some((Phase::Up { upstream, line: None, body: body - moved }, moved == body)),
            },
            Phase::Answer { upstream } => {
                let mut server = ends.upstream(upstream).ok_or(Step::Idle)?;
                let Some(line) = Line::parse(server.peek(LINE_MAX)) else { return Ok(None) };
                server.consume(line.len);
                let body = if line.text().starts_with(b"ok ") { 0 } else { line.number(0) };
                Some((Phase::Down { upstream, line: Some(line), body }, true))
            }
            Phase::Down { upstream, line: Some(line), body } => {
                let mut client = ends.client(label).ok_or(Step::Idle)?;
                if client.room() < line.len {
                    client.call_again();
                    return Ok(None);
                }
                client.write(line.text(), None);
                Some((Phase::Down { upstream, line: None, body }, true))
            }
            Phase::Down { upstream, line: None, body: 0 } => Some((self.release(upstream), true)),
            Phase::Down { upstream, line: None, body } => match ends.splice(upstream, label, body) {
                0 => None,
                moved => Some((Phase::Down { upstream, line: None, body: body - moved }, moved == body)),
            },
        })
    }
}

impl Between for Lines {}

impl LocalServices for Lines {
    fn connected(&mut self, _: Instant, label: FlowLabel, _: u32, tuple: FourTuple) -> bool {
        self.addresses.insert(label, tuple);
        self.clients.insert(label, Phase::Idle).is_none()
    }

    fn serve(&mut self, _: Instant, label: FlowLabel, ends: &mut impl Ends, _: &mut OutputLink) -> Step {
        self.advance(label, ends).1
    }

    fn gone(&mut self, _: Instant, label: FlowLabel) {
        self.addresses.remove(&label);
        match self.clients.remove(&label).expect("once for each connection") {
            Phase::Opening { token, .. } => {
                if self.asked.remove(&token).is_some() {
                    self.requests.push_back(Request::Cancel(token));
                }
            }
            Phase::Up { upstream, .. } | Phase::Answer { upstream, .. } | Phase::Down { upstream, .. } => {
                // Its exchange is not complete, so that it is of no use to others.
                if let Some(user) = self.users.get_mut(&upstream) {
                    *user = Some(FlowLabel::NONE);
                    self.ready.push_back(upstream);
                }
            }
            Phase::Idle | Phase::Error => {}
        }
    }

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        self.ready.pop_front()
    }

    fn next_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    fn opened(&mut self, _: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        let client = self.asked.remove(&token).expect("it is not cancelled");
        let Some(Phase::Opening { request, mut excluded, .. }) = self.clients.get(&client).copied() else {
            panic!("it waits")
        };
        let phase = match outcome {
            Ok(opened) => {
                self.opened += 1;
                self.begin(client, opened.label, request)
            }
            Err(OpenError::Refused(server)) if excluded.insert(server) => {
                self.retried += 1;
                self.ask(client, request, excluded)
            }
            Err(_) => {
                self.ready.push_back(client);
                Phase::Error
            }
        };
        self.clients.insert(client, phase);
    }

    fn serve_upstream(
        &mut self,
        _: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        _: &mut OutputLink,
    ) -> Step {
        let Some(client) = self.users.get(&label).copied().flatten() else {
            // It is idle: whatever it says is its end.
            self.idle.retain(|idle| *idle != label);
            let server = ends.upstream(label).unwrap();
            return if server.is_finished() { Step::Close } else { Step::Reset };
        };
        if client.is_none() {
            return Step::Reset;
        }
        let (moved, step) = self.advance(client, ends);
        if matches!(step, Step::Close | Step::Reset) {
            ends.end(client, step);
        }
        let is_used = self.users[&label] == Some(client);
        let (is_finished, rest) =
            ends.upstream(label).map_or((false, 0), |server| (server.is_finished(), server.readable()));
        if is_used && is_finished && rest == 0 {
            // The rest of the answer will not come.
            ends.end(client, Step::Reset);
            return Step::Close;
        }
        if moved { Step::Moved } else { Step::Idle }
    }

    fn upstream_gone(&mut self, _: Instant, label: FlowLabel, _: Ended) {
        self.idle.retain(|idle| *idle != label);
        self.users.remove(&label).expect("once for each connection");
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

//! Runs a script: advances the time from line to line and compares all output of the engine with the script.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use csp_tcp::{Event, FailReason};
use csp_types::FlowLabel;
use csp_wire::tcp::{Repr, Segment as WireSegment};

use crate::check;
use crate::host::{Host, Sent};
use crate::matching::{self, Bases};
use crate::parse::value;
use crate::script::{Line, Number, Reported, Script, Segment, Step, When};

mod calls;

/// Why a script failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Number of the script's line, from 1.
    pub line: usize,
    /// Text of the line.
    pub text: String,
    /// What was expected, and what happened instead.
    pub problem: String,
    /// All that happened before.
    pub timeline: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { line, text, problem, timeline } = self;
        write!(f, "line {line}: {text}\n  {problem}\ntimeline:\n{timeline}")
    }
}

/// Runs a script and returns its timeline.
///
/// # Errors
/// [`Failure`]: the engine behaved differently.
pub fn run(script: &Script) -> Result<String, Box<Failure>> {
    let mut run = Run::new(script);
    for line in &script.lines {
        run.line(line).map_err(|problem| run.failure(line, problem))?;
    }
    if let Some(last) = script.lines.last() {
        run.finish().map_err(|problem| run.failure(last, problem))?;
    }
    Ok(run.timeline.join("\n"))
}

/// The state of one peer.
#[derive(Default)]
struct Peer {
    bases: Bases,
    label: Option<FlowLabel>,
    /// Bytes of the stream written to the engine, and read from it.
    written: u64,
    read: u64,
    /// The sequence number of the peer's SYN, before its stream.
    syn: u32,
    /// Events reported and not yet matched by a line.
    events: Vec<Event>,
}

struct Run<'a> {
    script: &'a Script,
    host: Host,
    peers: BTreeMap<u16, Peer>,
    /// Segments sent and not yet expected by a line.
    outgoing: VecDeque<(u16, Sent)>,
    timeline: Vec<String>,
    /// The script's time.
    cursor: Duration,
}

impl<'a> Run<'a> {
    fn new(script: &'a Script) -> Self {
        Run {
            script,
            host: Host::new(&script.config),
            peers: BTreeMap::new(),
            outgoing: VecDeque::new(),
            timeline: Vec::new(),
            cursor: Duration::ZERO,
        }
    }

    fn failure(&self, line: &Line, problem: String) -> Box<Failure> {
        let timeline = self.timeline.join("\n");
        Box::new(Failure { line: line.number, text: line.text.clone(), problem, timeline })
    }

    fn peer(&mut self, number: u16) -> &mut Peer {
        let isn = self.script.config.peer_isn;
        self.peers.entry(number).or_insert_with(|| {
            let bases = Bases { peer: isn, ..Bases::default() };
            Peer { bases, syn: isn, ..Peer::default() }
        })
    }

    fn note(&mut self, at: Duration, what: &str) {
        self.timeline.push(format!("  {:>12.6} {what}", at.as_secs_f64()));
    }

    /// Collects the output of the engine since the last call.
    fn collect(&mut self) {
        while let Some(sent) = self.host.sent.pop_front() {
            let number = sent.tuple.remote.port().wrapping_sub(40_000);
            let peer = self.peer(number);
            let isn = peer.bases.ours;
            peer.bases.record_sent(&sent);
            if peer.bases.ours != isn {
                peer.written = 0;
            }
            let text = matching::segment_text(&sent.header, sent.payload.len(), sent.ecn, &peer.bases, true);
            self.note(Host::script_time(sent.at), &format!("@{number} > {text}"));
            self.outgoing.push_back((number, sent));
        }
        self.find_labels();
        for (label, event) in std::mem::take(&mut self.host.events) {
            let at = self.host.elapsed();
            let number = self.peers.iter().find(|(_, peer)| peer.label == Some(label)).map(|(n, _)| *n);
            self.note(at, &format!("@{} ! {event:?}", number.unwrap_or(0)));
            if let Some(number) = number {
                self.peer(number).events.push(event);
            }
        }
    }

    fn find_labels(&mut self) {
        for (&number, peer) in &mut self.peers {
            let label = self.host.stack.label_of(&self.script.config.tuple(number));
            if label.is_some() && label != peer.label {
                (peer.label, peer.read) = (label, 0);
            }
        }
    }

    /// Runs one line.
    fn line(&mut self, line: &Line) -> Result<(), String> {
        self.peer(line.peer);
        if let (When::Between(from, to), Step::Expect(segment)) = (line.after, &line.step) {
            let (from, to) = (self.cursor + from, self.cursor + to);
            self.expect(line.peer, segment, from, to)?;
            self.cursor = self.host.elapsed();
            return Ok(());
        }
        let (When::Exactly(after) | When::Between(after, _)) = line.after;
        self.cursor += after;
        if let Step::Expect(segment) = &line.step {
            let tolerance = self.script.config.tolerance;
            let from = self.cursor.saturating_sub(tolerance);
            return self.expect(line.peer, segment, from, self.cursor + tolerance);
        }
        self.host.advance(Host::instant(self.cursor));
        self.collect();
        // Checks and events may precede the expected segments of the same time. Any other line requires that
        // nothing unexpected was sent before.
        if !matches!(line.step, Step::Event(_) | Step::Check(_)) {
            self.nothing_unexpected()?;
        }
        match &line.step {
            Step::Arrive(segment) => self.arrive(line.peer, segment),
            Step::Event(expected) => self.check_event(line.peer, expected)?,
            Step::Check(wanted) => {
                let peer = self.peers.get(&line.peer).ok_or("no such connection")?;
                check::check(wanted, &self.host.stack, peer.label, &peer.bases)?;
            }
            Step::Call(call) => self.call(line, call)?,
            Step::Quiet | Step::Expect(_) => {}
        }
        self.collect();
        Ok(())
    }

    /// Fails if a segment was sent that no line expected.
    fn nothing_unexpected(&self) -> Result<(), String> {
        let Some((number, sent)) = self.outgoing.front() else { return Ok(()) };
        Err(format!("unexpected segment before this line: {}", self.sent_text(*number, sent)))
    }

    fn sent_text(&self, number: u16, sent: &Sent) -> String {
        let bases = self.peers.get(&number).map(|peer| peer.bases).unwrap_or_default();
        let text = matching::segment_text(&sent.header, sent.payload.len(), sent.ecn, &bases, true);
        format!("{:.6} @{number} > {text}", Host::script_time(sent.at).as_secs_f64())
    }

    fn arrive(&mut self, number: u16, segment: &Segment) {
        let tuple = self.script.config.tuple(number);
        let elapsed = self.host.elapsed();
        let peer = self.peer(number);
        let ports = (tuple.remote.port(), tuple.local.port());
        let mut bases = peer.bases;
        let bytes = matching::build(segment, ports, &bases, peer.syn, elapsed);
        let label = peer.label;
        let ecn = segment.ecn.unwrap_or(0);
        if let Ok(wire) = WireSegment::parse(&bytes) {
            bases.peer = self.script.config.peer_isn;
            let text = matching::segment_text(&Repr::parse(&wire), wire.payload().len(), ecn, &bases, false);
            self.note(elapsed, &format!("@{number} < {text}"));
        }
        let dropped = self.host.deliver(tuple, &bytes, ecn);
        if let Some(reason) = dropped {
            self.note(elapsed, &format!("@{number}   dropped: {reason}"));
        }
        self.find_labels();
        let peer = self.peer(number);
        if segment.flags.syn() && peer.label != label {
            peer.syn = match segment.seq {
                Number::Relative(n) => peer.bases.peer.wrapping_add(n as u32),
                Number::Absolute(n) => n,
                Number::Any => peer.bases.peer,
            };
        }
    }

    /// Waits for an expected segment. One longer than a packet may be sent as several.
    fn expect(
        &mut self,
        number: u16,
        expected: &Segment,
        from: Duration,
        to: Duration,
    ) -> Result<(), String> {
        let mut done = 0;
        loop {
            let sent = self.next_sent(to).ok_or_else(|| {
                let last = self.host.elapsed().as_secs_f64();
                if done == 0 {
                    format!("nothing was sent until {last:.6}")
                } else {
                    format!("only {done} of {} bytes were sent until {last:.6}", expected.len)
                }
            })?;
            let (from_peer, sent) = sent;
            let at = Host::script_time(sent.at);
            let rest = expected.len.saturating_sub(done + sent.payload.len() as u32);
            let bases = self.peer(number).bases;
            let mut differ = matching::differences(expected, done, rest, &sent, &bases);
            if from_peer != number {
                differ.push(format!("connection: expected @{number}, got @{from_peer}"));
            }
            if at < from || at > to {
                let [from, to] = [from, to].map(|t| t.as_secs_f64());
                differ.push(format!("time: expected from {from:.6} to {to:.6}"));
            }
            if done + sent.payload.len() as u32 > expected.len {
                differ.push(format!("length: expected {}, got {}", expected.len, sent.payload.len()));
            }
            if !differ.is_empty() {
                return Err(format!("got {}\n  {}", self.sent_text(from_peer, &sent), differ.join("\n  ")));
            }
            done += sent.payload.len() as u32;
            if done >= expected.len {
                return Ok(());
            }
        }
    }

    /// Returns the next segment sent until `to`.
    fn next_sent(&mut self, to: Duration) -> Option<(u16, Sent)> {
        let limit = Host::instant(to);
        loop {
            self.collect();
            if let Some(sent) = self.outgoing.pop_front() {
                return Some(sent);
            }
            if self.host.now >= limit {
                return None;
            }
            self.host.step(limit);
        }
    }

    fn check_event(&mut self, number: u16, expected: &Reported) -> Result<(), String> {
        let readable = self.peer(number).label.map_or(0, |label| self.host.stack.readable(label));
        let peer = self.peer(number);
        if *expected == Reported::None {
            let last = peer.events.iter().find(|event| is_last(event));
            return last.map_or(Ok(()), |event| Err(format!("{event:?} was reported")));
        }
        let found = peer.events.iter().position(|event| matches(event, expected));
        let Some(at) = found else {
            return Err(format!("no such event was reported; unmatched events: {:?}", peer.events));
        };
        // One `readable` or `writable` line matches all such events so far.
        match expected {
            Reported::Readable(_) | Reported::Writable => {
                peer.events.retain(|event| !matches(event, expected))
            }
            _ => drop(peer.events.remove(at)),
        }
        match expected {
            Reported::Readable(Some(n)) if *n != readable => Err(format!("{readable} bytes are readable")),
            _ => Ok(()),
        }
    }

    /// Checks at the end of the script that no unexpected segment was sent and no connection ended
    /// unexpectedly.
    fn finish(&mut self) -> Result<(), String> {
        self.host.pump();
        self.collect();
        if let Some((number, sent)) = self.outgoing.front() {
            return Err(format!("unexpected segment after the last line: {}", self.sent_text(*number, sent)));
        }
        for (number, peer) in &self.peers {
            if let Some(event) = peer.events.iter().find(|event| is_last(event)) {
                return Err(format!("at the end, no line matches @{number} ! {event:?}"));
            }
        }
        Ok(())
    }
}

fn is_last(event: &Event) -> bool {
    matches!(event, Event::Closed | Event::Failed(_) | Event::Reset)
}

fn matches(event: &Event, expected: &Reported) -> bool {
    match (event, expected) {
        (Event::Established { .. }, Reported::Established)
        | (Event::Readable, Reported::Readable(_))
        | (Event::Writable, Reported::Writable)
        | (Event::PeerFinished, Reported::PeerFinished)
        | (Event::Closed, Reported::Closed)
        | (Event::Reset, Reported::Reset) => true,
        (Event::Failed(reason), Reported::Failed(wanted))
        | (Event::Broken(reason), Reported::Broken(wanted)) => reason_name(*reason) == *wanted,
        _ => false,
    }
}

fn reason_name(reason: FailReason) -> String {
    value::word(&format!("{reason:?}"))
}

//! The events of all nodes at a management node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use csp_api::Text;
use csp_api::events::{Event, FIELDS_LEN_MAX, Page, Push, Severity};

use crate::cursor::{Cursor, Stream};

/// Events that are kept.
const KEPT_MAX: usize = 65_536;
/// Room for them, in bytes: what they take at most by [`size`].
const KEPT_LEN_MAX: usize = 64 << 20;
/// Incarnations of nodes that are known. The one that was silent for longest gives way to another.
const STREAMS_MAX: usize = 8192;
/// Streams that a cursor names, so that it fits into a request: those that had an event last.
const CURSOR_STREAMS_MAX: usize = 512;

/// What is known of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Its last event that arrived.
    last: u64,
    /// Its last event that is no longer kept.
    gone: u64,
    /// Pushes until the last one of it.
    heard: u64,
}

/// What a reader wants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// At least this severity.
    pub severity: Option<Severity>,
    /// Objects that begin so, if not empty.
    pub object: String,
    /// Of these kinds, if there are any.
    pub kinds: Vec<String>,
}

impl Filter {
    /// Returns whether a reader wants this event.
    pub fn matches(&self, event: &Event) -> bool {
        self.severity.is_none_or(|least| event.severity >= least)
            && event.object.starts_with(&self.object)
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| event.kind == *kind.as_str()))
    }
}

/// What came of a push.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Admitted {
    /// The events that are new here.
    pub new: Vec<Arc<Event>>,
    /// The last event of the stream that is here now.
    pub known: u64,
    /// Events that the node had given up before they arrived.
    pub lost: u64,
}

/// The last events of all nodes, in the order in which they arrived.
#[derive(Clone, Debug)]
pub struct Collector {
    instance: u64,
    /// Arrivals that are no longer kept.
    gone: u64,
    kept: VecDeque<Arc<Event>>,
    len: usize,
    streams: BTreeMap<Stream, Known>,
    pushes: u64,
}

impl Collector {
    /// Returns an empty collector; `instance` is a number that no other one has.
    pub fn new(instance: u64) -> Collector {
        Collector { instance, gone: 0, kept: VecDeque::new(), len: 0, streams: BTreeMap::new(), pushes: 0 }
    }

    /// Takes over what is new of a push, up to the first event that is not the next one, or not of the push's
    /// origin, or too long: none of that comes from an honest node.
    pub fn admit(&mut self, push: Push) -> Admitted {
        self.pushes += 1;
        let stream = (push.origin.clone(), push.incarnation);
        if !self.streams.contains_key(&stream) && self.streams.len() >= STREAMS_MAX {
            let silent = self.streams.iter().min_by_key(|(_, known)| known.heard);
            if let Some(silent) = silent.map(|(stream, _)| stream.clone()) {
                self.streams.remove(&silent);
            }
        }
        let known = self.streams.entry(stream).or_default();
        known.heard = self.pushes;
        let mut admitted = Admitted::default();
        let missing = push.first.saturating_sub(1).saturating_sub(known.last);
        if missing > 0 {
            (known.last, known.gone, admitted.lost) = (push.first - 1, push.first - 1, missing);
        }
        for event in push.events {
            if event.sequence <= known.last {
                continue;
            }
            let is_next = Some(event.sequence) == known.last.checked_add(1);
            let is_own = event.origin == push.origin && event.incarnation == push.incarnation;
            if !is_next || !is_own || fields_len(&event) > FIELDS_LEN_MAX {
                break;
            }
            known.last = event.sequence;
            admitted.new.push(Arc::new(event));
        }
        admitted.known = known.last;
        for event in &admitted.new {
            self.keep(event.clone());
        }
        admitted
    }

    fn keep(&mut self, event: Arc<Event>) {
        self.len += size(&event);
        self.kept.push_back(event);
        while self.kept.len() > KEPT_MAX || self.len > KEPT_LEN_MAX {
            let Some(old) = self.kept.pop_front() else { break };
            self.len -= size(&old);
            self.gone += 1;
            if let Some(known) = self.streams.get_mut(&(old.origin.clone(), old.incarnation)) {
                known.gone = known.gone.max(old.sequence);
            }
        }
    }

    /// Returns the number of events that have arrived.
    pub fn arrivals(&self) -> u64 {
        self.gone + self.kept.len() as u64
    }

    /// Returns the last event of a stream that is here; 0: none.
    pub fn known(&self, origin: &Text, incarnation: u64) -> u64 {
        self.streams.get(&(origin.clone(), incarnation)).map_or(0, |known| known.last)
    }

    /// Returns at most `most` events after `cursor` that match.
    pub fn read(&self, cursor: &Cursor, filter: &Filter, most: usize) -> Page {
        let mut at = cursor.clone();
        let of_own = cursor.instance == self.instance && cursor.arrivals <= self.arrivals();
        let skipped = if of_own { cursor.arrivals.saturating_sub(self.gone) as usize } else { 0 };
        let (mut events, mut arrivals) = (Vec::new(), self.gone + skipped as u64);
        let mut full = false;
        for event in self.kept.iter().skip(skipped) {
            let stream = (event.origin.clone(), event.incarnation);
            let seen = at.seen.entry(stream).or_default();
            if event.sequence > *seen {
                if filter.matches(event) {
                    full = events.len() >= most;
                    if full {
                        break;
                    }
                    events.push(Event::clone(event));
                }
                *seen = event.sequence;
            }
            arrivals += 1;
        }
        let missed = self.missed(cursor);
        (at.instance, at.arrivals) = (self.instance, arrivals);
        self.shorten(&mut at, full);
        Page { events, cursor: at.to_string(), missed }
    }

    /// Returns the latest events that match, at most `most`, and a cursor behind the latest of all.
    pub fn latest(&self, filter: &Filter, most: usize) -> Page {
        let matching = self.kept.iter().rev().filter(|event| filter.matches(event));
        let mut events: Vec<Event> = matching.take(most).map(|event| Event::clone(event)).collect();
        events.reverse();
        let mut at = Cursor { instance: self.instance, arrivals: self.arrivals(), ..Cursor::default() };
        self.shorten(&mut at, false);
        Page { events, cursor: at.to_string(), missed: 0 }
    }

    /// Returns how many events after `cursor` are no longer kept.
    fn missed(&self, cursor: &Cursor) -> u64 {
        let of = |(stream, known): (&Stream, &Known)| {
            let seen = cursor.seen.get(stream).copied().unwrap_or(0);
            known.gone.saturating_sub(seen)
        };
        self.streams.iter().map(of).sum()
    }

    /// Brings a cursor to what it must name: of streams that it has passed, all that is known; of the rest
    /// those that are named already.
    fn shorten(&self, at: &mut Cursor, full: bool) {
        if !full {
            at.seen = self.streams.iter().map(|(stream, known)| (stream.clone(), known.last)).collect();
        } else {
            // What is gone was reported.
            for (stream, known) in &self.streams {
                let seen = at.seen.entry(stream.clone()).or_default();
                *seen = (*seen).max(known.gone);
            }
            at.seen.retain(|stream, _| self.streams.contains_key(stream));
        }
        if at.seen.len() > CURSOR_STREAMS_MAX {
            let heard = |stream: &Stream| self.streams.get(stream).map_or(0, |known| known.heard);
            let mut by_age: Vec<u64> = at.seen.keys().map(heard).collect();
            by_age.sort_unstable();
            let least = by_age[by_age.len() - CURSOR_STREAMS_MAX];
            at.seen.retain(|stream, _| heard(stream) >= least);
        }
    }
}

/// Returns about how many bytes an event takes.
fn size(event: &Event) -> usize {
    let texts = [&event.origin, &event.kind, &event.object, &event.text];
    texts.iter().map(|text| text.len()).sum::<usize>() + fields_len(event) + 256
}

fn fields_len(event: &Event) -> usize {
    serde_json::to_string(&event.fields).map_or(usize::MAX, |json| json.len())
}

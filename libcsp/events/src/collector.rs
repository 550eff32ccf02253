//! The events of all nodes at a management node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use csp_api::Text;
use csp_api::events::{Event, FIELDS_LEN_MAX, Page, Push, Severity};

use crate::cursor::{Cursor, Stream};

/// Events that are kept, of all origins and of one incarnation of a node.
const KEPT_MAX: usize = 65_536;
const KEPT_OF_STREAM_MAX: usize = 8192;
/// Room for them, in bytes: what they take at most by [`size`].
const KEPT_LEN_MAX: usize = 64 << 20;
/// Incarnations of nodes that are known, in all and of one node. The one that was silent for longest gives
/// way to another. A cursor names them all.
const STREAMS_MAX: usize = 512;
const STREAMS_OF_ORIGIN_MAX: usize = 2;
/// Incarnations and sequence numbers are below this, so that every JSON parser keeps them exact.
const NUMBER_END: u64 = 1 << 53;

/// What is known of a stream.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Its last event that arrived.
    last: u64,
    /// Its last event that is no longer kept.
    gone: u64,
    /// Pushes until the last one of it.
    heard: u64,
    /// Its events that are kept, by number of arrival.
    kept: VecDeque<u64>,
}

/// What a reader wants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// At least this severity.
    pub severity: Option<Severity>,
    /// Objects that begin with one of these, if there are any.
    pub objects: Vec<String>,
    /// Of these kinds, if there are any.
    pub kinds: Vec<String>,
}

impl Filter {
    /// Returns whether a reader wants this event.
    pub fn matches(&self, event: &Event) -> bool {
        self.severity.is_none_or(|least| event.severity >= least)
            && (self.objects.is_empty() || self.objects.iter().any(|begin| event.object.starts_with(begin)))
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

/// What was read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Read {
    /// Events, in the order in which they arrived.
    pub events: Vec<Event>,
    /// Where to read on.
    pub cursor: Cursor,
    /// Events after the given cursor that are no longer kept.
    pub missed: u64,
}

impl From<Read> for Page {
    fn from(read: Read) -> Page {
        Page { events: read.events, cursor: read.cursor.to_string(), missed: read.missed }
    }
}

/// The last events of all nodes, in the order in which they arrived.
#[derive(Clone, Debug)]
pub struct Collector {
    instance: u64,
    /// Number of the next arrival.
    arrivals: u64,
    kept: BTreeMap<u64, Arc<Event>>,
    len: usize,
    streams: BTreeMap<Stream, Known>,
    pushes: u64,
}

impl Collector {
    /// Returns an empty collector; `instance` is a number that no other one has.
    pub fn new(instance: u64) -> Collector {
        let (kept, streams) = (BTreeMap::new(), BTreeMap::new());
        Collector { instance, arrivals: 0, kept, len: 0, streams, pushes: 0 }
    }

    /// Takes over what is new of a push, up to the first event that is not the next one, or not of the push's
    /// origin, or too long: none of that comes from an honest node.
    pub fn admit(&mut self, push: Push) -> Admitted {
        self.pushes += 1;
        if push.incarnation >= NUMBER_END || push.first >= NUMBER_END {
            return Admitted::default();
        }
        let stream = (push.origin.clone(), push.incarnation);
        if !self.streams.contains_key(&stream) {
            self.make_room(&push.origin);
        }
        let known = self.streams.entry(stream.clone()).or_default();
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
            let is_next = event.sequence == known.last + 1 && event.sequence < NUMBER_END;
            let is_own = event.origin == push.origin && event.incarnation == push.incarnation;
            if !is_next || !is_own || fields_len(&event) > FIELDS_LEN_MAX {
                break;
            }
            known.last = event.sequence;
            admitted.new.push(Arc::new(event));
        }
        admitted.known = known.last;
        for event in &admitted.new {
            self.keep(&stream, event.clone());
        }
        admitted
    }

    /// Gives up a stream, if there is no room for another one of this origin.
    fn make_room(&mut self, origin: &Text) {
        let of_origin = |stream: &Stream| stream.0 == *origin;
        let count = self.streams.keys().filter(|stream| of_origin(stream)).count();
        let crowded = count >= STREAMS_OF_ORIGIN_MAX;
        if !crowded && self.streams.len() < STREAMS_MAX {
            return;
        }
        let may_go = self.streams.iter().filter(|(stream, _)| !crowded || of_origin(stream));
        let silent = may_go.min_by_key(|(_, known)| known.heard).map(|(stream, _)| stream.clone());
        if let Some(known) = silent.and_then(|stream| self.streams.remove(&stream)) {
            known.kept.into_iter().for_each(|arrival| self.forget(arrival));
        }
    }

    fn forget(&mut self, arrival: u64) {
        if let Some(event) = self.kept.remove(&arrival) {
            self.len -= size(&event);
        }
    }

    fn keep(&mut self, stream: &Stream, event: Arc<Event>) {
        self.len += size(&event);
        let arrival = self.arrivals;
        self.kept.insert(arrival, event);
        self.arrivals += 1;
        let Some(known) = self.streams.get_mut(stream) else { return };
        known.kept.push_back(arrival);
        if known.kept.len() > KEPT_OF_STREAM_MAX {
            self.give_up_oldest(stream.clone());
        }
        while self.kept.len() > KEPT_MAX || self.len > KEPT_LEN_MAX {
            let Some((_, oldest)) = self.kept.first_key_value() else { break };
            self.give_up_oldest((oldest.origin.clone(), oldest.incarnation));
        }
    }

    /// Gives up the oldest event of a stream.
    fn give_up_oldest(&mut self, stream: Stream) {
        let Some(known) = self.streams.get_mut(&stream) else { return };
        let Some(arrival) = known.kept.pop_front() else { return };
        let sequence = self.kept.get(&arrival).map_or(0, |event| event.sequence);
        known.gone = known.gone.max(sequence);
        self.forget(arrival);
    }

    /// Returns the number of events that have arrived.
    pub fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Returns how many events that are kept arrived after `cursor`; for a cursor of another collector, how
    /// many are kept.
    pub fn waiting(&self, cursor: &Cursor) -> u64 {
        let kept = self.kept.len() as u64;
        match cursor.instance == self.instance {
            true => self.arrivals.saturating_sub(cursor.arrivals).min(kept),
            false => kept,
        }
    }

    /// Returns the last event of a stream that is here; 0: none.
    pub fn known(&self, origin: &Text, incarnation: u64) -> u64 {
        self.streams.get(&(origin.clone(), incarnation)).map_or(0, |known| known.last)
    }

    /// Returns at most `most` events after `cursor` that match.
    pub fn read(&self, cursor: &Cursor, filter: &Filter, most: usize) -> Read {
        let mut at = cursor.clone();
        let of_own = cursor.instance == self.instance && cursor.arrivals <= self.arrivals;
        let mut arrivals = if of_own { cursor.arrivals } else { 0 };
        let (mut events, mut is_full) = (Vec::new(), false);
        for (arrival, event) in self.kept.range(arrivals..) {
            let seen = at.seen.entry((event.origin.clone(), event.incarnation)).or_default();
            if event.sequence > *seen {
                if filter.matches(event) {
                    is_full = events.len() >= most;
                    if is_full {
                        break;
                    }
                    events.push(Event::clone(event));
                }
                *seen = event.sequence;
            }
            arrivals = arrival + 1;
        }
        let missed = self.missed(cursor);
        (at.instance, at.arrivals) = (self.instance, if is_full { arrivals } else { self.arrivals });
        for (stream, known) in &self.streams {
            let seen = at.seen.entry(stream.clone()).or_default();
            // What is gone was reported; without a limit all was looked at.
            *seen = (*seen).max(if is_full { known.gone } else { known.last });
        }
        self.shorten(&mut at);
        Read { events, cursor: at, missed }
    }

    /// Returns the latest events that match, at most `most`, and a cursor behind the latest of all.
    pub fn latest(&self, filter: &Filter, most: usize) -> Read {
        let matching = self.kept.values().rev().filter(|event| filter.matches(event));
        let mut events: Vec<Event> = matching.take(most).map(|event| Event::clone(event)).collect();
        events.reverse();
        let seen = self.streams.iter().map(|(stream, known)| (stream.clone(), known.last)).collect();
        Read { events, cursor: Cursor { instance: self.instance, arrivals: self.arrivals, seen }, missed: 0 }
    }

    /// Returns how many events after `cursor` are no longer kept.
    fn missed(&self, cursor: &Cursor) -> u64 {
        let of = |(stream, known): (&Stream, &Known)| {
            let seen = cursor.seen.get(stream).copied().unwrap_or(0);
            known.gone.saturating_sub(seen)
        };
        self.streams.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Leaves out of a cursor what is not known here, once it names too many: another management node may
    /// know it, or this one again when it has been pushed.
    fn shorten(&self, at: &mut Cursor) {
        let mut excess = at.seen.len().saturating_sub(STREAMS_MAX);
        at.seen.retain(|stream, _| {
            let goes = excess > 0 && !self.streams.contains_key(stream);
            excess -= usize::from(goes);
            !goes
        });
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

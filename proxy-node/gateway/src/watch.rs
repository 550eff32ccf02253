//! Watches: copies of the records of the next requests that somebody asks for, whatever the log takes.

use csp_types::{Instant, Prefix};

use crate::record::Record;

/// Most watches of a worker at once.
pub const WATCHES_MAX: usize = 4;
/// Most records of one watch.
pub const WATCHED_MAX: usize = 64;

/// Which requests are asked for: those that meet all that is named.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchFilter {
    /// The service's name.
    pub service: Option<String>,
    /// The rule's name.
    pub rule: Option<String>,
    /// The host, whatever its case.
    pub host: Option<String>,
    /// The beginning of the path with the query, as the client wrote it.
    pub path: Option<String>,
    /// The method.
    pub method: Option<String>,
    /// A network that has the client's address, or the one that trusted proxies give.
    pub source: Option<Prefix>,
    /// Only those that are not [well](Record::is_well).
    pub failed: bool,
}

impl WatchFilter {
    fn meets(&self, record: &Record) -> bool {
        let is = |wanted: &Option<String>, meets: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(meets);
        is(&self.service, &|name| *record.service == *name)
            && is(&self.rule, &|name| record.rule.as_deref() == Some(name))
            && is(&self.host, &|host| record.host().eq_ignore_ascii_case(host.as_bytes()))
            && is(&self.path, &|path| record.path().starts_with(path.as_bytes()))
            && is(&self.method, &|method| record.method() == method.as_bytes())
            && self.source.is_none_or(|network| {
                network.contains(record.source) || network.contains(record.client.ip().to_canonical())
            })
            && !(self.failed && record.is_well())
    }
}

/// Names a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchId(u64);

#[derive(Debug)]
struct Watch {
    id: WatchId,
    filter: WatchFilter,
    /// How many records it may have.
    count: usize,
    until: Instant,
    found: Vec<Record>,
}

/// The watches of a worker.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watches: Vec<Watch>,
    next: u64,
}

impl Watches {
    /// Begins a watch for at most `count` records and until a time, after which it may be gone. `None`: there
    /// are [`WATCHES_MAX`].
    pub(crate) fn begin(
        &mut self,
        now: Instant,
        filter: WatchFilter,
        count: usize,
        until: Instant,
    ) -> Option<WatchId> {
        self.watches.retain(|watch| watch.until > now);
        if self.watches.len() >= WATCHES_MAX {
            return None;
        }
        self.next += 1;
        let (id, count) = (WatchId(self.next), count.clamp(1, WATCHED_MAX));
        self.watches.push(Watch { id, filter, count, until, found: Vec::new() });
        Some(id)
    }

    /// Returns how many records a watch has; `None`: it is gone.
    pub(crate) fn progress(&self, id: WatchId) -> Option<usize> {
        self.watches.iter().find(|watch| watch.id == id).map(|watch| watch.found.len())
    }

    /// Ends a watch and returns its records, the oldest first.
    pub(crate) fn end(&mut self, id: WatchId) -> Vec<Record> {
        let at = self.watches.iter().position(|watch| watch.id == id);
        at.map(|at| self.watches.swap_remove(at).found).unwrap_or_default()
    }

    /// A request has ended.
    pub(crate) fn see(&mut self, record: &Record) {
        for watch in &mut self.watches {
            if watch.found.len() < watch.count && watch.filter.meets(record) {
                watch.found.push(record.clone());
            }
        }
    }
}

//! What an exchange has to do with the cache: the key of its request, what the store has for it, and what
//! of a member's response is stored.
//!
//! ```text
//!  begin ─┬─ fresh ───────────────────────────────────▶ [Stage::Stored] ──▶ over
//!         ├─ another one asks ─▶ [Stage::Shared] ─┬─ found ──▲
//!         │        10 to 160 ms, 5 s at most      │          │ 304; 5xx while that is permitted
//!         └─ fill, pass ──────────────────────────┴─▶ member ┴─▶ response ─▶ client, and the store
//! ```

use std::sync::Arc;

use csp_cache::conditions::{Part, evaluate};
use csp_cache::control::RequestControl;
use csp_cache::fields::{Fields, elements};
use csp_cache::freshness::Identity;
use csp_cache::key::{self, KEY_LEN_MAX, Parts};
use csp_cache::{Ask, Draft, Fill, Found, Object};
use csp_http::forward::{self, Edits, ResponseForward};
use csp_http::head::{Framing, Method, Request, Response, Scheme};
use csp_types::{Duration, Instant};

use super::stored::PIECE_MAX;
use crate::caching::{CacheResult, Caching};
use crate::shared::Work;
use crate::spec::{Cache, HttpService};

/// How long an exchange waits for another one's response, before it asks the server itself.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// After what time it looks, since the other one may be of another worker: at first, and at most. Between
/// them it waits again for as long as it has waited.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(160);
/// Least bytes that are stored and passed at once.
const PIECE_MIN: usize = 1 << 10;
/// Fields that make a request conditional or partial: servers do not get them with a request whose
/// response is to be stored.
const CONDITIONS: [&[u8]; 6] =
    [b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"];
/// Fields by which some servers take a request for another one than it is.
const OTHER_REQUEST: [&[u8]; 5] =
    [b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url"];

/// What an exchange keeps for the cache.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) key: Vec<u8>,
    /// The head of the client's request.
    pub(super) request: Vec<u8>,
    control: RequestControl,
    identity: Identity,
    is_head: bool,
    pub(super) result: Option<CacheResult>,
    /// The request to the server whose response may be stored.
    fill: Option<Fill>,
    /// What is stored of the response, once its head has come.
    draft: Option<Draft>,
    /// The length that its head names.
    length: Option<u64>,
    /// A stored response that is stale.
    stale: Option<Arc<Object>>,
    /// The stored response that the client gets.
    pub(super) object: Option<Arc<Object>>,
    /// What of its body is to be written.
    pub(super) left: std::ops::Range<usize>,
    /// Whether the head was written.
    pub(super) is_begun: bool,
    /// The response goes to the client once the member's is over.
    pub(super) is_pending: bool,
    /// The request changes what the key stands for.
    invalidates: bool,
    /// When it began to wait, and when it looks again.
    pub(super) wait: Option<(Instant, Instant)>,
    /// Most bytes that are stored and passed at once; 0: none have passed.
    piece: usize,
    /// The fill for which it has waited first.
    waited: Option<u64>,
}

/// What becomes of a member's response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// It goes to the client.
    Pass,
    /// The client gets the stored one, after the end of this response.
    AfterEnd,
    /// The client gets the stored one, and the rest of this response is dropped.
    Instead,
}

/// What the store has for an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// A response for the client.
    Stored,
    /// The server is asked.
    Ask,
    /// Another exchange asks the server.
    Shared,
    /// The client wants nothing of a server.
    Refused,
}

impl State {
    /// Releases what it holds, but for memory.
    pub(crate) fn clear(&mut self) {
        let (mut key, mut request) = (std::mem::take(&mut self.key), std::mem::take(&mut self.request));
        key.clear();
        request.clear();
        *self = State { key, request, ..State::default() };
    }

    /// Records the request, and its key under a rule. Returns `false` if it is none that the cache serves.
    pub(super) fn ask(
        &mut self,
        request: &Request<'_>,
        path: &[u8],
        (service, cache, is_trusted): (&HttpService, &Cache, bool),
    ) -> bool {
        self.request.extend_from_slice(request.bytes());
        self.is_head = request.method() == Method::Head;
        let fields = Fields::of_head(&self.request);
        let config = &cache.config;
        if config.obeys_clients {
            self.control = RequestControl::of(fields);
        }
        self.identity = Identity {
            is_known: fields.has(b"authorization") || !config.ignores_cookies && fields.has(b"cookie"),
        };
        let is_other = |name: &[u8]| OTHER_REQUEST.iter().any(|known| name.eq_ignore_ascii_case(known));
        let is_served = request.framing() == Framing::None
            && !request.expects_continue()
            && !request.is_upgrade()
            && !self.control.no_store
            // Servers do not get what the client's connection nominates, by which responses may be chosen.
            && !request.nominates()
            // They say which version the client has parts of.
            && !fields.has(b"if-match")
            && !fields.has(b"if-unmodified-since")
            && !fields.clone().any(|(name, _)| is_other(name));
        write_key(&mut self.key, request, path, (service, cache, is_trusted));
        is_served && self.key.len() <= KEY_LEN_MAX
    }

    /// Records that the request changes what a key stands for.
    pub(super) fn changes(&mut self, request: &Request<'_>, path: &[u8], of: (&HttpService, &Cache, bool)) {
        write_key(&mut self.key, request, path, of);
        self.invalidates = true;
    }

    /// Looks into the store.
    pub(super) fn look(&mut self, now: Instant, cache: &Cache, work: &mut Work) -> Looked {
        let unix = work.clock.unix_ms(now);
        let Work { caching, room, .. } = work;
        let Some(store) = &caching.store else { return Looked::Ask };
        let fields = Fields::of_head(&self.request);
        let has_range = fields.has(b"range");
        let ask = Ask {
            control: Some(&self.control).filter(|_| cache.config.obeys_clients),
            identity: self.identity,
            is_impatient: self.is_head || self.wait.is_some_and(|(since, _)| now >= since + WAIT_MAX),
            waited: self.waited,
        };
        let (result, object) = match store.find(unix, (&self.key, fields), &ask, room) {
            Found::Fresh(object) => (CacheResult::Hit, Some(object)),
            Found::Stale(object) => (CacheResult::Stale, Some(object)),
            _ if self.control.only_if_cached => return Looked::Refused,
            Found::Wait(fill) if !has_range => {
                self.waited.get_or_insert(fill);
                return Looked::Shared;
            }
            Found::Wait(_) => (CacheResult::Bypass, None),
            // The part of a response, or its head, is not stored, and does not keep others waiting.
            Found::Fill(_, None) | Found::Pass(_, None) if has_range && !self.is_head => {
                (CacheResult::Bypass, None)
            }
            Found::Fill(fill, stale) | Found::Pass(fill, stale) => {
                (self.fill, self.stale) = (Some(fill).filter(|_| !self.is_head), stale);
                (CacheResult::Miss, None)
            }
        };
        self.result = Some(result);
        self.object = object;
        if self.object.is_some() { Looked::Stored } else { Looked::Ask }
    }

    /// Begins to wait, or goes on. Returns `false` if too many wait.
    pub(super) fn waits(
        &mut self,
        now: Instant,
        who: (csp_types::FlowLabel, u32),
        caching: &mut Caching,
    ) -> bool {
        let since = self.wait.map_or(now, |(since, _)| since);
        if !caching.wait(&self.key, who) {
            self.wait = None;
            return false;
        }
        let (next, end) = (now + now.saturating_since(since).clamp(LOOK_FIRST, LOOK_LAST), since + WAIT_MAX);
        self.wait = Some((since, if now < end { next.min(end) } else { next }));
        true
    }

    /// Waits no more.
    pub(super) fn waits_no_more(&mut self, who: (csp_types::FlowLabel, u32), caching: &mut Caching) {
        if self.wait.take().is_some() {
            caching.unwait(&self.key, who);
        }
    }

    /// Returns what of the stored response the client gets. `unix`: seconds since 1970.
    pub(super) fn part(&self, object: &Object, unix: u64) -> Part {
        let stored = (object.status(), object.fields());
        match evaluate(Fields::of_head(&self.request), stored, object.body().len(), unix) {
            Part::Range(_) | Part::Unsatisfiable if self.is_head => Part::Whole,
            part => part,
        }
    }

    /// Changes the head for the member: without conditions of the client, with those of the cache.
    pub(super) fn prepare(&self, head: &mut Vec<u8>) {
        if self.fill.is_none() {
            return;
        }
        without_conditions(head);
        let Some(stale) = &self.stale else { return };
        head.truncate(head.len().saturating_sub(2));
        for (name, condition) in
            [(&b"etag"[..], &b"If-None-Match: "[..]), (b"last-modified", b"If-Modified-Since: ")]
        {
            if let Some(value) = stale.fields().only(name) {
                [condition, value, b"\r\n"].iter().for_each(|part| head.extend_from_slice(part));
            }
        }
        head.extend_from_slice(b"\r\n");
    }

    /// Processes the head of a member's response. `is_whole`: the gateway sees
    /// whether a body that ends with the connection is complete.
    pub(super) fn heard(
        &mut self,
        (response, source, is_whole): (&Response<'_>, Framing, bool),
        cache: Option<&Cache>,
        (now, work): (Instant, &mut Work),
    ) -> Heard {
        let unix = work.clock.unix_ms(now);
        let status = response.status();
        if self.invalidates {
            if (200..400).contains(&status)
                && let Some(store) = &work.caching.store
            {
                store.invalidate(&self.key); // RFC 9111 §4.4
            }
            return Heard::Pass;
        }
        let (Some(_), Some(cache)) = (&self.fill, cache) else { return Heard::Pass };
        if status >= 500 && self.may_serve_stale(unix) {
            self.end_fill(&mut work.caching);
            (self.result, self.object) = (Some(CacheResult::Stale), self.stale.take());
            return Heard::Instead;
        }
        let Some(fill) = &mut self.fill else { return Heard::Pass };
        let date = work.clock.date(now);
        let how = ResponseForward { plan: None, date, edits: Edits::NONE, extra: &[] };
        let written = forward::response(&mut work.head, response, &how).unwrap_or(0);
        let head = work.head.get(..written).unwrap_or_default();
        let times = (unix / 1_000, unix.saturating_sub(fill.began()) / 1_000);
        let how = (self.identity, &cache.config.rules, cache.config.keeps_tags);
        let request = Fields::of_head(&self.request);
        if status == 304
            && let Some(stale) = self.stale.take()
        {
            let news = stale.freshened(head, request, times, how);
            let object = match (news, self.fill.take()) {
                (Ok(draft), Some(fill)) => fill.commit(unix, draft, Some(&stale)),
                (_, fill) => {
                    fill.into_iter().for_each(|fill| fill.refuse(unix));
                    None
                }
            };
            work.caching.wake(&self.key);
            (self.result, self.object) = (Some(CacheResult::Revalidated), Some(object.unwrap_or(stale)));
            return Heard::AfterEnd;
        }
        if self.stale.is_some() {
            self.result = Some(CacheResult::Expired);
        }
        self.length = match source {
            Framing::Length(length) => Some(length),
            _ => None,
        };
        let draft = match source {
            Framing::UntilClose if !is_whole => None,
            _ => Draft::new((status, head), request, times, how).ok(),
        };
        let most = cache.config.body_len_max;
        let fits = usize::try_from(self.length.unwrap_or(0)).is_ok_and(|length| fill.reserve(length, most));
        self.draft = draft.filter(|_| written > 0 && fits);
        if self.draft.is_none() {
            self.refuse(unix, status, &mut work.caching);
        }
        Heard::Pass
    }

    /// The response is not stored, and what was stored before is not right any more, unless the server has
    /// failed.
    fn refuse(&mut self, unix: u64, status: u16, caching: &mut Caching) {
        if let (Some(store), Some(_), 200..=499) = (&caching.store, self.stale.take(), status) {
            store.invalidate(&self.key);
        }
        // A failure says nothing of what comes after it.
        if let Some(fill) = self.fill.take()
            && status < 500
        {
            fill.refuse(unix);
        }
        caching.wake(&self.key);
    }

    /// Returns whether a stale response may be served, since the server has failed.
    fn may_serve_stale(&self, unix: u64) -> bool {
        let times = self.stale.as_ref().map(|stale| stale.times());
        times.is_some_and(|times| times.staleness(unix / 1_000) < times.if_error)
    }

    /// The server could not be asked. Returns whether the client gets a stale response instead.
    pub(super) fn falls_back(&mut self, now: Instant, work: &mut Work) -> bool {
        let falls = self.object.is_none() && self.may_serve_stale(work.clock.unix_ms(now));
        if falls {
            self.end_fill(&mut work.caching);
            (self.result, self.object) = (Some(CacheResult::Stale), self.stale.take());
        }
        falls
    }

    /// Returns whether the body that comes is stored.
    pub(super) fn is_storing(&self) -> bool {
        self.draft.is_some()
    }

    /// Returns the length of what is stored of the body.
    pub(super) fn mark(&self) -> usize {
        self.fill.as_ref().map_or(0, Fill::len)
    }

    /// Stores payload that passes. It may turn out to be too long.
    pub(super) fn store(&mut self, bytes: &[u8], cache: Option<&Cache>, (now, work): (Instant, &mut Work)) {
        let most = cache.map_or(0, |cache| cache.config.body_len_max);
        let is_taken = self.fill.as_mut().is_some_and(|fill| fill.push(bytes, most));
        if !is_taken && self.draft.take().is_some() {
            self.refuse(work.clock.unix_ms(now), 200, &mut work.caching);
        }
    }

    /// Returns how many bytes are stored and passed at once.
    pub(super) fn piece(&self) -> usize {
        if self.piece == 0 { PIECE_MAX } else { self.piece }
    }

    /// Records that of `len` bytes `moved` have passed: a client that takes little is offered little, since
    /// what does not pass was copied in vain.
    pub(super) fn piece_passed(&mut self, len: usize, moved: usize) {
        let next = if moved < len { moved * 2 } else { self.piece() * 2 };
        self.piece = next.clamp(PIECE_MIN, PIECE_MAX);
    }

    /// Removes what was stored beyond `len` bytes of the body, since it has not passed.
    pub(super) fn unstore(&mut self, len: usize) {
        if let Some(fill) = &mut self.fill {
            fill.truncate(len);
        }
    }

    /// The response is complete.
    pub(super) fn complete(&mut self, now: Instant, work: &mut Work) {
        if let (Some(draft), Some(fill)) = (self.draft.take(), self.fill.take()) {
            let is_right = self.length.is_none_or(|length| length == fill.len() as u64);
            if is_right {
                fill.commit(work.clock.unix_ms(now), draft, None);
            }
        }
        work.caching.wake(&self.key);
    }

    /// Ends a request to the server whose response is not stored; the next one fills.
    pub(super) fn end_fill(&mut self, caching: &mut Caching) {
        self.draft = None;
        if self.fill.take().is_some() {
            caching.wake(&self.key);
        }
    }

    /// Returns what `Cache-Status` says of a response that a member has sent (RFC 9211 §2).
    pub(super) fn report(&self) -> &'static [u8] {
        match (self.result, self.draft.is_some()) {
            (Some(CacheResult::Expired), true) => b"csp; fwd=stale; stored",
            (Some(CacheResult::Expired), false) => b"csp; fwd=stale",
            (Some(CacheResult::Miss), true) => b"csp; fwd=miss; stored",
            (Some(CacheResult::Miss), false) => b"csp; fwd=miss",
            _ => b"csp; fwd=bypass",
        }
    }
}

/// Writes the key of a request under a rule.
fn write_key(
    key: &mut Vec<u8>,
    request: &Request<'_>,
    path: &[u8],
    (service, cache, is_trusted): (&HttpService, &Cache, bool),
) {
    let host = request.host();
    let parts = Parts {
        scope: cache.scope,
        is_secure: service.scheme == Scheme::Https,
        host: host.map_or(&service.default_host[..], |host| host.name),
        port: host.and_then(|host| host.port),
        path,
        query: request.query(),
    };
    key::write(key, &parts, &cache.config.query);
    let fields = Fields::of_head(request.bytes());
    cache.config.fields.iter().for_each(|name| key::add(key, name, fields));
    if is_trusted {
        // What a trusted proxy says goes to servers, which may answer by it.
        for (name, value) in fields.filter(|(name, _)| is_told(name)) {
            key::add_one(key, name, value);
        }
        forwarded(key, fields);
    }
}

/// Returns whether it is an `X-Forwarded-*` field other than `X-Forwarded-For`.
fn is_told(name: &[u8]) -> bool {
    const START: &[u8] = b"x-forwarded-";
    let is_one = name.get(..START.len()).is_some_and(|start| start.eq_ignore_ascii_case(START));
    is_one && !name[START.len()..].eq_ignore_ascii_case(b"for")
}

/// Appends host and scheme that `Forwarded` names (RFC 7239).
fn forwarded(key: &mut Vec<u8>, fields: Fields<'_>) {
    for pair in
        fields.values(b"forwarded").flat_map(elements).flat_map(|element| element.split(|byte| *byte == b';'))
    {
        let pair = pair.trim_ascii();
        let begins =
            |name: &[u8]| pair.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        if begins(b"host=") || begins(b"proto=") {
            key.extend_from_slice(pair);
            key.push(0);
        }
    }
}

/// Removes the fields of conditions from a head.
fn without_conditions(head: &mut Vec<u8>) {
    let (mut from, mut to) = (0, 0);
    while from < head.len() {
        let end = head[from..].iter().position(|byte| *byte == b'\n').map_or(head.len(), |at| from + at + 1);
        let line = &head[from..end];
        let name = &line[..line.iter().position(|byte| *byte == b':').unwrap_or(0)];
        if !CONDITIONS.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            head.copy_within(from..end, to);
            to += end - from;
        }
        from = end;
    }
    head.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_removed() {
        let mut head =
            b"GET / HTTP/1.1\r\nRange: bytes=0-1\r\nHost: a\r\nif-none-match: \"x\"\r\nIf: y\r\n\r\n"
                .to_vec();
        without_conditions(&mut head);
        assert_eq!(head, b"GET / HTTP/1.1\r\nHost: a\r\nIf: y\r\n\r\n");
    }
}

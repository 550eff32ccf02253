//! A stored response: immutable, shared by whoever serves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::control::ResponseControl;
use crate::fields::{Fields, elements};
use crate::freshness::{Identity, Rules, Times, Unstored, storable};
use crate::vary::Chosen;

/// What an object takes beside its bytes, about, in bytes.
const OVERHEAD: usize = 512;
/// Fields of a response by which it is purged.
const TAGS: [&[u8]; 2] = [b"cache-tag", b"surrogate-key"];
/// Longest tags of an object in bytes; a response with longer ones is not stored.
const TAGS_LEN_MAX: usize = 16 << 10;
/// Most fields of a response that is stored, and its longest head in bytes: so that it can be read again as
/// strictly as responses of servers are, with what the proxy adds.
const FIELDS_MAX: usize = 120;
const HEAD_LEN_MAX: usize = 60_000;
/// Greatest number of uses that eviction distinguishes.
const USES_MAX: u8 = 3;

/// What is stored of a response before its body.
#[derive(Clone, Debug)]
pub struct Draft {
    pub(crate) status: u16,
    pub(crate) head: Vec<u8>,
    pub(crate) times: Times,
    pub(crate) control: ResponseControl,
    pub(crate) chosen: Chosen,
    pub(crate) tags: Box<[u8]>,
}

impl Draft {
    /// Prepares a response for the store. `head`: its status line and those fields that every client may get,
    /// an empty line at the end. `request`: the fields of the client's request. `now` and `delay`, the time
    /// between request and response, in seconds. `keeps_tags`: whether clients get the fields with tags.
    ///
    /// # Errors
    /// Why the response must not be stored.
    pub fn new(
        (status, head): (u16, &[u8]),
        request: Fields<'_>,
        (now, delay): (u64, u64),
        (identity, rules, keeps_tags): (Identity, &Rules, bool),
    ) -> Result<Draft, Unstored> {
        let fields = Fields::of_head(head);
        if fields.count() > FIELDS_MAX || head.len() > HEAD_LEN_MAX {
            return Err(Unstored::Control);
        }
        let (times, control) = storable((status, fields), (now, delay), identity, rules)?;
        let chosen = Chosen::of(fields, request).ok_or(Unstored::Vary)?;
        let mut tags = Vec::new();
        for tag in TAGS.iter().flat_map(|name| fields.values(name)).flat_map(each_tag) {
            tags.extend_from_slice(tag);
            tags.push(b' ');
        }
        if tags.len() > TAGS_LEN_MAX {
            return Err(Unstored::Control);
        }
        let drops = |name: &[u8]| {
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            is(b"age") || is(b"content-length") || !keeps_tags && TAGS.iter().any(|tag| is(tag))
        };
        let head = without(head, drops);
        Ok(Draft { status, head, times, control, chosen, tags: tags.into() })
    }
}

/// Returns an entity tag without its mark of weakness.
fn bare(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Returns the tags in a field's value, which spaces or commas divide.
fn each_tag(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    elements(value).flat_map(|element| element.split(|byte| *byte == b' ')).filter(|tag| !tag.is_empty())
}

/// Returns a head without fields that `drops` names, and without its empty line.
fn without(head: &[u8], drops: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let end = head.iter().position(|byte| *byte == b'\n').map_or(head.len(), |at| at + 1);
    let mut out = Vec::with_capacity(head.len() + 32);
    out.extend_from_slice(&head[..end]);
    for (name, value) in Fields::of_head(head).filter(|(name, _)| !drops(name)) {
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    out
}

/// The body of a stored response. It counts for as long as anybody has it: also a client that reads slowly
/// what was evicted meanwhile.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    held: Arc<AtomicUsize>,
}

impl Body {
    /// Creates a body that counts in `held`.
    pub(crate) fn new(bytes: Vec<u8>, held: &Arc<AtomicUsize>) -> Arc<Body> {
        held.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Arc::new(Body { bytes, held: Arc::clone(held) })
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
    }
}

/// A stored response.
#[derive(Debug)]
pub struct Object {
    pub(crate) id: u64,
    pub(crate) key: Arc<[u8]>,
    status: u16,
    /// Status line and fields, with `Content-Length` where the status permits it, and an empty line.
    head: Box<[u8]>,
    body: Arc<Body>,
    times: Times,
    control: ResponseControl,
    pub(crate) chosen: Chosen,
    tags: Box<[u8]>,
    uses: AtomicU8,
}

impl Object {
    pub(crate) fn new(id: u64, key: Arc<[u8]>, draft: Draft, body: Arc<Body>) -> Object {
        let Draft { status, mut head, times, control, chosen, tags } = draft;
        if !matches!(status, 204 | 304) {
            head.extend_from_slice(format!("Content-Length: {}\r\n", body.bytes.len()).as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        let head = head.into_boxed_slice();
        Object { id, key, status, head, body, times, control, chosen, tags, uses: AtomicU8::new(0) }
    }

    /// Returns what is stored after the server has said by 304 that the response is still right: its fields
    /// replace those of the same names (RFC 9111 §3.2). `head`: the head of the 304, `now` in seconds.
    ///
    /// # Errors
    /// Why the response must not be stored any more.
    pub fn freshened(
        &self,
        head: &[u8],
        request: Fields<'_>,
        now: (u64, u64),
        how: (Identity, &Rules, bool),
    ) -> Result<Draft, Unstored> {
        let news = Fields::of_head(head);
        // RFC 9111 §4.3.4: a 304 about another response says nothing of this one.
        let (new, old) = (news.only(b"etag"), self.fields().only(b"etag"));
        if new.is_some_and(|new| old.is_some_and(|old| bare(new) != bare(old))) {
            return Err(Unstored::Part);
        }
        let is_kept_old = |name: &[u8]| {
            [
                &b"content-length"[..],
                b"content-encoding",
                b"content-type",
                b"content-range",
                b"transfer-encoding",
            ]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
        };
        let replaced =
            |name: &[u8]| !is_kept_old(name) && news.clone().any(|(new, _)| new.eq_ignore_ascii_case(name));
        let mut merged = without(&self.head, replaced);
        for (name, value) in news.filter(|(name, _)| !is_kept_old(name)) {
            for part in [name, b": ", value, b"\r\n"] {
                merged.extend_from_slice(part);
            }
        }
        // Tags that clients do not get are no part of the stored head.
        let mut draft = Draft::new((self.status, &merged), request, now, how)?;
        if draft.tags.is_empty() {
            draft.tags = self.tags.clone();
        }
        Ok(draft)
    }

    pub(crate) fn shared_body(&self) -> Arc<Body> {
        Arc::clone(&self.body)
    }

    /// Returns the status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the head: status line and fields, with the body's length, without `Age`.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the fields of the head.
    pub fn fields(&self) -> Fields<'_> {
        Fields::of_head(&self.head)
    }

    /// Returns the fields as text, with the empty line.
    pub fn field_lines(&self) -> &[u8] {
        let end = self.head.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        &self.head[end..]
    }

    /// Returns the body.
    pub fn body(&self) -> &[u8] {
        &self.body.bytes
    }

    /// Returns for how long it may be used.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// Returns what its `Cache-Control` says.
    pub fn control(&self) -> &ResponseControl {
        &self.control
    }

    /// Returns the key under which it is stored.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns whether it has a tag.
    pub(crate) fn has_tag(&self, tag: &[u8]) -> bool {
        self.tags.split(|byte| *byte == b' ').any(|known| known == tag)
    }

    /// Returns the memory that it takes, in bytes.
    pub fn size(&self) -> usize {
        OVERHEAD
            + 2 * self.key.len()
            + self.head.len()
            + self.body.bytes.capacity()
            + self.chosen.len()
            + self.tags.len()
    }

    /// Counts a use.
    pub(crate) fn used(&self) {
        let uses = self.uses.load(Ordering::Relaxed);
        if uses < USES_MAX {
            self.uses.store(uses + 1, Ordering::Relaxed);
        }
    }

    /// Returns the number of uses, up to a small bound.
    pub(crate) fn uses(&self) -> u8 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Counts one use less.
    pub(crate) fn decay(&self) {
        self.uses.store(self.uses().saturating_sub(1), Ordering::Relaxed);
    }
}

//! The store of a proxy: objects in memory within one bound, shared by all workers.
//!
//! ```text
//!  find ─┬─▶ Fresh(object)                       no request to a server
//!        ├─▶ Stale(object)                       another request asks the server
//!        ├─▶ Fill(fill, object?) ── commit ──▶ object      others of the key wait
//!        │                       ├─ refuse ──▶ for a while nobody waits for that key
//!        │                       └─ dropped ─▶ the next request fills
//!        ├─▶ Pass(fill, object?)                 likewise, but nobody waits
//!        └─▶ Wait                                another request fills: find again
//! ```
//! Each shard has a lock, held for a look into tables, never for I/O or for copying a body.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::control::RequestControl;
use crate::fields::Fields;
use crate::freshness::Identity;
use crate::hash::Secret;
use crate::key;
use crate::object::{Body, Draft, Object};
use crate::shard::Shard;

/// Most stored responses of a key, which `Vary` distinguishes.
pub const VARIANTS_MAX: usize = 8;
/// How long others wait for a request to a server at most, and after which its response is not stored, in
/// milliseconds.
pub const FILL_MS_MAX: u64 = 30_000;
/// How long requests for a key whose response was not stored do not wait for each other, in milliseconds.
const PASS_MS: u64 = 10_000;
/// Memory of a body before it has come, in bytes.
const RESERVED_MAX: usize = 64 << 10;
/// Parts of the store.
const SHARDS: usize = 32;
/// Objects that are looked at while a shard is locked, when all are.
const BATCH: usize = 256;

/// The store.
#[derive(Debug)]
pub struct Store {
    shards: Box<[Mutex<Shard>]>,
    secret: Secret,
    bytes_max: AtomicUsize,
    bytes: AtomicUsize,
    /// Bytes of bodies that are on their way.
    filling: AtomicUsize,
    /// Bytes of bodies that anybody has, also after they were evicted.
    held: Arc<AtomicUsize>,
    next_id: AtomicU64,
    /// Number of purges.
    purges: AtomicU64,
    next_shard: AtomicUsize,
    stored: AtomicU64,
    evicted: AtomicU64,
    purged: AtomicU64,
}

/// What the store has for a request.
#[derive(Debug)]
pub enum Found {
    /// A response that is fresh.
    Fresh(Arc<Object>),
    /// A response that is stale and may be served, since another request asks the server.
    Stale(Arc<Object>),
    /// The caller asks the server; with a stale response, whether that is still right.
    Fill(Fill, Option<Arc<Object>>),
    /// The same, and nobody waits for it.
    Pass(Fill, Option<Arc<Object>>),
    /// Another request asks the server: the number of its fill.
    Wait(u64),
}

/// What a request says of stored responses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Its `Cache-Control`, if that counts.
    pub control: Option<&'a RequestControl>,
    /// Whether it has an identity: only responses for all are served.
    pub identity: Identity,
    /// Whether it has waited for long enough.
    pub is_impatient: bool,
    /// The fill for which it has waited first. Once that, or a later one, has stored what is not for this
    /// request, it does not wait again.
    pub waited: Option<u64>,
}

/// What there is in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Objects.
    pub objects: usize,
    /// Their memory in bytes.
    pub bytes: usize,
    /// Most memory in bytes.
    pub bytes_max: usize,
    /// Bytes of bodies that are on their way.
    pub filling: usize,
    /// Objects that were stored.
    pub stored: u64,
    /// Objects that were evicted.
    pub evicted: u64,
    /// Objects that were purged or invalidated.
    pub purged: u64,
}

/// An object in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The host.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// The status.
    pub status: u16,
    /// Its age in seconds.
    pub age: u64,
    /// For how many seconds it is fresh; 0: it is stale.
    pub fresh_for: u64,
    /// Its memory in bytes.
    pub bytes: usize,
}

/// What is purged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purge<'a> {
    /// Everything.
    All,
    /// This path with any query, or exactly this path and query; of any host.
    Path(&'a str),
    /// Paths that begin so; of any host.
    Prefix(&'a str),
    /// What the server has given this tag.
    Tag(&'a str),
}

impl Purge<'_> {
    fn has(&self, object: &Object) -> bool {
        let path = key::path(&object.key);
        match self {
            Purge::All => true,
            Purge::Path(wanted) => {
                let rest = path.strip_prefix(wanted.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'?' && !wanted.contains('?'))
            }
            Purge::Prefix(wanted) => path.starts_with(wanted.as_bytes()),
            Purge::Tag(tag) => object.has_tag(tag.as_bytes()),
        }
    }
}

impl Store {
    /// Creates a store with at most `bytes_max` bytes of objects. `secret`: a random number.
    pub fn new(bytes_max: usize, secret: u64) -> Arc<Store> {
        let secret = Secret(secret);
        Arc::new(Store {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(secret))).collect(),
            secret,
            bytes_max: AtomicUsize::new(bytes_max),
            bytes: AtomicUsize::new(0),
            filling: AtomicUsize::new(0),
            held: Arc::default(),
            next_id: AtomicU64::new(1),
            purges: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
            stored: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            purged: AtomicU64::new(0),
        })
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // A thread that has panicked has left tables that are whole: each change is of one table at a time.
        self.shards[hash as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what there is for a request with this key and these fields. `now` in milliseconds since 1970;
    /// `room` is memory for this call.
    pub fn find(
        self: &Arc<Self>,
        now: u64,
        (key, request): (&[u8], Fields<'_>),
        ask: &Ask<'_>,
        room: &mut Vec<u8>,
    ) -> Found {
        let hash = self.secret.hash_one(key);
        let mut shard = self.shard(hash);
        let since = (shard.invalidations(), self.purges.load(Ordering::Relaxed));
        let passes = ask.is_impatient || shard.passes(hash, now);
        // What one identity gets says nothing of what others get.
        let unawaited = (false, !ask.identity.is_known);
        let Some(entry) = shard.entries.get_mut(key) else {
            let key: Arc<[u8]> = key.into();
            if ask.identity.is_known || passes {
                return Found::Pass(self.fill((key, hash), now, since, unawaited), None);
            }
            let fill = self.fill((Arc::clone(&key), hash), now, since, (true, true));
            shard.entries.entry(key).or_default().fill = Some((fill.id, now));
            return Found::Fill(fill, None);
        };
        let is_for = |object: &&Arc<Object>| {
            (!ask.identity.is_known || object.control().is_shared()) && object.chosen.is_by(request, room)
        };
        let object = entry.variants.iter().find(is_for).cloned();
        if let Some(object) = &object {
            let strict = object.control().must_revalidate || object.control().no_cache;
            if object.times().satisfies(now / 1_000, ask.control, strict) {
                object.used();
                return Found::Fresh(Arc::clone(object));
            }
        }
        let is_filling = entry.fill.is_some_and(|(_, began)| now.saturating_sub(began) < FILL_MS_MAX);
        if let Some(object) = object.as_ref().filter(|_| is_filling && ask.control.is_none_or(is_lenient)) {
            let times = object.times();
            if times.staleness(now / 1_000) < times.while_revalidate {
                object.used();
                return Found::Stale(Arc::clone(object));
            }
        }
        // Others would wait for what is not for them, or is validated before each use.
        let is_alone = match &object {
            Some(object) => !object.times().is_ever_of_use(),
            None => ask.identity.is_known,
        };
        let has_waited = ask.waited.is_some_and(|fill| entry.variants.iter().any(|stored| stored.id >= fill));
        if is_alone || passes || has_waited {
            return Found::Pass(self.fill((key.into(), hash), now, since, unawaited), object);
        }
        if let Some((fill, _)) = entry.fill.filter(|_| is_filling) {
            return Found::Wait(fill);
        }
        let fill = self.fill((key.into(), hash), now, since, (true, true));
        entry.fill = Some((fill.id, now));
        Found::Fill(fill, object)
    }

    fn fill(
        self: &Arc<Self>,
        (key, hash): (Arc<[u8]>, u64),
        began: u64,
        since: (u64, u64),
        (is_awaited, may_pass): (bool, bool),
    ) -> Fill {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Fill { store: Arc::clone(self), key, hash, id, began, since, is_awaited, may_pass, body: Vec::new() }
    }

    /// Removes all responses of a key, since a request has changed what they represent (RFC 9111 §4.4).
    pub fn invalidate(&self, key: &[u8]) {
        let hash = self.secret.hash_one(key);
        let (freed, count) = self.shard(hash).invalidate(key, hash);
        self.bytes.fetch_sub(freed, Ordering::Relaxed);
        self.purged.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Removes objects; what is on its way is not stored. Returns the number of objects and their memory in
    /// bytes.
    pub fn purge(&self, what: &Purge<'_>) -> (usize, usize) {
        self.purges.fetch_add(1, Ordering::Relaxed);
        let (mut count, mut bytes) = (0, 0);
        self.each(|shard, object| {
            if what.has(object) {
                let freed = shard.remove(object.id);
                self.bytes.fetch_sub(freed, Ordering::Relaxed);
                (count, bytes) = (count + 1, bytes + freed);
            }
            true
        });
        self.purged.fetch_add(count as u64, Ordering::Relaxed);
        (count, bytes)
    }

    /// Returns up to `most` objects whose paths begin with `prefix`. `now` in milliseconds since 1970.
    pub fn list(&self, prefix: &str, most: usize, now: u64) -> Vec<Listed> {
        let mut all = Vec::new();
        self.each(|_, object| {
            if Purge::Prefix(prefix).has(object) && all.len() < most {
                all.push(Listed {
                    host: String::from_utf8_lossy(key::host(&object.key)).into_owned(),
                    path: String::from_utf8_lossy(key::path(&object.key)).into_owned(),
                    status: object.status(),
                    age: object.times().age(now / 1_000),
                    fresh_for: object.times().fresh_for(now / 1_000).unwrap_or(0),
                    bytes: object.size(),
                });
            }
            all.len() < most
        });
        all
    }

    /// Calls `f` with each object, some at a time, until it returns `false`.
    fn each(&self, mut f: impl FnMut(&mut Shard, &Arc<Object>) -> bool) {
        for shard in &self.shards {
            let mut from = 0;
            loop {
                let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                let batch: Vec<Arc<Object>> = shard
                    .objects
                    .range(from..)
                    .take(BATCH)
                    .map(|(_, (object, _))| Arc::clone(object))
                    .collect();
                let Some(last) = batch.last() else { break };
                from = last.id + 1;
                for object in &batch {
                    if !f(&mut shard, object) {
                        return;
                    }
                }
            }
        }
    }

    /// Returns what there is.
    pub fn status(&self) -> Status {
        let count = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).objects.len();
        Status {
            objects: self.shards.iter().map(count).sum(),
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_max: self.bytes_max.load(Ordering::Relaxed),
            filling: self.filling.load(Ordering::Relaxed),
            stored: self.stored.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            purged: self.purged.load(Ordering::Relaxed),
        }
    }

    /// Returns the longest body of a response that is stored, whatever a policy says.
    pub fn body_len_max(&self) -> usize {
        self.bytes_max.load(Ordering::Relaxed) / 8
    }

    /// Evicts objects until their memory is within the bound: of shards that have more than their share.
    fn shrink(&self) {
        let mut empty = 0;
        loop {
            let bytes = self.bytes.load(Ordering::Relaxed);
            if bytes <= self.bytes_max.load(Ordering::Relaxed) || empty >= 2 * SHARDS {
                return;
            }
            let at = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.shards[at].lock().unwrap_or_else(PoisonError::into_inner);
            let has_share = empty >= SHARDS || shard.bytes() >= bytes / SHARDS;
            let freed = if has_share { shard.evict(self.secret) } else { 0 };
            self.bytes.fetch_sub(freed, Ordering::Relaxed);
            self.evicted.fetch_add(u64::from(freed > 0), Ordering::Relaxed);
            empty = if freed == 0 { empty + 1 } else { 0 };
        }
    }
}

/// Returns whether a request accepts what the server permits to be stale.
fn is_lenient(control: &RequestControl) -> bool {
    !control.no_cache && control.max_age.is_none() && control.min_fresh.is_none()
}

/// A request to a server whose response may be stored. Dropped without [`commit`](Fill::commit), others need
/// not wait for it any more.
#[derive(Debug)]
pub struct Fill {
    store: Arc<Store>,
    key: Arc<[u8]>,
    hash: u64,
    id: u64,
    began: u64,
    /// Invalidations of the shard, and purges, when it began.
    since: (u64, u64),
    is_awaited: bool,
    /// Whether its refusal says something of other requests.
    may_pass: bool,
    body: Vec<u8>,
}

impl Fill {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns when it began, in milliseconds since 1970.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Returns the length of the part of the body that has come.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Returns whether nothing of the body has come.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Reserves memory for a body of known length. Returns whether it may be stored.
    pub fn reserve(&mut self, len: usize, most: usize) -> bool {
        let is_right = len <= most.min(self.store.body_len_max());
        if is_right {
            // More as it comes: what a head announces takes no memory.
            self.body.reserve_exact(len.min(RESERVED_MAX));
        }
        is_right
    }

    /// Appends bytes of the body. Returns `false` if it is longer than `most`, or all bodies on their way are
    /// too much for the store; the caller then drops the fill.
    pub fn push(&mut self, bytes: &[u8], most: usize) -> bool {
        let most = most.min(self.store.body_len_max());
        let filling = self.store.filling.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.body.extend_from_slice(bytes);
        self.body.len() <= most && filling <= self.store.bytes_max.load(Ordering::Relaxed) / 2
    }

    /// Removes what was appended beyond `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        let before = self.body.len();
        self.body.truncate(len);
        self.store.filling.fetch_sub(before - self.body.len(), Ordering::Relaxed);
    }

    /// Stores the response: all of its body has come. `freshened`: the body is that of this object. `now` in
    /// milliseconds since 1970. Returns the object; `None`: it has come too late, or was invalidated
    /// meanwhile, or clients that read slowly have too much that was evicted.
    pub fn commit(mut self, now: u64, draft: Draft, freshened: Option<&Object>) -> Option<Arc<Object>> {
        let mut body = std::mem::take(&mut self.body);
        self.store.filling.fetch_sub(body.len(), Ordering::Relaxed);
        let most = self.store.bytes_max.load(Ordering::Relaxed);
        let held = self.store.held.load(Ordering::Relaxed);
        let body = match freshened {
            Some(object) => object.shared_body(),
            None if held + body.len() > most + most / 2 => {
                self.refuse(now);
                return None;
            }
            None => {
                body.shrink_to_fit();
                Body::new(body, &self.store.held)
            }
        };
        let object = Arc::new(Object::new(self.id, Arc::clone(&self.key), draft, body));
        let store = Arc::clone(&self.store);
        let mut shard = store.shard(self.hash);
        let is_late = now.saturating_sub(self.began) >= FILL_MS_MAX;
        let is_changed = shard.was_invalidated(self.hash, self.since.0)
            || self.since.1 != store.purges.load(Ordering::Relaxed);
        if is_late || is_changed {
            return None; // others wait no more when this is dropped
        }
        // First, so that the sum is never below what the shards have.
        store.bytes.fetch_add(object.size(), Ordering::Relaxed);
        let freed = shard.insert(&object, self.hash, now / 1_000);
        drop(shard);
        store.stored.fetch_add(1, Ordering::Relaxed);
        store.bytes.fetch_sub(freed, Ordering::Relaxed);
        store.shrink();
        Some(object)
    }

    /// Records that the response is not stored: for a while nobody waits for another of this key, unless it
    /// was for an identity alone.
    pub fn refuse(self, now: u64) {
        if self.may_pass {
            self.store.shard(self.hash).pass(self.hash, now, now + PASS_MS);
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.store.filling.fetch_sub(self.body.len(), Ordering::Relaxed);
        if !self.is_awaited {
            return;
        }
        let mut shard = self.store.shard(self.hash);
        if let Some(entry) = shard.entries.get_mut(&self.key)
            && entry.fill.is_some_and(|(id, _)| id == self.id)
        {
            entry.fill = None;
        }
        shard.tidy(&self.key);
    }
}

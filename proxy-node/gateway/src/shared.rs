//! What all connections of a worker share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use csp_http::Limits;
use csp_http::head::Scratch;
use csp_http::limits::HEAD_LEN_MAX;
use csp_proxy_core::ClientIdentity;
use csp_proxy_core::service::upstream::Request;
use csp_types::{FlowLabel, Instant};

use crate::caching::Caching;
use crate::challenges::Challenges;
use crate::clock::{Clock, Random};
use crate::compressor::Places;
use crate::counters::{Served, UpstreamCounters};
use crate::exchange::Exchange;
use crate::held::Held;
use crate::links::Links;
use crate::out::Buffers;
use crate::pool::Members;
use crate::record::Log;
use crate::spec::EDITS_LEN_MAX;
use crate::timers::Timers;
use crate::watch::Watches;

/// Room for a head that goes on: one that was received, edits, and the gateway's own fields.
const HEAD_OUT_LEN: usize = HEAD_LEN_MAX + EDITS_LEN_MAX + (16 << 10);

/// Memory and sources that are used while a head or an answer is processed.
#[derive(Debug)]
pub(crate) struct Work {
    /// A head that is written.
    pub(crate) head: Box<[u8]>,
    /// A path in its normal form.
    pub(crate) path: Vec<u8>,
    /// A path that a rule has changed, or a trailer section.
    pub(crate) room: Vec<u8>,
    pub(crate) buffers: Buffers,
    /// Bytes of parts of heads that connections of TLS keep.
    pub(crate) carried: usize,
    pub(crate) random: Random,
    pub(crate) clock: Clock,
    pub(crate) caching: Caching,
    /// Answers to an ACME authority.
    pub(crate) challenges: Challenges,
    /// The certificate's identity of the client whose request begins, if the gateway passes it to members.
    pub(crate) identity: Option<Arc<ClientIdentity>>,
}

/// Most exchanges whose memory is kept for later ones.
const SPARE_MAX: usize = 64;

/// Memory of exchanges that are over.
#[derive(Debug, Default)]
#[allow(clippy::vec_box, reason = "the memory of the boxes is what is kept")]
pub(crate) struct Spare(Vec<Box<Exchange>>);

impl Spare {
    /// Places an exchange on the heap: connections without one are small.
    pub(crate) fn place(&mut self, exchange: Exchange) -> Box<Exchange> {
        match self.0.pop() {
            Some(mut place) => {
                *place = exchange;
                place
            }
            None => Box::new(exchange),
        }
    }

    /// Keeps the memory of an exchange that is over.
    pub(crate) fn keep(&mut self, exchange: Box<Exchange>) {
        if self.0.len() < SPARE_MAX {
            self.0.push(exchange);
        }
    }

    /// Releases the memory.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// What all connections of a worker share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) services: BTreeMap<u32, Served>,
    pub(crate) members: Members,
    /// Members' connections of HTTP/2.
    pub(crate) links: Links,
    pub(crate) timers: Timers,
    /// Memory of connections of HTTP/2.
    pub(crate) held: Held,
    /// Requests to the core.
    pub(crate) requests: VecDeque<Request>,
    /// Exchanges that ask again when a connection to a member has ended, since there was no room: the
    /// client's connection and the serial number of the exchange.
    pub(crate) starved: VecDeque<(FlowLabel, u32)>,
    /// Connections that are to be served.
    pub(crate) ready: VecDeque<FlowLabel>,
    pub(crate) log: Log,
    pub(crate) watches: Watches,
    pub(crate) upstreams: UpstreamCounters,
    /// Memory of exchanges that are over, for later ones.
    pub(crate) spare: Spare,
    /// Compressors of responses.
    pub(crate) places: Places,
    /// Exchanges in progress.
    pub(crate) exchanges: u64,
    pub(crate) scratch: Scratch,
    pub(crate) work: Work,
}

impl Shared {
    pub(crate) fn new(seed: u64, records_max: usize) -> Self {
        let limits = Limits { head_len_max: HEAD_LEN_MAX, ..Limits::default() };
        Shared {
            services: BTreeMap::new(),
            members: Members::default(),
            links: Links::default(),
            timers: Timers::default(),
            held: Held::default(),
            requests: VecDeque::new(),
            starved: VecDeque::new(),
            ready: VecDeque::new(),
            log: Log::new(records_max),
            watches: Watches::default(),
            upstreams: UpstreamCounters::default(),
            places: Places::default(),
            spare: Spare::default(),
            exchanges: 0,
            scratch: Scratch::new(&limits),
            work: Work {
                head: vec![0; HEAD_OUT_LEN].into(),
                path: Vec::new(),
                room: Vec::new(),
                buffers: Buffers::default(),
                carried: 0,
                random: Random::new(seed),
                clock: Clock::default(),
                caching: Caching::default(),
                challenges: Challenges::default(),
                identity: None,
            },
        }
    }
}

impl Shared {
    /// Withdraws a request for a connection to a member.
    pub(crate) fn withdraw(&mut self, token: u64) {
        self.members.waits_no_more(token);
        self.requests.push_back(Request::Cancel(token));
    }
}

/// One call for one client's connection: what is shared, and the ends of connections.
#[derive(Debug)]
pub(crate) struct Cx<'a, E> {
    pub(crate) now: Instant,
    /// The client's connection.
    pub(crate) client: FlowLabel,
    pub(crate) shared: &'a mut Shared,
    pub(crate) ends: &'a mut E,
}

/// Slices of readable bytes that need no allocation.
const SLICES: usize = 32;

/// Room for slices of readable bytes.
#[derive(Debug, Default)]
pub(crate) struct Slices<'a> {
    few: [&'a [u8]; SLICES],
    many: Vec<&'a [u8]>,
    len: usize,
    /// The number of bytes.
    pub(crate) bytes: usize,
}

impl<'a> Slices<'a> {
    /// Gathers slices.
    pub(crate) fn of(slices: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut all = Slices::default();
        for slice in slices {
            all.bytes += slice.len();
            match all.few.get_mut(all.len) {
                Some(place) if all.many.is_empty() => *place = slice,
                _ => {
                    if all.many.is_empty() {
                        all.many.extend_from_slice(&all.few);
                    }
                    all.many.push(slice);
                }
            }
            all.len += 1;
        }
        all
    }

    /// Returns the slices.
    pub(crate) fn get(&self) -> &[&'a [u8]] {
        if self.many.is_empty() { &self.few[..self.len] } else { &self.many }
    }
}

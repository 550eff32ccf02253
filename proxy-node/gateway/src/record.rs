//! The log: one record of each exchange, in memory of bounded size.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_http::head::Version;
use csp_proxy_core::ServerHost;
use csp_types::{Duration, FlowLabel, Instant};

use crate::{CacheResult, Reason};

/// Most records that wait for the daemon.
pub const RECORDS_MAX: usize = 16_384;

/// Longest text of each kind in a record, in bytes: method, host, path with query, user agent, referer,
/// request id of a trusted peer.
pub const TEXT_LEN_MAX: [usize; TEXTS] = [24, 128, 512, 192, 256, 128];

const TEXTS: usize = 6;
/// Most memory of a record's texts in bytes.
const ROOM_MAX: usize = 2 << 10;

/// A text of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Method,
    Host,
    Path,
    UserAgent,
    Referer,
    RequestId,
}

/// How long the parts of an exchange took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Phases {
    /// From the first byte of the request to the end of its head.
    pub head: Duration,
    /// From there until a connection to a member was there, with the time in the pool's backlog and that of
    /// members that failed before.
    pub connect: Duration,
    /// From there to the head of the response. `None`: there was none of a member.
    pub first_byte: Option<Duration>,
    /// From the end of the request's head to the end of the exchange.
    pub total: Duration,
}

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Record {
    /// The service's name.
    pub service: Arc<str>,
    /// The rule's name; `None`: no rule names the request, or its head could not be read.
    pub rule: Option<Arc<str>>,
    /// When the head was complete.
    pub began: Instant,
    /// The client's connection, for its trace.
    pub flow: FlowLabel,
    /// The peer of the client's connection.
    pub client: SocketAddr,
    /// The address that the rules took for the client's: that of the peer, or what trusted proxies say.
    pub source: IpAddr,
    /// The request's version.
    pub version: Version,
    /// Whether the client's connection is of HTTP/2; `version` is then that of the head as members see it.
    pub is_http2: bool,
    /// The status that the client received, or 499.
    pub status: u16,
    /// Why the gateway answered itself, or how the exchange failed; `None`: it passed.
    pub reason: Option<Reason>,
    /// Whether the response came from the cache; `None`: its rule has none.
    pub cache: Option<CacheResult>,
    /// Bytes of the request's body.
    pub received: u64,
    /// Bytes of the response's body.
    pub sent: u64,
    /// The last member that was asked.
    pub member: Option<(ServerHost, u16)>,
    /// Whether its connection was kept from an earlier request.
    pub reused: bool,
    /// Connections that were asked for or used, the last one included.
    pub attempts: u8,
    /// Times of its parts.
    pub phases: Phases,
    /// The trace's id, if the member got one.
    pub trace: Option<[u8; 16]>,
    /// The id that the gateway gave to the request.
    pub request_id: Option<[u8; 16]>,
    text: Vec<u8>,
    ends: [u16; TEXTS],
}

impl Record {
    /// Creates the record of a request whose texts are not known.
    pub(crate) fn new(service: &Arc<str>, client: SocketAddr, flow: FlowLabel, now: Instant) -> Self {
        Record {
            service: Arc::clone(service),
            rule: None,
            began: now,
            flow,
            client,
            source: client.ip(),
            version: Version::Http11,
            is_http2: false,
            status: 0,
            reason: None,
            cache: None,
            received: 0,
            sent: 0,
            member: None,
            reused: false,
            attempts: 0,
            phases: Phases::default(),
            trace: None,
            request_id: None,
            text: Vec::new(),
            ends: [0; TEXTS],
        }
    }

    /// Sets all texts, in the order of [`TEXT_LEN_MAX`], in memory that was used before. Returns that memory
    /// if it is larger than a record in the log may have.
    pub(crate) fn set_texts(&mut self, mut room: Vec<u8>, texts: [&[&[u8]]; TEXTS]) -> Option<Vec<u8>> {
        room.clear();
        let len_of =
            |(parts, most): (&[&[u8]], usize)| parts.iter().map(|part| part.len()).sum::<usize>().min(most);
        let len = texts.into_iter().zip(TEXT_LEN_MAX).map(len_of).sum();
        let unused = (room.capacity() > ROOM_MAX).then(|| std::mem::take(&mut room));
        room.reserve_exact(len);
        for ((parts, most), end) in texts.into_iter().zip(TEXT_LEN_MAX).zip(&mut self.ends) {
            let mut left = most;
            for part in parts {
                let len = part.len().min(left);
                room.extend_from_slice(&part[..len]);
                left -= len;
            }
            *end = room.len() as u16;
        }
        self.text = room;
        unused
    }

    /// Removes the memory of the texts, which can be used again.
    pub(crate) fn take_room(&mut self) -> Vec<u8> {
        self.ends = [0; TEXTS];
        std::mem::take(&mut self.text)
    }

    fn text(&self, kind: Kind) -> &[u8] {
        let at = kind as usize;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        self.text.get(usize::from(start)..usize::from(self.ends[at])).unwrap_or_default()
    }

    /// Returns the method's name.
    pub fn method(&self) -> &[u8] {
        self.text(Kind::Method)
    }

    /// Returns the host that the client named.
    pub fn host(&self) -> &[u8] {
        self.text(Kind::Host)
    }

    /// Returns the start of the path with the query, as the client wrote it.
    pub fn path(&self) -> &[u8] {
        self.text(Kind::Path)
    }

    /// Returns the start of `User-Agent`.
    pub fn user_agent(&self) -> &[u8] {
        self.text(Kind::UserAgent)
    }

    /// Returns the start of `Referer`.
    pub fn referer(&self) -> &[u8] {
        self.text(Kind::Referer)
    }

    /// Returns the `X-Request-Id` that a trusted peer has sent.
    pub fn received_request_id(&self) -> &[u8] {
        self.text(Kind::RequestId)
    }

    /// Returns whether the request has passed, or the rule has answered it.
    pub fn is_well(&self) -> bool {
        let answered =
            [Reason::Redirect, Reason::Answer, Reason::MaxForwards, Reason::Preflight, Reason::Challenge];
        self.status < 500 && self.reason.is_none_or(|reason| answered.contains(&reason))
    }

    /// Returns when the exchange was over.
    pub fn ended(&self) -> Instant {
        self.began + self.phases.total
    }

    /// Returns the code: `ok`, or that of the [reason](Self::reason).
    pub fn code(&self) -> &'static str {
        self.reason.map_or("ok", Reason::code)
    }
}

/// Records that were taken from a gateway, or memory for further ones.
#[derive(Debug, Default)]
pub struct Records {
    places: Vec<Record>,
    len: usize,
}

impl Records {
    /// Returns the records, the oldest first.
    pub fn as_slice(&self) -> &[Record] {
        self.places.get(..self.len).unwrap_or_default()
    }
}

/// The records that the daemon has not taken.
#[derive(Debug)]
pub(crate) struct Log {
    records: Records,
    most: usize,
    lost: u64,
}

impl Log {
    /// Creates a log of at most so many records.
    pub(crate) fn new(most: usize) -> Self {
        Log { records: Records::default(), most, lost: 0 }
    }

    /// Appends a record; returns memory of an older one, which can be used again. If there is no room, the
    /// record is lost.
    pub(crate) fn push(&mut self, mut record: Record) -> Vec<u8> {
        let Records { places, len } = &mut self.records;
        if *len == self.most {
            self.lost += 1;
            return record.take_room();
        }
        *len += 1;
        match places.get_mut(*len - 1) {
            Some(place) => std::mem::replace(place, record).take_room(),
            None => {
                places.push(record);
                Vec::new()
            }
        }
    }

    /// Removes and returns all records, and the number of those that were lost. Further ones lie in the
    /// memory of `room`.
    pub(crate) fn take(&mut self, room: Records) -> (Records, u64) {
        let records = std::mem::replace(&mut self.records, Records { len: 0, ..room });
        (records, std::mem::take(&mut self.lost))
    }

    /// Returns whether there are records.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.len == 0
    }
}

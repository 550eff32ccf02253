//! What is counted by service: connections of clients over TCP, their bytes, how they ended, and when the
//! server answered first.
//!
//! ```text
//!  established ── opened ──▶ bytes each way, first byte of the server ──▶ ended: class, duration
//! ```
//! The counters of a service stand at its place in the table of services. They begin at zero when the policy
//! names the service, and again when it is named anew. A flow keeps the place, so that a message costs a
//! bounds check and an addition. Connections within the cluster, and those that programs open, have none.

use super::connection_log::End;

/// Classes of ends.
pub const CLASSES: usize = 5;
/// Upper bounds of the buckets of the time to the first byte in nanoseconds, 500 µs to 5 s; longer times have
/// a bucket of their own.
pub const FIRST_BYTE_BOUNDS_NS: [u64; 7] =
    [500_000, 2_500_000, 10_000_000, 50_000_000, 250_000_000, 1_000_000_000, 5_000_000_000];

/// Who or what ended a connection, for rates of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndClass {
    /// Both ends have finished.
    Ok,
    /// The client: it reset the connection, fell silent, or broke a protocol.
    Client,
    /// The server: it reset the connection, fell silent, was lost, or there was none in time.
    Server,
    /// A bound of the proxy: of its table or of its memory.
    Limit,
    /// Another reason of the proxy.
    Proxy,
}

impl EndClass {
    /// All classes, each at its index in [`ServiceCounters::ended`].
    pub const ALL: [EndClass; CLASSES] =
        [EndClass::Ok, EndClass::Client, EndClass::Server, EndClass::Limit, EndClass::Proxy];

    /// Returns the class of an end. A client can break a protocol whenever it likes, so that this is no error
    /// of the service.
    pub const fn of(end: End) -> EndClass {
        match end {
            End::ClosedByClient | End::ClosedByServer => EndClass::Ok,
            End::ClientReset
            | End::ClientSilent
            | End::HalfClosed
            | End::Handshake
            | End::UnknownName
            | End::Protocol => EndClass::Client,
            End::ServerReset
            | End::ServerSilent
            | End::ServerLost
            | End::ServerUnreachable
            | End::NoServer
            | End::BacklogTime
            | End::NotTakenOver => EndClass::Server,
            End::Idle | End::Stalled | End::NoMemory => EndClass::Limit,
            End::Proxy => EndClass::Proxy,
        }
    }

    /// Returns the name, as in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            EndClass::Ok => "ok",
            EndClass::Client => "client",
            EndClass::Server => "server",
            EndClass::Limit => "limit",
            EndClass::Proxy => "proxy",
        }
    }
}

/// Counters of one service at one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceCounters {
    /// Connections that clients have established.
    pub opened: u64,
    /// Bytes passed from clients to servers.
    pub received_bytes: u64,
    /// Bytes passed from servers to clients.
    pub sent_bytes: u64,
    /// Connections that have ended, by class ([`EndClass::ALL`]).
    pub ended: [u64; CLASSES],
    /// Connections by the time from their establishment to the server's first byte
    /// ([`FIRST_BYTE_BOUNDS_NS`]), not cumulative.
    pub first_byte: [u64; FIRST_BYTE_BOUNDS_NS.len() + 1],
    /// The sum of these times in nanoseconds.
    pub first_byte_ns: u64,
    /// The sum of the durations of connections that have ended, in nanoseconds.
    pub duration_ns: u64,
}

impl ServiceCounters {
    /// Returns the number of connections that have ended for a reason for which the client is not to blame.
    pub fn errors(&self) -> u64 {
        let errors = [EndClass::Server, EndClass::Limit, EndClass::Proxy];
        errors.into_iter().map(|class| self.ended[class as usize]).sum()
    }

    /// Adds those of another worker.
    pub fn add(&mut self, other: &ServiceCounters) {
        self.opened += other.opened;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.ended.iter_mut().zip(other.ended).for_each(|(sum, one)| *sum += one);
        self.first_byte.iter_mut().zip(other.first_byte).for_each(|(sum, one)| *sum += one);
        self.first_byte_ns = self.first_byte_ns.wrapping_add(other.first_byte_ns);
        self.duration_ns = self.duration_ns.wrapping_add(other.duration_ns);
    }
}

/// Where a flow is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted(u32);

impl Counted {
    /// Nowhere.
    pub const NOWHERE: Counted = Counted(u32::MAX);

    /// Returns that it is counted at this place of the table of services.
    pub(crate) const fn at(place: u32) -> Counted {
        Counted(place)
    }
}

/// The counters of all services of a worker, by their places.
#[derive(Debug, Default)]
pub(crate) struct CountersByService {
    places: Vec<ServiceCounters>,
}

impl CountersByService {
    /// Begins to count a service at zero.
    pub(crate) fn begin(&mut self, place: usize) {
        if self.places.len() <= place {
            self.places.resize_with(place + 1, ServiceCounters::default);
        }
        self.places[place] = ServiceCounters::default();
    }

    /// Returns the counters of the service at a place.
    pub(crate) fn get(&self, place: usize) -> Option<&ServiceCounters> {
        self.places.get(place)
    }

    #[inline]
    fn of(&mut self, counted: Counted) -> Option<&mut ServiceCounters> {
        self.places.get_mut(counted.0 as usize)
    }

    /// A client has established a connection.
    pub(crate) fn opened(&mut self, counted: Counted) {
        if let Some(counters) = self.of(counted) {
            counters.opened += 1;
        }
    }

    /// Bytes were passed to the server.
    #[inline]
    pub(crate) fn received(&mut self, counted: Counted, bytes: u64) {
        if let Some(counters) = self.of(counted) {
            counters.received_bytes += bytes;
        }
    }

    /// Bytes were passed to the client.
    #[inline]
    pub(crate) fn sent(&mut self, counted: Counted, bytes: u64) {
        if let Some(counters) = self.of(counted) {
            counters.sent_bytes += bytes;
        }
    }

    /// The server's first byte has come.
    pub(crate) fn first_byte(&mut self, counted: Counted, after_ns: u64) {
        if let Some(counters) = self.of(counted) {
            counters.first_byte[FIRST_BYTE_BOUNDS_NS.partition_point(|bound| *bound < after_ns)] += 1;
            counters.first_byte_ns = counters.first_byte_ns.wrapping_add(after_ns);
        }
    }

    /// A connection has ended.
    pub(crate) fn ended(&mut self, counted: Counted, end: End, lasted_ns: u64) {
        if let Some(counters) = self.of(counted) {
            counters.ended[EndClass::of(end) as usize] += 1;
            counters.duration_ns = counters.duration_ns.wrapping_add(lasted_ns);
        }
    }

    /// A client has established a connection, and it has ended before it was a flow.
    pub(crate) fn refused(&mut self, counted: Counted, end: End) {
        self.opened(counted);
        self.ended(counted, end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_stands_at_its_index() {
        assert!(EndClass::ALL.iter().enumerate().all(|(at, class)| *class as usize == at));
    }

    #[test]
    fn a_time_counts_in_the_first_bucket_that_holds_it() {
        let mut all = CountersByService::default();
        all.begin(3);
        for nanos in [0, 500_000, 500_001, 5_000_000_000, 5_000_000_001] {
            all.first_byte(Counted::at(3), nanos);
        }
        assert_eq!(all.get(3).map(|c| c.first_byte), Some([2, 1, 0, 0, 0, 0, 1, 1]));
        assert_eq!(all.get(3).map(|c| c.first_byte_ns), Some(10_001_000_002));
    }

    #[test]
    fn a_flow_that_is_counted_nowhere_changes_nothing() {
        let mut all = CountersByService::default();
        all.begin(1);
        all.refused(Counted::NOWHERE, End::Idle);
        all.received(Counted::at(2), 7);
        assert_eq!(
            (all.get(0), all.get(1)),
            (Some(&ServiceCounters::default()), Some(&ServiceCounters::default()))
        );
    }
}

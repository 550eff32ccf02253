//! Services of the proxy itself: a stream ends here, and no process of an application takes part.
//!
//! ```text
//!  client's end                     local service
//!  [TcpEnd] or ── bytes, end ─────▶ ┌───────────┐
//!  [LoopEnd]  ◀─ bytes, end, reset ─│ messages… │ ◀── bytes for it, from other connections of the service
//!                                   └───────────┘
//! ```
//! A local service may open connections to servers itself ([`upstream`](super::upstream)).

use std::sync::Arc;

use csp_quality::OutputLink;
use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple, Instant, Owner};

use super::between::Between;
use super::upstream::{Ended, Ends, OpenError, Opened, Request};

/// The local services of one worker, and its services between both ends. They keep their state of each
/// connection by the connection's label.
pub trait LocalServices: Between {
    /// Whether the services keep messages in the queues of a shared output link. At most one of two services
    /// beside each other does.
    const QUEUES_FOR_LINK: bool = false;

    /// Processes a new connection of local service `number`
    /// ([`ServiceSpec::local`](crate::ServiceSpec::local)). `false`: it is refused, and the client's
    /// connection is reset.
    fn connected(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool;

    /// Returns the proxy worker at which programs of the cluster reach local service `number`; `None` if it
    /// is this one.
    fn elsewhere(&self, _number: u32) -> Option<Owner> {
        None
    }

    /// Reports that the policy no longer names local service `number`: no further connections begin. Existing
    /// ones continue until the service or their clients end them. Called each time that the last
    /// [`ServiceSpec`](crate::ServiceSpec) with this number is removed, whether or not it has connections.
    fn drain(&mut self, _: Instant, _number: u32) {}

    /// Processes changes at a client's connection: readable bytes, room for more, the end of the stream.
    /// Called when something changes at its client's end, and after [`next_ready`](Self::next_ready) has
    /// returned it. `link`: while information flows share it, messages wait in its queues.
    fn serve(&mut self, now: Instant, label: FlowLabel, ends: &mut impl Ends, link: &mut OutputLink) -> Step;

    /// Removes and returns a request for an upstream connection, or the withdrawal of one.
    fn next_request(&mut self) -> Option<Request> {
        None
    }

    /// Answers a request of [`next_request`](Self::next_request). Called once for each request that was not
    /// cancelled. After success the connection is served.
    fn opened(&mut self, _: Instant, _token: u64, _: Result<Opened, OpenError>) {}

    /// Reports that a request for a connection to this service of the policy waits, since no server takes
    /// one now. [`opened`](Self::opened) or its withdrawal follows. Connections to it that are kept idle may
    /// take the place.
    fn waits(&mut self, _: Instant, _token: u64, _service: &Arc<str>) {}

    /// Processes changes at an upstream connection: readable bytes, room for more, the end of the server's
    /// stream or of its connection. Also called after [`next_ready`](Self::next_ready) has returned it. A
    /// connection that has [ended](super::upstream::UpstreamEnd::ended) is removed when all its bytes are
    /// consumed.
    fn serve_upstream(&mut self, _: Instant, _: FlowLabel, _: &mut impl Ends, _: &mut OutputLink) -> Step {
        Step::Reset
    }

    /// Releases the state of an upstream connection that has ended. Called once for each that was
    /// [opened](Self::opened).
    fn upstream_gone(&mut self, _: Instant, _: FlowLabel, _: Ended) {}

    /// Returns memory that a connection's end has lent and that was not returned yet. Called after
    /// connections were served, and before anything is sent.
    fn take_lent(&mut self) -> Option<Buffer> {
        None
    }

    /// Releases the state of a connection that has ended. Called once for each connection for which
    /// [`connected`](Self::connected) returned true.
    fn gone(&mut self, now: Instant, label: FlowLabel);

    /// Removes and returns a connection that has something to send because of another connection or a timer.
    /// Processes no messages, unlike [`run_contexts`](Self::run_contexts).
    fn next_ready(&mut self, link: &mut OutputLink) -> Option<FlowLabel>;

    /// Runs the processing that belongs to no connection, such as handlers of messages and queries, for a
    /// bounded number of messages. Returns whether [`next_ready`](Self::next_ready) is to be called again.
    /// Called at the beginning of each pass over the connections, and whenever `next_ready` has returned
    /// `None`.
    fn run_contexts(&mut self, _: Instant, _link: &mut OutputLink) -> bool {
        false
    }

    /// Sends what the link permits now. The services are a client of the link if they [keep
    /// messages](Self::QUEUES_FOR_LINK) in its queues. Called while information flows share the link.
    fn release(&mut self, now: Instant, link: &mut OutputLink) {
        link.release(now, &mut ());
    }

    /// Ends the sharing of the link, in the way of [`release`](Self::release): messages in its queues are
    /// sent.
    fn unshare(&mut self, now: Instant, link: &mut OutputLink) {
        link.unshare(now, &mut ());
    }

    /// Returns when to call [`on_timeout`](Self::on_timeout).
    fn next_timeout(&self) -> Option<Instant>;

    /// Runs timers that are due.
    fn on_timeout(&mut self, now: Instant);
}

/// Outcome of serving a connection of a local service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It continues, and nothing was moved.
    Idle,
    /// It continues; bytes were read or written.
    Moved,
    /// The service sends no more: written bytes are delivered, then FIN, or SHUTDOWN to a process. The
    /// service continues to read and is called again. Returned at most once for a connection.
    Finish,
    /// The service has finished with the connection: written bytes are delivered, then FIN or SHUTDOWN. What
    /// was not read, or arrives later, resets it.
    Close,
    /// The peer has violated the service's protocol, or is no longer wanted, and is reset.
    Reset,
}

/// A proxy without local services.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLocalServices;

impl Between for NoLocalServices {}

impl LocalServices for NoLocalServices {
    fn connected(&mut self, _: Instant, _: FlowLabel, _: u32, _: FourTuple) -> bool {
        false
    }

    fn serve(&mut self, _: Instant, _: FlowLabel, _: &mut impl Ends, _: &mut OutputLink) -> Step {
        Step::Reset
    }

    fn gone(&mut self, _: Instant, _: FlowLabel) {}

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        None
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

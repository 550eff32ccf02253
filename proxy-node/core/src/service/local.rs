//! Services of the proxy itself: a stream ends here, and no process of an application takes part.
//!
//! ```text
//!  client's end                     local service
//!  [TcpEnd] or ── bytes, end ─────▶ ┌───────────┐
//!  [LoopEnd]  ◀─ bytes, end, reset ─│ messages… │ ◀── bytes for it, from other connections of the service
//!                                   └───────────┘
//! ```

use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple, Instant, Owner};

use super::ClientEnd;
use super::between::Between;

/// The local services of one worker, which keep what they need of each connection by its label; and its services between both ends.
pub trait LocalServices: Between {
    /// Processes a new connection of local service `number` ([`ServiceSpec::local`](crate::ServiceSpec::local)). `false`: it is
    /// refused, and the client's connection is reset.
    fn connected(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool;

    /// Returns the proxy worker at which a program of the cluster reaches local service `number`, if it is another one.
    fn elsewhere(&self, _number: u32) -> Option<Owner> {
        None
    }

    /// Processes whatever has changed at a connection: bytes that are readable, room for more, the end of the stream. Called again
    /// when something changes at its client's end, and after [`next_ready`](Self::next_ready) has returned it.
    fn serve(&mut self, now: Instant, label: FlowLabel, client: &mut impl ClientEnd) -> Step;

    /// Returns the memory that a connection's end has lent and that was not given back. Called after connections were served, and
    /// before anything is sent.
    fn take_lent(&mut self) -> Option<Buffer> {
        None
    }

    /// Releases what is kept of a connection that is over. Called once for each one for which [`connected`](Self::connected)
    /// returned true.
    fn gone(&mut self, now: Instant, label: FlowLabel);

    /// Removes and returns a connection with something to send that has arrived on another one, or that a timer has caused.
    fn next_ready(&mut self) -> Option<FlowLabel>;

    /// Removes and returns the name of a service of the policy to a process of which a connection is to be opened; its local end is then
    /// [`opened`](Self::opened).
    fn next_open(&mut self) -> Option<String> {
        None
    }

    /// Processes a connection that was opened to a service, or that it could not be, without a label: there is no such service, or no
    /// room. `false`: it is not wanted any more. [`gone`](Self::gone) is called at its end, also if no process takes it.
    fn opened(&mut self, _: Instant, _service: &str, _label: Option<FlowLabel>) -> bool {
        false
    }

    /// Returns whether byte streams to clients share the output link with what local services send. Then what they send is
    /// [wanted](Self::wants_link) first.
    fn shares_link(&self) -> bool {
        false
    }

    /// A byte stream could send so many bytes to its client. It sends none before [`next_allowed`](Self::next_allowed) has returned it,
    /// and wants nothing else before.
    fn wants_link(&mut self, _: Instant, _: FlowLabel, _: FourTuple, _bytes: u32) {}

    /// A byte stream that waits for what it wants has ended.
    fn wants_link_no_more(&mut self, _: FlowLabel) {}

    /// Removes and returns a byte stream that the link takes something of, and how many bytes.
    fn next_allowed(&mut self, _: Instant) -> Option<(FlowLabel, u32)> {
        None
    }

    /// Returns when to call [`on_timeout`](Self::on_timeout).
    fn next_timeout(&self) -> Option<Instant>;

    /// Runs timers that are due.
    fn on_timeout(&mut self, now: Instant);
}

/// What has become of a connection of a local service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It continues, and nothing was moved.
    Idle,
    /// It continues; bytes were read or written.
    Moved,
    /// The service sends no more: written bytes are delivered, then FIN. It goes on reading, and is called again. Returned once
    /// for a connection at most.
    Finish,
    /// The service is done with it: written bytes are delivered, then FIN.
    Close,
    /// The client has violated the service's protocol, and is reset.
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

    fn serve(&mut self, _: Instant, _: FlowLabel, _: &mut impl ClientEnd) -> Step {
        Step::Reset
    }

    fn gone(&mut self, _: Instant, _: FlowLabel) {}

    fn next_ready(&mut self) -> Option<FlowLabel> {
        None
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

//! Services between both ends of a flow that examine its bytes and pass them on unchanged, without copying.
//!
//! ```text
//!  client's end                      [Passage]                        application's end
//!  [TcpEnd] or ── bytes, end ──▶ examine ─ as many as may pass ─▶ DATA, SHUTDOWN
//!  [LoopEnd]  ◀── bytes, reset ─ as many as may pass ─ examine ◀─ DATA, SHUTDOWN, CLOSE
//! ```
//! What the bytes mean is known to the [`Between`] of the worker alone, such as a set of framings of
//! messages. It keeps its state of each flow by the flow's label. Nothing is dropped and nothing waits in
//! between: whatever has no room at one end stays at the other end, under its own flow control.

use csp_tcp::Buffer;
use csp_types::{FlowLabel, FourTuple, Instant};

use super::relay::Relay;
use super::{ApplicationEnd, ClientEnd, DATA_MAX, PARTS_MAX, Passed, Progress, Service};
use crate::ProxyOutput;
use crate::output::Blocked;

/// A direction of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Towards {
    /// From the client to the application.
    Application,
    /// From the application to the client.
    Client,
}

/// Outcome of examining bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Examined {
    /// Number of bytes, from the first one, that may pass now.
    pub pass: usize,
    /// The bytes after them violate the protocol: both ends are reset.
    pub malformed: bool,
}

/// The services between both ends of one worker. They keep their state of each flow by the flow's label. The
/// default methods are those of a worker without such services.
pub trait Between {
    /// Levels of pairs of services ([`Both`](super::both::Both)), each with a bit of its own in the numbers.
    const LEVELS: u32 = 0;

    /// Processes a new flow of service `number` ([`ServiceSpec::between`](crate::ServiceSpec::between)).
    /// `false`: it is refused, and the client's connection is reset.
    fn begun(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool {
        let _ = (now, label, number, tuple);
        false
    }

    /// Examines bytes of a stream, the first of which has position `at` in it. Bytes that did not pass, or
    /// had no room at the other end, are examined again.
    fn examine<'a>(
        &mut self,
        label: FlowLabel,
        towards: Towards,
        at: u64,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Examined {
        let _ = (label, towards, at);
        Examined { pass: bytes.map(<[u8]>::len).sum(), malformed: false }
    }

    /// Returns whether a stream may end after the bytes that were examined. If not, both ends are reset.
    fn may_end(&mut self, label: FlowLabel, towards: Towards) -> bool {
        let _ = (label, towards);
        true
    }

    /// Releases the state of a flow that has ended. Called once for each flow for which
    /// [`begun`](Self::begun) returned true.
    fn ended(&mut self, label: FlowLabel) {
        let _ = label;
    }
}

/// The service of a flow whose bytes are examined.
#[derive(Debug)]
pub(crate) struct Passage<'a, B> {
    between: &'a mut B,
    label: FlowLabel,
    /// Number of the application's bytes that precede those to be passed on next.
    from_application: u64,
    /// The protocol was violated: the caller resets both ends.
    pub(crate) malformed: bool,
}

impl<'a, B: Between> Passage<'a, B> {
    /// Creates the service of the flow `label`, for which `from_application` bytes of the application were
    /// passed on before.
    pub(crate) fn new(between: &'a mut B, label: FlowLabel, from_application: u64) -> Self {
        Passage { between, label, from_application, malformed: false }
    }
}

impl<B: Between> Service for Passage<'_, B> {
    fn pass_to_application(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> Progress {
        let mut moved = false;
        loop {
            let want = DATA_MAX.min(application.room());
            if want == 0 || client.readable() == 0 {
                break;
            }
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            let mut count = 0;
            for (part, slice) in parts.iter_mut().zip(client.peek(want)) {
                *part = slice;
                count += 1;
            }
            let (at, bytes) = (application.bytes_sent(), parts[..count].iter().copied());
            let Examined { pass, malformed } =
                self.between.examine(self.label, Towards::Application, at, bytes);
            let (count, len) = cut(&mut parts[..count], pass);
            if len > 0 {
                if let Err(error) = application.send(&parts[..count], len) {
                    return Progress { moved, blocked: error == Blocked::NoCredit };
                }
                client.consume(len);
                moved = true;
            }
            if malformed {
                self.malformed = true;
                return Progress { moved, blocked: false };
            }
            if len == 0 {
                break;
            }
        }
        if client.is_finished() && client.readable() == 0 {
            match self.between.may_end(self.label, Towards::Application) {
                true => moved |= application.finish(),
                false => self.malformed = true,
            }
        }
        Progress { moved, blocked: false }
    }

    fn pass_to_client(
        &mut self,
        client: &mut impl ClientEnd,
        bytes: &[u8],
        buffer: Option<&Buffer>,
    ) -> Passed {
        let (at, whole) = (self.from_application, std::iter::once(bytes));
        let Examined { pass, malformed } = self.between.examine(self.label, Towards::Client, at, whole);
        // The bytes are in the memory of a message that is not kept: either all of them pass, or the flow
        // ends.
        self.malformed = malformed || pass < bytes.len();
        Relay.pass_to_client(client, bytes.get(..pass).unwrap_or(bytes), buffer)
    }

    fn return_room(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> bool {
        Relay.return_room(client, application)
    }
}

/// Cuts slices to `most` bytes in total. Returns the number of non-empty slices, and of their bytes.
fn cut(parts: &mut [&[u8]], most: usize) -> (usize, usize) {
    let (mut count, mut len) = (0, 0);
    for part in parts.iter_mut().take_while(|part| !part.is_empty()) {
        if len == most {
            break;
        }
        *part = &part[..part.len().min(most - len)];
        (count, len) = (count + 1, len + part.len());
    }
    (count, len)
}

//! Services: what stands between the two ends of a flow.
//!
//! ```text
//!  client's end                      service                    application's end
//!  [TcpEnd] or ── bytes, end ──────▶ ┌───────┐ ── DATA, SHUTDOWN ───▶ channel of a process
//!  [LoopEnd]  ◀─ bytes, end, reset ─ │ Relay │ ◀─ DATA, CREDIT ──────
//!                                    └───────┘
//! ```
//! A service sees ordered bytes, room, the end of the stream and the time, and never packets, sequence numbers or messages of
//! other flows. The pump calls it when something has changed at either end; it returns when nothing more can move. It keeps
//! no reference to either end.
//!
//! [`Relay`] is the service of every flow today. All calls are static: [`Service`] and [`ClientEnd`] are instantiated for
//! each pair of a service and a kind of client, so that the relay costs a segment what it cost without them.
//!
//! **Adding a service.** `http`, `tls` and `messages` will live in the crate `proxy-node/services`, which depends on this
//! one and implements [`Service`] for a type of each; what a service keeps of one flow lies in that type. The kind is a
//! property of the policy's service (`ServiceSpec`), a field of [`Flow`] beside `stage`, and one `match` where
//! the pump calls the relay: `ProxyCore` then gets a type parameter for the set of services, an enum that the worker
//! names, with the relay as the variant that the core has itself. A service that reads before it chooses a pool member
//! postpones `Dispatcher::dispatch`, which `client_connected` calls at once for
//! the relay: until then bytes wait in the client's end under its own flow control.

mod relay;
mod tcp_end;

use csp_tcp::Buffer;
use csp_types::limits::CHANNEL_MESSAGE_LEN_MAX;
use csp_types::{Instant, TraceKind};
use csp_wire::channel::{CREDIT_WIDER, MESSAGE_HEADER_LEN, MessageHeader, MessageKind};

use super::flow::Flow;
use super::output::Blocked;
use super::recorder::Recorder;
use super::{ProxyOutput, reason};

pub use super::hairpin::LoopEnd;
pub use relay::Relay;
pub use tcp_end::TcpEnd;

/// Largest DATA payload in bytes: one channel message with its headers fits a VI message.
pub const DATA_MAX: usize = CHANNEL_MESSAGE_LEN_MAX - csp_wire::link::HEADER_LEN - MESSAGE_HEADER_LEN - 8;

/// What a service does with the bytes of one flow.
pub trait Service {
    /// Moves bytes and the end of the stream from the client's end to the application's, as far as both allow.
    fn pass_to_application(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> Progress;

    /// Takes bytes that the application sent within its window; they lie in `buffer` of the TCP engine where there is
    /// one. `false`: some of them are lost, and the flow must be reset.
    fn pass_to_client(&mut self, client: &mut impl ClientEnd, bytes: &[u8], buffer: Option<&Buffer>) -> bool;

    /// Advertises room to the application for bytes that are on their way no longer. Returns whether it did: the
    /// application then uses its whole window, and a wider one may serve it better.
    fn return_room(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> bool;
}

/// How far a service got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Something moved.
    pub moved: bool,
    /// More could move once the application's lane has descriptors.
    pub blocked: bool,
}

/// The client's end of a flow: a byte stream each way.
pub trait ClientEnd {
    /// Bytes that can be read now.
    fn readable(&self) -> usize;

    /// Up to `max` readable bytes, slice by slice in order, where they lie.
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]>;

    /// Takes the first `len` readable bytes; the client may send as many more.
    fn consume(&mut self, len: usize);

    /// Whether the client has finished: no byte follows those that are readable.
    fn is_finished(&self) -> bool;

    /// Writes bytes, which lie in `buffer` where there is one; returns how many were taken. All of them are, within the
    /// window that was last [set](Self::set_window).
    fn write(&mut self, bytes: &[u8], buffer: Option<&Buffer>) -> usize;

    /// Bytes written that the client has not acknowledged.
    fn unacknowledged(&self) -> u32;

    /// The window in bytes that the way to the client can make use of.
    fn useful_window(&self) -> u32;

    /// Keeps up to `window` unacknowledged bytes from now on.
    fn set_window(&mut self, window: u32);

    /// Whether the connection has ended, so that bytes written to it are of no use.
    fn is_over(&self) -> bool;
}

/// The application's end of a flow: its stream on a channel, under the process' byte credit and the lane's descriptors.
#[derive(Debug)]
pub struct ApplicationEnd<'a, O> {
    pub(super) now: Instant,
    pub(super) flow: &'a mut Flow,
    pub(super) recorder: &'a mut Recorder,
    pub(super) out: &'a mut O,
}

impl<O: ProxyOutput> ApplicationEnd<'_, O> {
    /// Bytes that the process has room for.
    pub fn room(&self) -> usize {
        self.flow.to_app_credit as usize
    }

    /// Sends `len` bytes, gathered from `parts`, in one message: no more than [`room`](Self::room) and [`DATA_MAX`].
    pub fn send(&mut self, parts: &[&[u8]], len: usize) -> Result<(), Blocked> {
        let header = MessageHeader::of_flow(MessageKind::Data, self.flow.label, 0, len as u32);
        self.out.channel(self.now, self.flow.lane, header, parts)?;
        self.flow.to_app_credit = self.flow.to_app_credit.saturating_sub(len as u32);
        self.flow.bytes_to_app += len as u64;
        self.recorder.counters.app_bytes_out += len as u64;
        self.recorder.record(self.now, self.flow.label, TraceKind::DataSent, len as u32);
        Ok(())
    }

    /// Ends the stream to the process; `false` where it has ended already.
    pub fn finish(&mut self) -> bool {
        if std::mem::replace(&mut self.flow.shutdown_sent, true) {
            return false;
        }
        self.control(MessageKind::Shutdown, 0, 0);
        self.recorder.record(self.now, self.flow.label, TraceKind::ShutdownSent, 0);
        true
    }

    /// Whether the process has ended its stream.
    pub fn is_finished(&self) -> bool {
        self.flow.app_finished
    }

    /// The window of the process, and how many bytes of it are in use.
    pub fn window(&self) -> (u32, u32) {
        (self.flow.from_app_window, self.flow.from_app_outstanding)
    }

    /// Advertises `len` bytes of its window as free again.
    pub fn return_room(&mut self, len: u32) {
        self.flow.from_app_outstanding = self.flow.from_app_outstanding.saturating_sub(len);
        self.control(MessageKind::Credit, 0, len);
    }

    /// Widens its window.
    pub(super) fn widen(&mut self, window: u32) {
        let more = window.saturating_sub(self.flow.from_app_window);
        self.flow.from_app_window = window;
        self.control(MessageKind::Credit, CREDIT_WIDER, more);
    }

    /// Counts `len` bytes that the process sent; `false` where its window does not allow them.
    pub(super) fn received(&mut self, len: u32) -> bool {
        if len > self.flow.from_app_window - self.flow.from_app_outstanding || self.flow.app_finished {
            return false;
        }
        self.flow.from_app_outstanding += len;
        self.flow.bytes_from_app += u64::from(len);
        self.recorder.counters.app_bytes_in += u64::from(len);
        self.recorder.record(self.now, self.flow.label, TraceKind::DataReceived, len);
        true
    }

    /// Reports to the process that bytes of it were lost for want of memory.
    pub(super) fn report_loss(&mut self) {
        self.recorder.counters.drop_no_budget += 1;
        self.control(MessageKind::Reset, 0, reason::NO_BUFFERS);
    }

    fn control(&mut self, kind: MessageKind, flags: u8, argument: u32) {
        let header = MessageHeader::of_flow(kind, self.flow.label, argument, 0);
        let header = MessageHeader { flags, ..header };
        // The loss of a lane is reported separately, and ends the flow.
        let _ = self.out.channel(self.now, self.flow.lane, header, &[]);
    }
}

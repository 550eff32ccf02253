//! Services: the logic between the two ends of a flow.
//!
//! ```text
//!  client's end                      service                    application's end
//!  [TcpEnd],   ── bytes, end ──────▶ ┌───────┐ ── DATA, SHUTDOWN ───▶ channel of a process
//!  [TlsEnd] or ◀─ bytes, end, reset ─ │ Relay │ ◀─ DATA, CREDIT ──────
//!  [LoopEnd]                          └───────┘
//! ```
//! A service processes ordered bytes, room, the end of the stream and the time, but no packets, sequence
//! numbers or messages of other flows. The pump calls it when something has changed at either end; it returns
//! when nothing more can move. It keeps no reference to either end.
//!
//! [`Relay`] is the service of every flow between a client and a process. All calls are static: [`Service`]
//! and [`ClientEnd`] are instantiated for each pair of a service and a type of client's end, so that the
//! abstraction costs nothing per segment.
//!
//! A service that is an end itself ([`local`]) has no application's end. `ProxyCore` has a type parameter for
//! the set of local services, which the worker names; [`ServiceSpec::local`](crate::ServiceSpec::local) binds
//! an address to one of them. [`both::Both`] places two of them beside each other.
//!
//! A service between both ends that examines bytes and passes them on unchanged ([`between`]) is named by
//! [`ServiceSpec::between`](crate::ServiceSpec::between) and [`Flow::between`]; its state of a flow is the
//! worker's.
//!
//! **Which seam a new service needs.** A [`Service`] has one application for life, no timer, and no say at
//! the application's end: it fits what passes bytes on, possibly examined. A protocol of which one client's
//! connection carries requests for several members, such as HTTP, ends streams and is therefore a *local*
//! service: it has timers, is called for either side, and opens connections to members itself ([`upstream`]),
//! between which and its clients it moves bytes, those of a process without copying them. It stands beside
//! the others in a [`both::Both`].

pub mod between;
pub mod both;
pub mod local;
mod relay;
mod tcp_end;
mod tls_end;
pub mod upstream;

use std::sync::Arc;

use csp_tcp::Buffer;
use csp_tls::ClientIdentity;
use csp_types::limits::CHANNEL_MESSAGE_LEN_MAX;
use csp_types::{Instant, TraceKind};
use csp_wire::channel::{CREDIT_WIDER, MESSAGE_HEADER_LEN, MessageHeader, MessageKind};

use super::flow::{Flow, Stage};
use super::output::Blocked;
use super::recorder::Recorder;
use super::{ProxyOutput, reason};

pub use super::hairpin::LoopEnd;
pub use relay::Relay;
pub use tcp_end::TcpEnd;
pub use tls_end::TlsEnd;

/// Largest DATA payload in bytes: one channel message with its headers fits a VI message.
pub const DATA_MAX: usize = CHANNEL_MESSAGE_LEN_MAX - csp_wire::link::HEADER_LEN - MESSAGE_HEADER_LEN - 8;

/// Largest number of slices of one DATA message; more slices take several messages.
pub(crate) const PARTS_MAX: usize = 12;

/// Logic between the two ends of a flow.
pub trait Service {
    /// Moves bytes and the end of the stream from the client's end to the application's, as far as both
    /// permit.
    fn pass_to_application(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> Progress;

    /// Passes on bytes that the application sent within its window. They are in `buffer` of the TCP engine if
    /// one is given.
    fn pass_to_client(
        &mut self,
        client: &mut impl ClientEnd,
        bytes: &[u8],
        buffer: Option<&Buffer>,
    ) -> Passed;

    /// Advertises to the application the room of bytes that are no longer in flight. Returns whether it did:
    /// the application then uses its whole window, and may benefit from a larger one.
    fn return_room(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> bool;
}

/// Outcome of passing on an application's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// The client's end has accepted all of them.
    All,
    /// The client's connection has ended.
    Over,
    /// Some of them are lost: the caller must reset the flow.
    Lost,
}

/// Outcome of one call of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Something was moved.
    pub moved: bool,
    /// More could be moved if the application's lane had descriptors.
    pub blocked: bool,
}

/// The client's end of a flow: a byte stream each way.
pub trait ClientEnd {
    /// Returns the number of readable bytes.
    fn readable(&self) -> usize;

    /// Returns up to `max` readable bytes without copying, slice by slice in order.
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]>;

    /// Removes the first `len` readable bytes. The client may send as many more.
    fn consume(&mut self, len: usize);

    /// Returns whether the client has finished: no bytes follow the readable ones.
    fn is_finished(&self) -> bool;

    /// Returns the application protocol that the client's TLS handshake has chosen (RFC 7301), if any.
    fn protocol(&self) -> Option<&[u8]> {
        None
    }

    /// Returns whom the certificate of the client's TLS handshake names, if it has sent one.
    fn identity(&self) -> Option<&Arc<ClientIdentity>> {
        None
    }

    /// Writes bytes, which are in `buffer` if one is given; returns the number accepted. All are accepted
    /// within the window that was last [set](Self::set_window).
    fn write(&mut self, bytes: &[u8], buffer: Option<&Buffer>) -> usize;

    /// Lends memory for bytes that are written to several connections, each of which then refers to that
    /// memory. `None` if no memory is free, or the connection cannot refer to lent memory. The borrower
    /// [gives the memory back](Self::give_back), or
    /// [`LocalServices::take_lent`](local::LocalServices::take_lent) returns it.
    fn lend(&mut self) -> Option<Buffer> {
        None
    }

    /// Returns memory that a connection has lent. If this connection lends none, the buffer is returned.
    fn give_back(&mut self, buffer: Buffer) -> Option<Buffer> {
        Some(buffer)
    }

    /// Returns the number of bytes that [`write`](Self::write) accepts at this moment.
    fn room(&self) -> usize;

    /// Returns the number of written bytes that the client has not acknowledged.
    fn unacknowledged(&self) -> u32;

    /// Returns the window in bytes that the path to the client can use.
    fn useful_window(&self) -> u32;

    /// Sets how many unacknowledged bytes the end accepts.
    fn set_window(&mut self, window: u32);

    /// Returns whether the connection has ended, so that writing to it is useless.
    fn is_over(&self) -> bool;

    /// Returns the number of written bytes that were never sent to the client.
    fn unsent(&self) -> usize {
        0
    }

    /// Requests that the service be called again after the client's next acknowledgement, although there is
    /// room.
    fn call_again(&mut self) {}

    /// Returns whether the client is a process of the cluster, which does not use an output link.
    fn is_local(&self) -> bool {
        false
    }
}

/// The application's end of a flow: its stream on a channel, under the process' byte credit and the lane's
/// descriptors.
#[derive(Debug)]
pub struct ApplicationEnd<'a, O> {
    pub(super) now: Instant,
    pub(super) flow: &'a mut Flow,
    pub(super) recorder: &'a mut Recorder,
    pub(super) out: &'a mut O,
}

impl<O: ProxyOutput> ApplicationEnd<'_, O> {
    /// Returns the number of bytes that the process has room for.
    pub fn room(&self) -> usize {
        self.flow.to_app_credit as usize
    }

    /// Sends `len` bytes, gathered from `parts`, in one message. `len` is at most [`room`](Self::room) and
    /// [`DATA_MAX`].
    pub fn send(&mut self, parts: &[&[u8]], len: usize) -> Result<(), Blocked> {
        let header = MessageHeader::of_flow(MessageKind::Data, self.flow.label, 0, len as u32);
        self.out.channel(self.now, self.flow.lane, header, parts)?;
        self.flow.to_app_credit = self.flow.to_app_credit.saturating_sub(len as u32);
        self.flow.bytes_to_app += len as u64;
        self.recorder.services.received(self.flow.counted, len as u64);
        self.recorder.counters.app_bytes_out += len as u64;
        self.recorder.record(self.now, self.flow.label, TraceKind::DataSent, len as u32);
        Ok(())
    }

    /// Returns the number of bytes sent so far.
    pub(super) fn bytes_sent(&self) -> u64 {
        self.flow.bytes_to_app
    }

    /// Ends the stream to the process; `false` if it has ended already.
    pub fn finish(&mut self) -> bool {
        if std::mem::replace(&mut self.flow.shutdown_sent, true) {
            return false;
        }
        self.control(MessageKind::Shutdown, 0, 0);
        self.recorder.record(self.now, self.flow.label, TraceKind::ShutdownSent, 0);
        true
    }

    /// Returns whether the process has ended its stream.
    pub fn is_finished(&self) -> bool {
        self.flow.app_finished
    }

    /// Returns whether the process may send.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.flow.stage, Stage::Open(_)) && !self.flow.app_finished
    }

    /// Returns the window of the process, and how many bytes of it are in use.
    pub fn window(&self) -> (u32, u32) {
        (self.flow.from_app_window, self.flow.from_app_outstanding)
    }

    /// Advertises `len` bytes of the process's window as free again.
    pub fn return_room(&mut self, len: u32) {
        self.flow.from_app_outstanding = self.flow.from_app_outstanding.saturating_sub(len);
        self.control(MessageKind::Credit, 0, len);
    }

    /// Widens the process's window.
    pub(super) fn widen(&mut self, window: u32) {
        let more = window.saturating_sub(self.flow.from_app_window);
        self.flow.from_app_window = window;
        self.control(MessageKind::Credit, CREDIT_WIDER, more);
    }

    /// Counts `len` bytes that the process sent; `false` if they exceed its window.
    pub(super) fn received(&mut self, len: u32) -> bool {
        if len > self.flow.from_app_window - self.flow.from_app_outstanding || self.flow.app_finished {
            return false;
        }
        if self.flow.bytes_from_app == 0 {
            self.recorder.first_byte(self.now, self.flow);
        }
        self.recorder.services.sent(self.flow.counted, len.into());
        self.flow.from_app_outstanding += len;
        self.flow.bytes_from_app += u64::from(len);
        self.recorder.counters.app_bytes_in += u64::from(len);
        self.recorder.record(self.now, self.flow.label, TraceKind::DataReceived, len);
        true
    }

    /// Reports to the process that some of its bytes were lost for lack of memory.
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

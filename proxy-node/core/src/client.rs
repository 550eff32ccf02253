//! Operations on the client's end of a flow other than reading and writing bytes, and the events of that end.
//!
//! ```text
//!  parts ── shutdown, close, reset, abort ──▶ ┌────────┐ ──▶ TCP engine
//!        ── unread, queued, activity? ──────▶ │ client │ ──▶ other flow of a hairpin
//!        ◀── events ───────────────────────── └────────┘ ──▶ local service (upstream connections)
//!                                                   ▲
//!                                                   └─────── TCP engine
//! ```
//! Bytes and room pass [`ClientEnd`](crate::service::ClientEnd). No other part ends a connection at the
//! engine or processes the engine's events: TLS, which ends and reports in its own way, stands here
//! ([`tls`](crate::tls)).

use csp_tcp::{Event, FailReason, Stack};
use csp_types::{FlowLabel, FourTuple, Instant};

use super::connection_log::End;
use super::context::{Context, Turn};
use super::flow::{Joint, Stage};
use super::service::local::LocalServices;
use super::service::upstream::Ended;
use super::{ProxyOutput, reason};

/// A change at the client's end of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientEvent {
    /// A client has connected to this service.
    Connected { service: u32, tuple: FourTuple },
    /// A connection that an application opens is established.
    Opened,
    /// Bytes have arrived, room has become free, or the client's stream has ended.
    Changed,
    /// Both directions are finished and acknowledged. The end no longer exists.
    Closed,
    /// The connection has failed while bytes are unread; with the reason, a code of [`reason`].
    Broken(u32),
    /// The connection has failed, and all bytes were read. The end no longer exists.
    Failed(u32),
    /// The reset that followed the written bytes was sent. The end no longer exists.
    Reset,
}

/// Activity of a client so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Activity {
    /// When its last segment arrived.
    pub(crate) last: Instant,
    /// Whether it has sent data, or the end of its stream.
    pub(crate) spoke: bool,
}

/// Returns the activity of a connection's client; `None` for a hairpin, whose client is a process.
pub(crate) fn activity(tcp: &Stack, label: FlowLabel) -> Option<Activity> {
    Some(Activity { last: tcp.last_received(label)?, spoke: tcp.has_received(label) })
}

/// Returns the time since when a client has acknowledged none of the data sent to it.
pub(crate) fn unacknowledged_since(tcp: &Stack, label: FlowLabel) -> Option<Instant> {
    tcp.unacknowledged_since(label)
}

/// Returns the reason code for processes.
fn code(why: FailReason) -> u32 {
    match why {
        FailReason::Reset | FailReason::DataAfterClose => reason::CONNECTION_RESET,
        FailReason::Refused => reason::CONNECTION_REFUSED,
        FailReason::TimedOut => reason::TIMED_OUT,
    }
}

impl<O> Context<'_, O> {
    /// Returns the next change at a client's end.
    pub(crate) fn next_client_event(&mut self) -> Option<(FlowLabel, ClientEvent)> {
        let (label, event) = self.tcp.poll_event()?;
        let event = match event {
            Event::Established { passive: true, service, tuple } => ClientEvent::Connected { service, tuple },
            Event::Established { passive: false, .. } => ClientEvent::Opened,
            Event::Readable | Event::Writable => ClientEvent::Changed,
            Event::PeerFinished => {
                if self.tls.peer_finished(label) {
                    // The session says whether the stream has ended, or was cut off.
                } else {
                    self.stream_ended(label);
                }
                ClientEvent::Changed
            }
            Event::Closed => ClientEvent::Closed,
            Event::Reset => ClientEvent::Reset,
            Event::Broken(why) | Event::Failed(why) if why == FailReason::DataAfterClose => {
                // What the client sent after its server had closed has no reader, which is no fault of the
                // server's; what it had sent before and was not read is noted when the server closes.
                self.flows.ends(label, End::ClosedByServer);
                match event {
                    Event::Broken(_) => ClientEvent::Broken(code(why)),
                    _ => ClientEvent::Failed(code(why)),
                }
            }
            Event::Broken(why) => ClientEvent::Broken(code(why)),
            Event::Failed(why) => ClientEvent::Failed(code(why)),
        };
        Some((label, event))
    }

    /// Notes that the stream from the other end of a connection has ended: nothing follows what is readable.
    pub(crate) fn stream_ended(&mut self, label: FlowLabel) {
        let Some(flow) = self.flows.get_mut(label) else { return };
        flow.client_finished = true;
        match flow.stage {
            Stage::Joined(Joint { peer, member: None }) => self.flows.ends(peer, End::ClosedByServer),
            Stage::Behind(upstream) => self.flows.server_finished(upstream),
            _ => flow.ends(End::ClosedByClient),
        }
    }

    /// Ends the client's connection at once and discards all bytes. The end no longer exists, and no event
    /// follows.
    pub(crate) fn abort_client(&mut self, label: FlowLabel) {
        self.tcp.abort(self.now, label);
    }

    /// Returns the number of the client's bytes that are unread.
    pub(crate) fn unread(&self, label: FlowLabel) -> usize {
        self.tcp.readable(label) + self.tls.held(label).0
    }

    /// Returns the reason code of a connection that has failed while bytes of it are unread.
    pub(crate) fn client_failure(&self, label: FlowLabel) -> u32 {
        self.tcp.failure(label).map_or(reason::CONNECTION_RESET, code)
    }

    /// Returns the number of written bytes that the client has not acknowledged.
    pub(crate) fn queued_to_client(&self, label: FlowLabel) -> u32 {
        let pending = self.tls.held(label).1 as u32;
        self.tcp.info(label).map_or(0, |info| info.send_queue as u32).saturating_add(pending)
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Ends the stream to the client after the written bytes. The client can continue to send.
    pub(super) fn shutdown_client(&mut self, label: FlowLabel) {
        match self.cx.flows.is_inner(label) {
            false => self.cx.shutdown_stream(label),
            true if self.cx.hairpin.is_of(label) => self.finish_hairpin(label),
            true => self.upstream_finished(label),
        }
    }

    /// Closes the client's end: written bytes are delivered, then the end of the stream. What the client has
    /// sent and was not read, or sends later, resets the connection.
    pub(super) fn close_client(&mut self, label: FlowLabel) {
        if self.cx.hairpin.is_of(label) {
            return self.close_hairpin(label);
        }
        if self.cx.upstreams.is_of(label) {
            return self.upstream_ended(label, Ended::Closed);
        }
        self.cx.close_stream(label);
        self.leave_to_engine(label);
    }

    /// Resets the client's end after the written bytes, and ends the flow by then.
    pub(super) fn reset_after_written(&mut self, label: FlowLabel) {
        if self.cx.upstreams.is_of(label) {
            return self.upstream_ended(label, Ended::Reset);
        }
        if let Some(peer) = self.cx.hairpin.peer(label) {
            self.reset_peer(peer);
        } else if self.cx.reset_stream(label) {
            // A session has its reset sent later, and what has ended waits for no server.
            self.dispatcher.leave_backlog(self.cx.flows, self.cx.tcp, label);
            return self.leave_to_engine(label);
        }
        self.remove_flow(label);
    }
}

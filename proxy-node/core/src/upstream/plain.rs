//! Upstream connections to plain servers.
//!
//! ```text
//!  local service ◀── bytes, end, reset ──▶ upstream connection ◀──▶ connection of the TCP engine ◀──▶ server
//!                                          its label: inner         its label: the engine's
//!                                          Calling, Joined          Called, Behind
//! ```
//! The service knows the label of the upstream connection alone, from its request to its end; the engine's
//! connection may be opened several times, to one server after the other, before one is established. What the
//! server sends stays in the engine's memory for received bytes until the service reads or splices it, so
//! that the engine's window closes. What the service writes is copied into the send queue of the engine's
//! connection, whose capacity is a window of the send budget.

use std::net::SocketAddr;

use csp_tcp::Stack;
use csp_types::{FlowLabel, Instant};
use csp_wire::proxy_protocol::{HeaderBytes, ProxyHeader};

use super::ends::ChannelEnd;
use super::loops::{pass_from_loop, pass_to_loop};
use super::{End, ServiceEnds};
use crate::ProxyOutput;
use crate::context::{Context, Turn};
use crate::dispatch::pool::{MemberId, ServerId};
use crate::flow::{FlowTable, Joint, Stage};
use crate::reason;
use crate::recorder::Recorder;
use crate::servers::{pass_plaintext, pass_to_session};
use crate::service::local::LocalServices;
use crate::service::upstream::{Ended, OpenError, UpstreamEnd};
use crate::service::{TcpEnd, TlsEnd};
use crate::tls::Sessions;

impl End {
    /// Returns the header of the PROXY protocol of a connection for this client. A client of another family
    /// than the address it has connected to, or none, cannot be named.
    pub(crate) fn header(&self, header: ProxyHeader, client: SocketAddr) -> HeaderBytes {
        match self.front.filter(|front| client.is_ipv4() == front.is_ipv4()) {
            Some(front) => header.bytes(client, front),
            None => header.local(),
        }
    }
}

impl FlowTable {
    /// Returns the engine's connection of an upstream connection, if its server is a plain one.
    pub(super) fn server_of(&self, upstream: FlowLabel) -> Option<FlowLabel> {
        match self.get(upstream)?.stage {
            Stage::Joined(Joint { peer, .. }) => Some(peer),
            _ => None,
        }
    }

    /// Counts bytes that passed between a service and a plain server.
    fn passed(&mut self, (upstream, server): (FlowLabel, FlowLabel), sent: usize, received: usize) {
        if let Some(flow) = self.get_mut(upstream) {
            flow.bytes_to_app += sent as u64;
            flow.bytes_from_app += received as u64;
        }
        if let Some(flow) = self.get_mut(server) {
            flow.bytes_from_app += sent as u64;
            flow.bytes_to_app += received as u64;
        }
    }
}

impl<O> Context<'_, O> {
    /// Returns the engine's connection of an upstream connection, if its server is a plain one.
    pub(super) fn server_of(&self, upstream: FlowLabel) -> Option<FlowLabel> {
        self.flows.server_of(upstream)
    }

    /// Returns the number of bytes of a server that its service has not read.
    pub(super) fn unread_of_server(&self, upstream: FlowLabel) -> usize {
        let held = self.upstreams.get(upstream).map_or(0, |end| end.held.len());
        held + self.server_of(upstream).map_or(0, |server| match self.tls.has(server) {
            false => self.tcp.readable(server),
            true => self.tls.held(server).0,
        })
    }

    /// Ends the stream to a plain server after the written bytes.
    pub(super) fn finish_server(&mut self, upstream: FlowLabel, server: FlowLabel) {
        if let Some(flow) = self.flows.get_mut(upstream)
            && !std::mem::replace(&mut flow.shutdown_sent, true)
        {
            self.shutdown_stream(server);
        }
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Processes the establishment of the connection to a plain server.
    pub(crate) fn upstream_called(&mut self, label: FlowLabel, server: FlowLabel, member: MemberId) {
        let now = self.cx.now;
        let joint = Joint { peer: server, member: Some(member) };
        if let Some(flow) = self.cx.flows.set_stage(now, label, Stage::Joined(joint)) {
            // The engine has the bytes of both directions.
            self.pump.application_closed(flow, 0);
        }
        self.cx.flows.set_stage(now, server, Stage::Behind(label));
        self.upstream_opened(label, member);
        self.pump.enqueue(self.cx.flows, label);
    }

    /// Ends a request for which no connection to a plain server could be established; the last one tried was
    /// `server`, which failed for the reason with this code.
    pub(crate) fn upstream_uncalled(&mut self, label: FlowLabel, server: Option<ServerId>, code: u32) {
        let error = match (code, server) {
            (reason::NO_BUFFERS, _) => OpenError::NoRoom,
            (_, Some(server)) => OpenError::Refused(server),
            (_, None) => OpenError::NoServer,
        };
        self.fail_open(label, error);
    }

    /// Processes the failure of a plain server's connection while bytes are unread. The service can still
    /// read them.
    pub(crate) fn server_broken(&mut self, server: FlowLabel) {
        if let Some(Stage::Behind(upstream)) = self.cx.flows.get(server).map(|flow| flow.stage) {
            self.set_ended(upstream, Ended::Reset);
        }
    }

    /// Closes the connection to a plain server, which the service has read and finished with: what it has
    /// written is delivered. What the server sends from now on resets the connection.
    pub(super) fn close_server(&mut self, label: FlowLabel, server: FlowLabel) {
        self.cx.close_stream(server);
        self.leave_server(label, server);
        self.count_end(Ended::ByService);
        self.remove_flow(label);
    }

    /// Parts an upstream connection from the engine's connection, which the engine ends by itself.
    pub(super) fn leave_server(&mut self, label: FlowLabel, server: FlowLabel) {
        if let Some(plain) = self.cx.flows.get(label).and_then(|flow| flow.plain()) {
            self.dispatcher.release_plain(plain);
        }
        self.cx.flows.set_stage(self.cx.now, label, Stage::Finishing);
        self.leave_to_engine(server);
    }
}

impl<O: ProxyOutput> ServiceEnds<'_, '_, O> {
    /// Returns the end of an upstream connection that the service uses.
    pub(super) fn upstream_end(&mut self, label: FlowLabel) -> Option<AnyUpstream<'_, O>> {
        let Some(server) = self.cx.server_of(label) else {
            return self.channel_end(label).map(AnyUpstream::Channel);
        };
        self.cx.upstreams.get(label).filter(|end| end.is_served())?;
        self.widen_server(server);
        let Context { now, flows, tcp, tls, upstreams, recorder, .. } = &mut *self.cx;
        let end = upstreams.get_mut(label)?;
        let secured = tls.has(server);
        Some(AnyUpstream::Plain(PlainEnd {
            now: *now,
            label,
            server,
            secured,
            end,
            flows,
            tcp,
            tls,
            recorder,
        }))
    }

    /// Widens the send window of a plain server's connection if most of it is used.
    fn widen_server(&mut self, server: FlowLabel) {
        let (now, tcp, tls) = (self.cx.now, &mut *self.cx.tcp, &mut *self.cx.tls);
        let Some(flow) = self.cx.flows.get_mut(server) else { return };
        if flow.secured {
            return self.pump.widen(&mut TlsEnd { now, label: server, tcp, tls }, flow);
        }
        if tcp.writable(server) < flow.from_app_window as usize / 4 {
            self.pump.widen(&mut TcpEnd { now, label: server, finished: false, tcp }, flow);
        }
    }

    /// Moves up to `max` bytes between a client's end and a plain server, either of which is `from`. Returns
    /// the number moved. They are copied once.
    pub(super) fn pass_plain(
        &mut self,
        (from, to): (FlowLabel, FlowLabel),
        (upstream, server): (FlowLabel, FlowLabel),
        max: usize,
    ) -> usize {
        self.widen_server(server);
        let is_sent = upstream == to;
        let (from, to) = if is_sent { (from, server) } else { (server, to) };
        let cx = &mut *self.cx;
        let moved = if cx.hairpin.is_of(from) {
            pass_from_loop(cx, from, to, max)
        } else if cx.hairpin.is_of(to) {
            pass_to_loop(cx, from, to, max)
        } else {
            match (cx.tls.has(from), cx.tls.has(to)) {
                (false, false) => cx.tcp.pass(cx.now, from, to, max),
                (true, false) => pass_plaintext(cx, from, to, max),
                (false, true) => pass_to_session(cx, from, to, max),
                (true, true) => cx.tls.pass((cx.tcp, cx.now), from, to, max),
            }
        };
        if moved == 0 {
            return 0;
        }
        let (sent, received) = if is_sent { (moved, 0) } else { (0, moved) };
        cx.flows.passed((upstream, server), sent, received);
        cx.recorder.counters.joined_bytes += moved as u64;
        if is_sent && cx.tls.has(from) {
            self.pump.enqueue(cx.flows, from); // its session may have ended
        } else if cx.tls.has(from) {
            cx.tls.settle_later(from);
        }
        moved
    }
}

/// The service's end of an upstream connection to a plain server.
pub(super) struct PlainEnd<'a> {
    now: Instant,
    label: FlowLabel,
    /// The engine's connection, and whether it has a session of TLS.
    server: FlowLabel,
    secured: bool,
    end: &'a mut End,
    flows: &'a mut FlowTable,
    tcp: &'a mut Stack,
    tls: &'a mut Sessions,
    recorder: &'a mut Recorder,
}

impl PlainEnd<'_> {
    fn readable(&self) -> usize {
        match self.secured {
            false => self.tcp.readable(self.server),
            true => self.tls.held(self.server).0,
        }
    }

    /// Those of one record, if there is a session.
    fn slices(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        let of_engine = (!self.secured).then(|| self.tcp.peek(self.server, max));
        let session = self.tls.get(self.server).filter(|_| self.secured).map(|secured| &secured.session);
        let plaintext = session.map(|session| session.plaintext()).filter(|bytes| !bytes.is_empty());
        let of_session = plaintext.map(|bytes| &bytes[..bytes.len().min(max)]);
        of_engine.into_iter().flatten().chain(of_session)
    }

    fn passed(&mut self, sent: usize, received: usize) {
        self.flows.passed((self.label, self.server), sent, received);
        self.recorder.counters.joined_bytes += (sent + received) as u64;
    }

    fn consume(&mut self, len: usize) {
        let taken = match self.tls.get_mut(self.server).filter(|_| self.secured) {
            None => self.tcp.consume(self.now, self.server, len),
            Some(secured) => {
                let taken = len.min(secured.session.readable());
                secured.session.consume(taken);
                secured.advance(self.tcp, self.now);
                taken
            }
        };
        if self.secured && taken > 0 {
            self.tls.settle_later(self.server);
        }
        self.passed(0, taken);
    }

    fn is_finished(&self) -> bool {
        let has_closed = || self.tls.get(self.server).is_some_and(|of| of.session.is_closed_by_peer());
        self.end.ended.is_some()
            || self.flows.get(self.label).is_none_or(|flow| flow.app_finished)
            || self.secured && has_closed()
    }

    fn room(&self) -> usize {
        match self.secured {
            false => self.tcp.writable(self.server),
            true => self.tls.room(self.tcp, self.server),
        }
    }

    fn write(&mut self, parts: &[&[u8]]) -> usize {
        if self.secured {
            return self.write_plaintext(parts);
        }
        let mut written = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let taken = self.tcp.write(self.now, self.server, part);
            written += taken;
            if taken < part.len() {
                break;
            }
        }
        self.passed(written, 0);
        written
    }

    fn write_plaintext(&mut self, parts: &[&[u8]]) -> usize {
        let (mut room, mut written) = (self.room(), 0);
        let Some(secured) = self.tls.get_mut(self.server) else { return 0 };
        for part in parts {
            let taken = part.len().min(room);
            secured.session.write(&part[..taken]);
            (room, written) = (room - taken, written + taken);
        }
        if written > 0 {
            self.tls.flush_later(self.server);
        }
        self.passed(written, 0);
        written
    }

    /// The engine sizes the window by itself, up to this.
    fn window(&self) -> u32 {
        self.tcp.config().receive_window_max
    }
}

/// The service's end of an upstream connection to a server of either kind.
pub(super) enum AnyUpstream<'a, O> {
    Channel(ChannelEnd<'a, O>),
    Plain(PlainEnd<'a>),
}

impl<O: ProxyOutput> UpstreamEnd for AnyUpstream<'_, O> {
    #[inline]
    fn readable(&self) -> usize {
        match self {
            AnyUpstream::Channel(end) => end.readable(),
            AnyUpstream::Plain(end) => end.readable(),
        }
    }

    #[inline]
    fn peek(&mut self, max: usize) -> impl Iterator<Item = &[u8]> {
        let (of_channel, of_server) = match self {
            AnyUpstream::Channel(end) => (Some(end.slices(max)), None),
            AnyUpstream::Plain(end) => (None, Some(end.slices(max))),
        };
        of_channel.into_iter().flatten().chain(of_server.into_iter().flatten())
    }

    fn consume(&mut self, len: usize) {
        match self {
            AnyUpstream::Channel(end) => end.consume(len),
            AnyUpstream::Plain(end) => end.consume(len),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            AnyUpstream::Channel(end) => end.is_finished(),
            AnyUpstream::Plain(end) => end.is_finished(),
        }
    }

    fn ended(&self) -> Option<Ended> {
        match self {
            AnyUpstream::Channel(end) => end.ended(),
            AnyUpstream::Plain(end) => end.end.ended,
        }
    }

    fn tells_reads(&self) -> bool {
        match self {
            AnyUpstream::Channel(end) => end.tells_reads(),
            AnyUpstream::Plain(_) => false,
        }
    }

    fn bytes_read(&self) -> Option<u64> {
        match self {
            AnyUpstream::Channel(end) => end.bytes_read(),
            AnyUpstream::Plain(_) => None, // TCP acknowledges what nobody has read
        }
    }

    fn room(&self) -> usize {
        match self {
            AnyUpstream::Channel(end) => end.room(),
            AnyUpstream::Plain(end) => end.room(),
        }
    }

    fn write(&mut self, parts: &[&[u8]]) -> usize {
        match self {
            AnyUpstream::Channel(end) => end.write(parts),
            AnyUpstream::Plain(end) => end.write(parts),
        }
    }

    fn window(&self) -> u32 {
        match self {
            AnyUpstream::Channel(end) => end.window(),
            AnyUpstream::Plain(end) => end.window(),
        }
    }

    fn widen(&mut self, window: u32) -> u32 {
        match self {
            AnyUpstream::Channel(end) => end.widen(window),
            AnyUpstream::Plain(end) => end.window(),
        }
    }
}

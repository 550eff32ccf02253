//! Active opens: an application's CONNECT becomes a SYN through a network node, or a
//! [hairpin](super::hairpin) if this proxy serves the address.

use std::net::SocketAddr;

use csp_tcp::ConnectError;
use csp_types::{Duration, FlowLabel, FourTuple};
use csp_wire::channel::{CONNECT_BY_LAN, ConnectPayload, Message, MessageHeader, MessageKind};

use super::application::Verdict;
use super::context::{Context, Turn};
use super::events::{NO_SERVICE, new_flow};
use super::flow::{Flow, Stage};
use super::service::local::LocalServices;
use super::shares::Amount;
use super::{ChannelId, Egress, Lane, ProxyOutput, reason};

/// Source ports tried for one CONNECT before it is refused.
pub(crate) const PORT_TRIES: usize = 64;
/// How many of these are passed over for a better one ([`Way::is_far`](super::Way::is_far)).
const FAR_TRIES: usize = 16;
/// Time during which further ports are tried when network nodes report the previous one as used by another
/// proxy.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(5);

impl Egress {
    /// Checks that connections to `remote` can be opened: a rule matches it, and a network node is connected
    /// that owns the rule's address. The error is the reason code of REFUSED.
    pub(super) fn reaches(&self, out: &impl ProxyOutput, remote: SocketAddr) -> Result<(), u32> {
        let (source, _) = self.source(remote.ip()).ok_or(reason::NETWORK_UNREACHABLE)?;
        let any = FourTuple { local: (source, 0).into(), remote };
        out.network_node(&any).map(drop).ok_or(reason::NETWORK_UNREACHABLE)
    }

    /// Sends a SYN to `remote` from the first free port, through the worker of a network node that receives
    /// the answers. The error is the reason code of REFUSED.
    pub(super) fn open<O: ProxyOutput>(
        &mut self,
        cx: &mut Context<'_, O>,
        remote: SocketAddr,
    ) -> Result<(FlowLabel, FourTuple), u32> {
        let (tcp, candidates) = self.candidates(remote).ok_or(reason::NETWORK_UNREACHABLE)?;
        let options = tcp.options(cx.tcp.config());
        let (mut opened, mut tried, mut far) = (Err(reason::ADDRESS_IN_USE), None, 0);
        for tuple in candidates.take(PORT_TRIES) {
            let way = cx.out.network_node(&tuple).ok_or(reason::NETWORK_UNREACHABLE)?;
            if way.is_far && far < FAR_TRIES {
                far += 1;
                continue;
            }
            tried = Some(tuple.local.port());
            opened = match cx.tcp.connect_with(cx.now, tuple, way.via, NO_SERVICE, options) {
                Ok(label) => Ok((label, tuple)),
                Err(ConnectError::InUse) => continue,
                Err(ConnectError::BadAddress) => Err(reason::INVALID),
                Err(ConnectError::TableFull) => Err(reason::NO_BUFFERS),
            };
            break;
        }
        // Ports that are in use often lie beside each other: the next connection need not try them again.
        tried.into_iter().for_each(|port| self.tried(port));
        opened
    }
}

impl<O: ProxyOutput, S: LocalServices> Turn<'_, O, S> {
    /// Processes CONNECT.
    pub(super) fn on_connect(&mut self, channel: ChannelId, lane: Lane, message: &Message<'_>) -> Verdict {
        let Ok(payload) = ConnectPayload::parse(message.payload) else { return Verdict::Violation };
        if let Err(code) = self.open(channel, lane, message.header, payload) {
            let refused = MessageHeader::new(MessageKind::Refused, message.header.id, code, 0);
            self.cx.send(lane, refused, &[]);
        }
        Verdict::Fine
    }

    fn open(
        &mut self,
        channel: ChannelId,
        lane: Lane,
        header: MessageHeader,
        payload: ConnectPayload,
    ) -> Result<(), u32> {
        self.dispatcher.may_connect(self.cx.recorder, channel, payload.remote)?;
        if header.flags & CONNECT_BY_LAN == 0
            && let Some(service) = self.dispatcher.service_at(payload.remote)
            && self.open_hairpin((channel, lane), header, payload.remote, service)?
        {
            return Ok(());
        }
        self.egress.reaches(&*self.cx.out, payload.remote)?;
        let user = self.dispatcher.user_of(channel);
        if !self.egress.shares.admit_connection(user, self.free()) {
            self.cx.recorder.counters.connects_over_share += 1;
            return Err(reason::NO_BUFFERS);
        }
        let window = self.reserve_window().ok_or(reason::NO_BUFFERS)?;
        let opened = self.egress.open(&mut self.cx, payload.remote);
        let opened = opened.inspect_err(|_| self.pump.release(window))?;
        self.cx.tcp.set_send_capacity(opened.0, window);
        let stage = Stage::Connecting { channel, request: header.id };
        let mut flow = new_flow(self.cx.now, opened, NO_SERVICE, stage, window);
        (flow.to_app_credit, flow.lane) = (header.argument, lane);
        flow.charge = self.egress.shares.charge_connection(user, self.pump.budget().worth(window));
        self.admit(flow);
        Ok(())
    }

    /// Returns the resources that are free for further connections, of which those that wait for a header, or
    /// for the end of their handshake, are no flows yet. Half-open connections of clients count as
    /// free, since they are evicted.
    pub(super) fn free(&self) -> Amount {
        let inner = self.cx.hairpin.live() + self.cx.upstreams.live();
        let live = self.cx.flows.len().saturating_sub(inner) + self.prefaces.len() + self.cx.tls.len().1;
        Amount {
            connections: self.cx.tcp.config().connections.saturating_sub(live),
            memory: self.pump.budget().free(),
            hairpin_ends: self.cx.hairpin.free(),
        }
    }

    /// Processes a network node's refusal of the SYN of an active open: another proxy has a connection with
    /// the same addresses. The connection is tried from another port.
    pub(super) fn on_addresses_taken(&mut self, label: FlowLabel) {
        let cx = &mut self.cx;
        let known = cx.flows.get(label).zip(cx.tcp.info(label));
        let opens = |flow: &Flow| {
            matches!(flow.stage, Stage::Connecting { .. } | Stage::Called(_) | Stage::Checking(_))
        };
        let Some((flow, info)) = known.filter(|(flow, _)| opens(flow)) else {
            cx.recorder.counters.drop_misdirected += 1;
            return;
        };
        let mut flow = flow.clone();
        flow.queued = false; // the list of flows to pump contains the old label
        cx.abort_client(label);
        cx.flows.remove(label);
        let former = label;
        let opened = match flow.since + TAKEN_TIMEOUT > cx.now {
            true => self.egress.open(cx, info.tuple.remote),
            false => Err(reason::ADDRESS_IN_USE),
        };
        match opened {
            Ok(opened) => {
                (flow.label, flow.tuple) = opened;
                cx.tcp.set_send_capacity(flow.label, flow.from_app_window);
                let (label, stage) = (flow.label, flow.stage);
                self.admit(flow);
                match stage {
                    Stage::Called(client) => self.called_anew(client, former, label),
                    Stage::Checking(member) => self.checked_anew(label, member),
                    _ => {}
                }
            }
            Err(code) => {
                self.pump.release(flow.from_app_window);
                if let Stage::Called(client) = flow.stage {
                    return self.call_unsent(client, former, code);
                }
                self.egress.shares.release(flow.charge);
                if let Stage::Connecting { request, .. } = flow.stage {
                    cx.send(flow.lane, MessageHeader::new(MessageKind::Refused, request, code, 0), &[]);
                }
            }
        }
    }
}

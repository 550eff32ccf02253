//! Active opens: an application's CONNECT becomes a SYN through a network node.

use std::net::SocketAddr;

use csp_tcp::ConnectError;
use csp_types::{Duration, FlowLabel, FourTuple, Instant};
use csp_wire::channel::{ConnectPayload, Message, MessageHeader, MessageKind};

use super::application::Verdict;
use super::events::{NO_SERVICE, new_flow};
use super::flow::Stage;
use super::services::ServiceSpec;
use super::{ChannelId, EgressRule, Lane, ProxyCore, ProxyOutput, reason};

/// The `via` of connections without a tunnel; those of tunnels begin with 1.
const NO_TUNNEL: u32 = 0;
/// Source ports tried for one CONNECT before it is refused.
const PORT_TRIES: usize = 64;
/// How long other ports are tried while network nodes say that another proxy has the one before.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(5);

impl ProxyCore {
    pub(super) fn on_connect(
        &mut self,
        now: Instant,
        channel: ChannelId,
        lane: Lane,
        message: &Message<'_>,
        out: &mut impl ProxyOutput,
    ) -> Verdict {
        let Ok(payload) = ConnectPayload::parse(message.payload) else { return Verdict::Violation };
        let header = message.header;
        if let Err(code) = self.open(now, (channel, lane), header.id, payload, header.argument, out) {
            let _ = out.channel(lane, MessageHeader::new(MessageKind::Refused, header.id, code, 0), &[]);
        }
        Verdict::Fine
    }

    fn open(
        &mut self,
        now: Instant,
        (channel, lane): (ChannelId, Lane),
        request: u32,
        payload: ConnectPayload,
        receive_window: u32,
        out: &mut impl ProxyOutput,
    ) -> Result<(), u32> {
        if let Err(code) = self.processes.get(&channel).map_or(Ok(()), |p| p.may_connect(payload.remote)) {
            self.counters.connects_denied += 1;
            return Err(code);
        }
        let via = out.network_node().ok_or(reason::NETWORK_UNREACHABLE)?;
        let window = self.reserve_window(now, out).ok_or(reason::NO_BUFFERS)?;
        let opened = self.open_from_any_port(now, payload.remote, via);
        let opened = opened.inspect_err(|_| self.budget.release(window))?;
        self.tcp.set_send_capacity(opened.0, window);
        let mut flow = new_flow(now, opened, NO_SERVICE, Stage::Connecting { channel, request }, window);
        (flow.to_app_credit, flow.lane) = (receive_window, lane);
        self.admit(now, flow);
        Ok(())
    }

    fn open_from_any_port(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        via: u32,
    ) -> Result<(FlowLabel, FourTuple), u32> {
        let (tcp, candidates) = self.egress.candidates(remote).ok_or(reason::NETWORK_UNREACHABLE)?;
        let options = tcp.options(self.tcp.config());
        for tuple in candidates.take(PORT_TRIES) {
            match self.tcp.connect_with(now, tuple, via, NO_SERVICE, options) {
                Ok(label) => return Ok((label, tuple)),
                Err(ConnectError::InUse) => {}
                Err(ConnectError::BadAddress) => return Err(reason::INVALID),
                Err(ConnectError::TableFull) => return Err(reason::NO_BUFFERS),
            }
        }
        Err(reason::ADDRESS_IN_USE)
    }

    /// A network node refuses the SYN of an active open: another proxy has a connection with these addresses. It is
    /// tried from another port.
    pub(super) fn on_addresses_taken(&mut self, now: Instant, label: FlowLabel, out: &mut impl ProxyOutput) {
        let known = self.flows.get(label).zip(self.tcp.info(label));
        let Some((flow, info)) = known.filter(|(f, _)| matches!(f.stage, Stage::Connecting { .. })) else {
            self.counters.drop_misdirected += 1;
            return;
        };
        let mut flow = flow.clone();
        flow.queued = false; // the list of flows to pump knows the old label
        self.tcp.abort(now, label);
        self.flows.remove(label);
        let opened = match flow.since + TAKEN_TIMEOUT > now {
            true => self.open_from_any_port(now, info.tuple.remote, info.via),
            false => Err(reason::ADDRESS_IN_USE),
        };
        match opened {
            Ok(opened) => {
                (flow.label, flow.tuple) = opened;
                self.tcp.set_send_capacity(flow.label, flow.from_app_window);
                self.admit(now, flow);
            }
            Err(code) => {
                self.budget.release(flow.from_app_window);
                if let Stage::Connecting { request, .. } = flow.stage {
                    let refused = MessageHeader::new(MessageKind::Refused, request, code, 0);
                    let _ = out.channel(flow.lane, refused, &[]); // a lost channel reports itself down
                }
            }
        }
    }

    /// A tunnel came up. Connections that have none go through it from now on.
    pub fn tunnel_up(&mut self, now: Instant, via: u32, out: &mut impl ProxyOutput) {
        self.tcp.redirect(NO_TUNNEL, via);
        self.drive(now, out);
    }

    /// A tunnel is gone: its connections go through another network node, or wait for one. Clients that only listen
    /// would never hear again of a connection that waits for them to speak.
    pub fn tunnel_down(&mut self, now: Instant, via: u32, out: &mut impl ProxyOutput) {
        self.tcp.redirect(via, out.network_node().unwrap_or(NO_TUNNEL));
        self.drive(now, out);
    }

    /// Takes a new generation of policy. Connections of services that are no longer named live on.
    pub fn set_policy(
        &mut self,
        now: Instant,
        services: Vec<ServiceSpec>,
        egress: Vec<EgressRule>,
        out: &mut impl ProxyOutput,
    ) {
        let (listen, gone) = self.services.replace(now, services, &mut self.pools);
        for address in gone {
            self.tcp.unlisten(address);
        }
        for (address, service) in listen {
            self.tcp.unlisten(address);
            let tcp = self.services.get(service).map_or_else(Default::default, |s| s.spec.tcp);
            let options = tcp.options(self.tcp.config());
            let _ = self.tcp.listen_with(address, service, options); // policy admits no port 0 and fewer services than listeners
            if let Some(service) = self.services.get_mut(service) {
                service.backlog_full = false; // of the listener, which is new
            }
            self.note_backlog(service);
        }
        self.egress.set_rules(egress);
        self.pools.set_readied(); // perhaps of another service now
        self.serve_backlogs(now, out);
        self.drive(now, out);
    }
}

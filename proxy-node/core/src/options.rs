//! Options that an application sets on its client's TCP connection, and information that it requests about
//! it.

use csp_tcp::State;
use csp_types::{Duration, FlowLabel};
use csp_wire::channel::{ChannelOption, InfoPayload, Message, MessageHeader, MessageKind, OptionPayload};

use super::application::Verdict;
use super::context::Context;
use super::{Lane, ProxyOutput};

/// Processes OPTION. Options that this proxy does not know are ignored.
pub(super) fn on_option<O>(cx: &mut Context<'_, O>, label: FlowLabel, message: &Message<'_>) -> Verdict {
    let Ok(OptionPayload { value }) = OptionPayload::parse(message.payload) else {
        return Verdict::Violation;
    };
    let known = ChannelOption::from_u32(message.header.argument).zip(cx.tcp.options(label));
    let Some((option, mut options)) = known else { return Verdict::Fine };
    let time = (value > 0).then(|| Duration::from_millis(value.min(u32::MAX.into())));
    match option {
        ChannelOption::NoDelay => options.nagle = value == 0,
        ChannelOption::KeepaliveIdle => options.keepalive_idle = time,
        ChannelOption::KeepaliveInterval => {
            options.keepalive_interval = time.unwrap_or(options.keepalive_interval);
        }
        ChannelOption::KeepaliveCount => {
            options.keepalive_probes = u8::try_from(value).unwrap_or(u8::MAX).max(1);
        }
        ChannelOption::UserTimeout => options.user_timeout = time,
    }
    cx.tcp.set_options(cx.now, label, options);
    Verdict::Fine
}

/// Processes INFO: answers with the connection's figures. Those of a hairpin or an upstream connection are 0,
/// as it has no path.
pub(super) fn answer_info(cx: &mut Context<'_, impl ProxyOutput>, label: FlowLabel, lane: Lane) {
    let header = MessageHeader::of_flow(MessageKind::Info, label, 0, InfoPayload::LEN as u32);
    let peer = cx.hairpin.peer(label).map(|peer| cx.hairpin.waiting(peer).0);
    if let Some(queued) = peer.or_else(|| cx.upstreams.get(label).map(|end| end.held.len())) {
        let send_queue = queued as u32;
        let payload =
            InfoPayload { state: linux_state(State::Established), send_queue, ..InfoPayload::default() };
        cx.send(lane, header, &payload.emit());
    }
    let Some(info) = cx.tcp.info(label) else { return };
    let bytes = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let micros = |n: u128| u32::try_from(n).unwrap_or(u32::MAX);
    let payload = InfoPayload {
        state: linux_state(info.state),
        rtt_us: micros(info.srtt_us.into()),
        rto_us: micros(info.rto.as_micros()),
        mss: info.mss.into(),
        cwnd: info.cwnd,
        ssthresh: info.ssthresh,
        in_flight: info.in_flight,
        send_window: info.send_window,
        retransmits: info.retransmits,
        send_queue: bytes(info.send_queue),
        delivery_rate: info.delivery_rate,
    };
    cx.send(lane, header, &payload.emit());
}

/// Returns Linux's number of a state (`enum` in `include/net/tcp_states.h`), as in TCP_INFO.
const fn linux_state(state: State) -> u32 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::Resetting | State::Done => 7,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

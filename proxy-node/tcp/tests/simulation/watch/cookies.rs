//! Connections that begin with a SYN cookie: what the SYN and its answer said comes back with the acknowledgement alone.

use std::collections::BTreeMap;

use csp_types::FourTuple;
use csp_wire::tcp::{Options, Repr};

use super::{View, Watch};
use crate::packet::Packet;
use crate::pattern::Stream;

/// What was said before there was a connection.
#[derive(Default)]
pub struct Cookies {
    /// The options of SYNs that were taken, by whom they came to and their sequence number.
    syns: BTreeMap<(FourTuple, u32), Options>,
    /// The headers of SYN/ACKs without a connection, by their sequence number, and what its application would send.
    sent: BTreeMap<(FourTuple, u32), (Repr, Stream)>,
}

impl Cookies {
    pub fn on_syn_taken(&mut self, packet: &Packet) {
        self.syns.insert((packet.at_receiver(), packet.header.seq), packet.header.options);
    }

    /// A SYN/ACK leaves that no connection sends.
    pub fn on_sent(&mut self, packet: &Packet, sends: Stream) {
        let header = packet.header;
        let syn = self.syns.get(&(packet.tuple, header.ack.wrapping_sub(1))).expect("it answers a SYN");
        let options = header.options;
        let fits = |ours: bool, theirs: bool| !ours || theirs;
        assert!(fits(options.window_scale.is_some(), syn.window_scale.is_some()), "scale without an offer");
        assert!(fits(options.sack_permitted, syn.sack_permitted), "SACK without an offer");
        assert_eq!(options.timestamps.is_some(), syn.timestamps.is_some(), "timestamps");
        // Nothing else would bring them back.
        let kept = options.timestamps.is_some();
        assert!(kept || (options.window_scale.is_none() && !options.sack_permitted), "nowhere to keep it");
        self.sent.insert((packet.tuple, header.seq), (header, sends));
    }
}

impl Watch {
    /// The engine took a packet for the acknowledgement of a cookie: a connection begins.
    pub fn on_cookie_taken(&mut self, packet: &Packet) {
        let tuple = packet.at_receiver();
        let (iss, irs) = (packet.header.ack.wrapping_sub(1), packet.header.seq.wrapping_sub(1));
        let (header, sends) = *self.cookies.sent.get(&(tuple, iss)).expect("a cookie that was never sent");
        assert_eq!(header.ack, packet.header.seq, "a cookie for another SYN");
        if let Some(before) = self.views.remove(&tuple) {
            self.again += if before.squeezed { 0 } else { before.again };
        }
        let mut view = View::new(iss, header.options, sends);
        view.irs = Some(irs);
        view.theirs = self.cookies.syns.get(&(tuple, irs)).copied();
        view.recent = packet.header.options.timestamps.map_or(0, |t| t.value);
        (view.answered_syn, view.top, view.last_ack) = (true, 1, 1);
        view.advertised = 1 + u64::from(header.window); // RFC 7323 §2.2: not scaled
        self.views.insert(tuple, view);
    }
}

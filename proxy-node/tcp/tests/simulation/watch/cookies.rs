//! Connections that begin with a SYN cookie: the acknowledgement alone restores the contents of the SYN and
//! the SYN/ACK.

use std::collections::BTreeMap;

use csp_types::FourTuple;
use csp_wire::tcp::{Options, Repr};

use super::{View, Watch};
use crate::packet::Packet;
use crate::pattern::Stream;

/// Segments exchanged before the connection existed.
#[derive(Default)]
pub struct Cookies {
    /// The options of accepted SYNs, by tuple and sequence number.
    syns: BTreeMap<(FourTuple, u32), Options>,
    /// The headers of SYN/ACKs without a connection, by sequence number, and the stream that its application
    /// would send.
    sent: BTreeMap<(FourTuple, u32), (Repr, Stream)>,
}

impl Cookies {
    pub fn on_syn_taken(&mut self, packet: &Packet) {
        self.syns.insert((packet.at_receiver(), packet.header.seq), packet.header.options);
    }

    /// Observes a SYN/ACK sent without a connection.
    pub fn on_sent(&mut self, packet: &Packet, sends: Stream) {
        let header = packet.header;
        let syn = self.syns.get(&(packet.tuple, header.ack.wrapping_sub(1))).expect("it answers a SYN");
        let options = header.options;
        let fits = |ours: bool, theirs: bool| !ours || theirs;
        assert!(fits(options.window_scale.is_some(), syn.window_scale.is_some()), "scale without an offer");
        assert!(fits(options.sack_permitted, syn.sack_permitted), "SACK without an offer");
        assert_eq!(options.timestamps.is_some(), syn.timestamps.is_some(), "timestamps");
        // Only timestamps can restore them.
        let kept = options.timestamps.is_some();
        assert!(
            kept || (options.window_scale.is_none() && !options.sack_permitted),
            "an option that the cookie cannot carry"
        );
        self.sent.insert((packet.tuple, header.seq), (header, sends));
    }
}

impl Watch {
    /// The engine accepted a packet as the acknowledgement of a cookie: a connection begins. Nothing records
    /// the window that the cookie advertised (RFC 4987 §3.6), so RCV.WND is computed anew. With
    /// `memory_varies` it may be smaller or larger than that window: a probe of a window that was closed then
    /// is accepted if it is open now (RFC 9293 §3.10.7.4 first check).
    pub fn on_cookie_taken(&mut self, packet: &Packet, memory_varies: bool) {
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
        if memory_varies {
            view.restored = 1 + u64::from(self.config.receive_window_max.min(0xffff));
            self.memory_short = true;
        }
        self.views.insert(tuple, view);
    }
}

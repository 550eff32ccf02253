//! Checks of segments that the engine sends, and updates from segments that it accepted.

use csp_tcp::StackConfig;
use csp_types::{FourTuple, Instant};
use csp_wire::tcp::Repr;

use super::{Done, View, relative};
use crate::packet::Packet;

impl View {
    pub(super) fn check_options(&mut self, packet: &Packet, memory_short: bool, config: &StackConfig) {
        let options = packet.header.options;
        assert!(
            options.mss.is_none() && options.window_scale.is_none() && !options.sack_permitted,
            "SYN's options"
        );
        // RFC 7323 §3.2: once negotiated, in every segment.
        assert_eq!(options.timestamps.is_some(), self.has_timestamps(), "timestamps");
        if let Some(timestamps) = options.timestamps {
            let backwards =
                self.last_value.is_some_and(|last| (timestamps.value.wrapping_sub(last) as i32) < 0);
            assert!(!backwards, "our timestamps go backwards");
            self.last_value = Some(timestamps.value);
            assert_eq!(timestamps.echo, self.recent, "TS.Recent is echoed: {self:?}");
        }
        let len = (packet.payload.len() + options.len()) as u64;
        let mss = self.mss(&packet.tuple, config);
        assert!(packet.payload.is_empty() || len <= mss, "{len} bytes exceed the MSS");
        let blocks = options.sack.as_slice();
        assert!(
            blocks.is_empty() || self.agreed(|options| options.sack_permitted),
            "SACK was not negotiated"
        );
        let irs = self.irs.expect("a SYN came");
        for (n, block) in blocks.iter().enumerate() {
            let start = relative(block.start, irs, self.next);
            let end = relative(block.end, irs, self.next);
            assert!(start < end && end - start < 1 << 30, "SACK block {start}..{end}");
            let old = end <= self.next as i64 && !memory_short;
            let within = self.got.contain(start as u64, end as u64);
            // RFC 2883: the first block may report a duplicate.
            assert!(if n == 0 { old || within } else { within && !old }, "SACK of {start}..{end}: {self:?}");
        }
    }

    /// Largest length of a segment, options and payload.
    pub(super) fn mss(&self, tuple: &FourTuple, config: &StackConfig) -> u64 {
        let v4 = tuple.local.is_ipv4();
        let (ours, assumed) = if v4 { (config.mss_v4, 536) } else { (config.mss_v6, 1220) };
        let theirs = self.theirs.and_then(|options| options.mss).unwrap_or(assumed).max(csp_tcp::MSS_MIN);
        u64::from(ours.min(theirs))
    }

    pub(super) fn check_data(&mut self, packet: &Packet, done: &Done, config: &StackConfig) {
        let at = relative(packet.header.seq, self.iss, self.una);
        let fin = packet.header.flags.fin();
        if packet.len() == 0 {
            // Pure acknowledgements have the number at the edge of what was sent or may be; keepalive probes
            // one before.
            let low = self.una as i64 - 1;
            assert!(low <= at && at <= self.top as i64, "a bare segment at {at}: {self:?}");
            return;
        }
        assert!(at >= 1, "data at {at}");
        let at = at as u64;
        let data_end = at + packet.payload.len() as u64;
        let end = data_end + u64::from(fin);
        if let Some(wrong) = self.sends.difference(at - 1, &packet.payload) {
            panic!("byte {wrong} of the stream is sent wrong");
        }
        assert!(at <= self.top, "a gap: {at} after {}", self.top);
        assert!(end > self.una, "{at}..{end} was acknowledged: {self:?}");
        assert!(data_end <= done.written + 1, "more than was written");
        if let Some(fin_at) = self.fin_at {
            assert!(data_end <= fin_at && (!fin || data_end == fin_at), "FIN moves: {self:?}");
        } else if fin {
            assert!(done.finished && data_end == done.written + 1, "FIN before the end: {done:?} {self:?}");
            self.fin_at = Some(data_end);
        }
        let probe = end <= self.una + 1;
        if end > self.top {
            assert!(
                end <= self.edge || (probe && self.edge <= self.una),
                "{at}..{end} beyond the window: {self:?}"
            );
        } else {
            assert!(end <= self.edge_max || probe, "{at}..{end} beyond every window: {self:?}");
        }
        if at < self.top && !(probe && self.squeezed) {
            self.again += end.min(self.top) - at;
        }
        self.top = self.top.max(end);
        // In slow start every acknowledged byte opens the window by one (RFC 5681 §3.1, RFC 6928); a tail
        // loss probe may be added.
        let mss = u64::from(config.mss_v4.max(config.mss_v6));
        let most = u64::from(config.initial_window_segments) * mss.max(1460) + self.una + 2 * mss;
        assert!(self.hinted || self.top - self.una <= most, "a burst: {self:?}");
    }

    pub(super) fn check_acknowledgement(
        &mut self,
        now: Instant,
        header: &Repr,
        done: &Done,
        memory_short: bool,
        config: &StackConfig,
    ) {
        let ours = self.ours;
        let ack = relative(header.ack, self.irs.expect("a SYN came"), self.next);
        assert!(ack <= self.next as i64, "acknowledges {ack}, which did not arrive: {self:?}");
        assert!(ack >= self.last_ack as i64, "acknowledges less than before: {ack}, {self:?}");
        let ack = ack as u64;
        assert!(memory_short || ack == self.next, "acknowledges {ack}, not everything: {self:?}");
        (self.last_ack, self.restored) = (ack, 0);
        self.owed_since = (ack < self.next).then_some(now);
        let edge = ack + (u64::from(header.window) << self.shift(&ours));
        // RFC 9293 §3.8.6: the window does not shrink.
        assert!(memory_short || edge >= self.advertised, "the window's edge moves back to {edge}: {self:?}");
        self.advertised = if memory_short { edge.max(ack) } else { self.advertised.max(edge) };
        // The edge must not move back, so it is rounded up with every acknowledgement (RFC 7323 §2.3).
        let most = u64::from(config.receive_window_max) + 2;
        let held = edge.saturating_sub(1 + done.received);
        self.rounded = if held > most { self.rounded + (1 << self.shift(&ours)) - 1 } else { 0 };
        assert!(held <= most + self.rounded, "{held} bytes were promised room: {done:?} {self:?}");
    }

    /// Observes an accepted segment: it cannot be older than TS.Recent (RFC 7323 §5.3), and may update it
    /// (§4.3).
    pub(super) fn learn_value(&mut self, packet: &Packet) {
        let Some(t) = packet.header.options.timestamps.filter(|_| self.has_timestamps()) else { return };
        let older = (t.value.wrapping_sub(self.recent) as i32) < 0;
        assert!(!older, "the engine took a segment of {}, TS.Recent is {}: {self:?}", t.value, self.recent);
        let at = relative(packet.header.seq, self.irs.expect("a SYN came"), self.next);
        if at <= self.last_ack as i64 {
            self.recent = t.value;
        }
    }

    pub(super) fn process_ack(&mut self, packet: &Packet) {
        let header = &packet.header;
        if !header.flags.ack() {
            return;
        }
        let ack = relative(header.ack, self.iss, self.una);
        if ack < self.una as i64 {
            return;
        }
        assert!(ack <= self.top as i64, "the engine took an acknowledgement of {ack}: {self:?}");
        let at = relative(header.seq, self.irs.expect("a SYN came"), self.next);
        let theirs = self.theirs.expect("a SYN came");
        self.hinted |= (ack == self.una as i64 && packet.len() == 0) || !header.options.sack.is_empty();
        // SND.WND is relative to SND.UNA: an acknowledgement whose window is not used still moves the edge.
        let mut window = self.edge - self.una;
        self.una = ack as u64;
        if (at, ack) >= self.window_from {
            window = u64::from(header.window) << self.shift(&theirs);
            self.squeezed |= window == 0 || self.una + window < self.edge;
            self.window_from = (at, ack);
        }
        self.edge = self.una + window;
        self.edge_max = self.edge_max.max(self.edge);
    }

    pub(super) fn take_data(&mut self, now: Instant, packet: &Packet) {
        let at = relative(packet.header.seq, self.irs.expect("a SYN came"), self.next);
        let end = at + i64::from(packet.len());
        let (from, to) = (at.max(1) as u64, end.max(1) as u64);
        let advertised = self.advertised.max(self.next).max(self.restored);
        let fin_fits = packet.header.flags.fin() && to <= advertised + 1;
        self.got.insert(from, if fin_fits { to } else { to.min(advertised) });
        self.next = self.got.end_of_first(self.next);
        if self.next > self.last_ack {
            self.owed_since = self.owed_since.or(Some(now));
        }
    }
}

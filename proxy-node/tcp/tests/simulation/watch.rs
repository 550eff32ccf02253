//! What the wire shows of an engine's connections, and what must hold for every segment it sends.
//!
//! Positions count from the initial sequence numbers: 0 is the SYN, `n + 1` is byte `n` of the stream.
//!
//! ```text
//!   sending:    una          top   edge     edge_max      receiving:   last_ack   next     told
//!    |--------- | -- sent -- | ---- | --------- |          |------------- | ------ | ------ |
//! ```

use std::collections::BTreeMap;
use std::fmt;

use csp_tcp::StackConfig;
use csp_types::{Duration, FourTuple, Instant};
use csp_wire::tcp::{Options, Repr};

use crate::packet::Packet;
use crate::pattern::Stream;
use crate::spans::Spans;

/// How much later than it must a timer of the engine may fire: its wheel turns in such steps.
pub const TIMER_SLACK: Duration = Duration::from_millis(3);

/// What the application at this end has done so far.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub sends: Stream,
    pub written: u64,
    pub finished: bool,
    pub received: u64,
}

/// One connection of the engine, seen from the wire.
pub struct View {
    iss: u32,
    irs: Option<u32>,
    ours: Options,
    theirs: Option<Options>,
    sends: Stream,

    // Sending.
    /// Our last SYN had an acknowledgement.
    answered_syn: bool,
    pub top: u64,
    una: u64,
    edge: u64,
    edge_max: u64,
    window_from: (i64, i64),
    fin_at: Option<u64>,
    last_value: Option<u32>,
    /// Whether the other side's acknowledgements ever hinted at loss.
    hinted: bool,
    /// Whether its window was ever closed, or taken back.
    squeezed: bool,
    /// Sequence numbers sent more than once, window probes not counted.
    pub again: u64,
    /// The newest of our timestamps that arrived cannot be older than its echo; the values the peer told.
    told_values: (u32, u32),

    // Receiving.
    got: Spans,
    next: u64,
    last_ack: u64,
    told: u64,
    /// By how much roundings may have moved the edge on since the window was largest.
    rounded: u64,
    owed_since: Option<Instant>,
    /// RST went either way.
    over: bool,
}

/// Watches all connections of one engine.
pub struct Watch {
    pub views: BTreeMap<FourTuple, View>,
    config: StackConfig,
    /// Views that ended, and what they sent twice.
    pub again: u64,
    /// Memory was short at some time: what was told of windows may have been taken back, bytes dropped.
    pub memory_short: bool,
}

fn relative(seq: u32, to: u32, near: u64) -> i64 {
    let near_seq = to.wrapping_add(near as u32);
    near as i64 + i64::from(seq.wrapping_sub(near_seq) as i32)
}

impl Watch {
    pub fn new(config: StackConfig) -> Watch {
        Watch { views: BTreeMap::new(), config, again: 0, memory_short: false }
    }

    /// A packet leaves. `anonymous`: it belongs to no connection block (an answer to a stray segment or in TIME-WAIT).
    pub fn on_sent(&mut self, now: Instant, packet: &Packet, anonymous: bool, done: Option<Done>) {
        let flags = packet.header.flags;
        assert!(!(flags.syn() && (flags.fin() || flags.rst())), "SYN with FIN or RST");
        if flags.syn() && !anonymous {
            return self.on_syn_sent(packet, done);
        }
        let memory_short = self.memory_short;
        let Some(view) = self.views.get_mut(&packet.tuple) else {
            assert!(anonymous, "a segment of a connection that never sent SYN");
            return;
        };
        if flags.rst() {
            view.over |= !anonymous;
            return;
        }
        if anonymous {
            return; // a SYN/ACK with a cookie, or an answer in TIME-WAIT
        }
        assert!(!view.over, "a segment after RST");
        assert!(flags.ack(), "a segment without ACK");
        let done = done.expect("a connection has an application");
        view.check_options(packet, memory_short, &self.config);
        view.check_data(packet, &done, &self.config);
        view.check_acknowledgement(now, &packet.header, &done, memory_short, &self.config);
    }

    fn on_syn_sent(&mut self, packet: &Packet, done: Option<Done>) {
        let Repr { seq, options, flags, window, ack, .. } = packet.header;
        let known = self.views.get(&packet.tuple).is_some_and(|view| view.iss == seq && !view.over);
        if !known {
            let sends = done.expect("a connection has an application").sends;
            let mut view = View::new(seq, options, sends);
            let before = self.views.remove(&packet.tuple);
            if let Some(before) = before {
                self.again += before.again;
                (view.irs, view.theirs) = (before.irs, before.theirs); // the SYN that we answer came before
                view.told_values = before.told_values;
            }
            self.views.insert(packet.tuple, view);
        }
        let view = self.views.get_mut(&packet.tuple).expect("it was put there");
        assert!(packet.payload.is_empty() && view.una == 0, "SYN {view:?}");
        view.again += u64::from(view.top > 0 && flags.ack() == view.answered_syn);
        view.answered_syn = flags.ack();
        view.top = view.top.max(1);
        if flags.ack() {
            let irs = view.irs.expect("SYN/ACK without a SYN");
            assert_eq!(ack, irs.wrapping_add(1), "SYN/ACK acknowledges something else than the SYN");
            let theirs = view.theirs.expect("SYN/ACK without a SYN");
            assert!(
                options.window_scale.is_none() || theirs.window_scale.is_some(),
                "scale without an offer"
            );
            assert!(!options.sack_permitted || theirs.sack_permitted, "SACK without an offer");
            assert!(
                options.timestamps.is_none() || theirs.timestamps.is_some(),
                "timestamps without an offer"
            );
            view.ours = options;
            view.last_ack = 1;
        }
        view.told = view.told.max(1 + u64::from(window)); // RFC 7323 §2.2: not scaled
    }

    /// A packet was handed to the engine; `taken`: it was not dropped.
    pub fn on_delivered(&mut self, now: Instant, packet: &Packet, taken: bool) {
        let flags = packet.header.flags;
        let tuple = packet.at_receiver();
        if flags.syn() && !flags.rst() {
            return self.on_syn_delivered(packet, taken);
        }
        let Some(view) = self.views.get_mut(&tuple) else { return };
        view.learn_value(packet);
        if !taken || view.theirs.is_none() {
            return;
        }
        if flags.rst() {
            view.over = true;
            return;
        }
        view.take_acknowledgement(packet);
        view.take_data(now, packet);
    }

    fn on_syn_delivered(&mut self, packet: &Packet, taken: bool) {
        let Repr { seq, options, flags, ack, window, .. } = packet.header;
        let tuple = packet.at_receiver();
        let view = self.views.entry(tuple).or_insert_with(|| View::new(0, Options::default(), Stream::NONE));
        let opens = taken && (view.irs.is_none() || view.over || view.irs != Some(seq) || view.top == 0);
        if opens {
            // Of a view that has begun, only the other side is new (the answer to our SYN); else ours follows.
            (view.irs, view.theirs) = (Some(seq), Some(options));
            let value = options.timestamps.map_or(0, |t| t.value);
            view.told_values = (value, value);
        } else {
            view.learn_value(packet);
        }
        if taken && flags.ack() && view.irs == Some(seq) && view.una == 0 {
            assert_eq!(ack, view.iss.wrapping_add(1), "the engine took a SYN/ACK of something else");
            view.una = 1;
            (view.edge, view.window_from) = (1 + u64::from(window), (0, 1));
            view.edge_max = view.edge;
        }
    }

    /// Between two steps, when everything was sent that may be: acknowledgements are not owed for longer than allowed.
    pub fn check_owed(&self, now: Instant) {
        for (tuple, view) in &self.views {
            let Some(since) = view.owed_since.filter(|_| !view.over && !self.memory_short) else { continue };
            let (owed, late) = (view.next - view.last_ack, now - since);
            let full = self.mss_of(tuple) - if view.has_timestamps() { 12 } else { 0 };
            assert!(owed < 2 * full, "{owed} bytes are not acknowledged at once: {view:?}");
            let most = self.config.delayed_ack + TIMER_SLACK;
            assert!(late <= most, "{owed} bytes are not acknowledged for {late:?}: {view:?}");
        }
    }

    fn mss_of(&self, tuple: &FourTuple) -> u64 {
        u64::from(if tuple.local.is_ipv4() { self.config.mss_v4 } else { self.config.mss_v6 })
    }

    /// Sequence numbers sent twice on connections that nobody squeezed.
    pub fn needless(&self) -> u64 {
        let views = self.views.values().filter(|view| !view.squeezed);
        self.again + views.map(|view| view.again).sum::<u64>()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let View { top, una, edge, edge_max, fin_at, again, next, last_ack, told, over, .. } = self;
        write!(f, "sent {una}..{top} window to {edge} (most {edge_max}) fin {fin_at:?} again {again} | ")?;
        write!(f, "received {next} acknowledged {last_ack} told {told} {:?} over {over}", self.got)
    }
}

impl View {
    fn new(iss: u32, ours: Options, sends: Stream) -> View {
        View {
            iss,
            irs: None,
            ours,
            theirs: None,
            sends,
            answered_syn: false,
            top: 0,
            una: 0,
            edge: 1,
            edge_max: 1,
            window_from: (0, 0),
            fin_at: None,
            last_value: None,
            hinted: false,
            squeezed: false,
            again: 0,
            told_values: (0, 0),
            got: Spans::default(),
            next: 1,
            last_ack: 0,
            told: 1,
            rounded: 0,
            owed_since: None,
            over: false,
        }
    }

    fn agreed(&self, what: impl Fn(&Options) -> bool) -> bool {
        what(&self.ours) && self.theirs.as_ref().is_some_and(what)
    }

    fn has_timestamps(&self) -> bool {
        self.agreed(|options| options.timestamps.is_some())
    }

    fn shift(&self, of: &Options) -> u32 {
        let scaled = self.agreed(|options| options.window_scale.is_some());
        of.window_scale.filter(|_| scaled).map_or(0, u32::from)
    }

    fn check_options(&mut self, packet: &Packet, memory_short: bool, config: &StackConfig) {
        let options = packet.header.options;
        assert!(
            options.mss.is_none() && options.window_scale.is_none() && !options.sack_permitted,
            "SYN's options"
        );
        // RFC 7323 §3.2: once agreed on, in every segment.
        assert_eq!(options.timestamps.is_some(), self.has_timestamps(), "timestamps");
        if let Some(timestamps) = options.timestamps {
            let backwards =
                self.last_value.is_some_and(|last| (timestamps.value.wrapping_sub(last) as i32) < 0);
            assert!(!backwards, "our timestamps go backwards");
            self.last_value = Some(timestamps.value);
            let (oldest, newest) = self.told_values;
            let known = timestamps.echo.wrapping_sub(oldest) <= newest.wrapping_sub(oldest);
            assert!(known, "echo {} was never told ({oldest} to {newest})", timestamps.echo);
        }
        let len = (packet.payload.len() + options.len()) as u64;
        let mss = self.mss(&packet.tuple, config);
        assert!(packet.payload.is_empty() || len <= mss, "{len} bytes exceed the MSS");
        let blocks = options.sack.as_slice();
        assert!(blocks.is_empty() || self.agreed(|options| options.sack_permitted), "SACK was not agreed on");
        let irs = self.irs.expect("a SYN came");
        for (n, block) in blocks.iter().enumerate() {
            let start = relative(block.start, irs, self.next);
            let end = relative(block.end, irs, self.next);
            assert!(start < end && end - start < 1 << 30, "SACK block {start}..{end}");
            let old = end <= self.next as i64 && !memory_short;
            let within = self.got.contain(start as u64, end as u64);
            // RFC 2883: the first block may tell of what came twice.
            assert!(if n == 0 { old || within } else { within && !old }, "SACK of {start}..{end}: {self:?}");
        }
    }

    /// What may be in a segment at most, options and payload.
    fn mss(&self, tuple: &FourTuple, config: &StackConfig) -> u64 {
        let v4 = tuple.local.is_ipv4();
        let (ours, assumed) = if v4 { (config.mss_v4, 536) } else { (config.mss_v6, 1220) };
        let theirs = self.theirs.and_then(|options| options.mss).unwrap_or(assumed).max(csp_tcp::MSS_MIN);
        u64::from(ours.min(theirs))
    }

    fn check_data(&mut self, packet: &Packet, done: &Done, config: &StackConfig) {
        let at = relative(packet.header.seq, self.iss, self.una);
        let fin = packet.header.flags.fin();
        if packet.len() == 0 {
            // Bare acknowledgements come from the edge of what was sent or may be; keepalive probes from before it.
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
        // A receiver may delay the acknowledgement of less than two segments by more than a tail loss probe waits.
        let theirs = self.theirs.and_then(|options| options.mss).map_or(536, u64::from);
        let lone = self.top - self.una < 2 * theirs;
        if at < self.top && !(probe && self.squeezed) && !lone {
            self.again += end.min(self.top) - at;
        }
        self.top = self.top.max(end);
        // Slow start lets every acknowledged byte open the window by as much (RFC 5681 §3.1, RFC 6928); a tail loss
        // probe may come on top.
        let mss = u64::from(config.mss_v4.max(config.mss_v6));
        let most = u64::from(config.initial_window_segments) * mss.max(1460) + self.una + 2 * mss;
        assert!(self.hinted || self.top - self.una <= most, "a burst: {self:?}");
    }

    fn check_acknowledgement(
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
        self.last_ack = ack;
        self.owed_since = (ack < self.next).then_some(now);
        let edge = ack + (u64::from(header.window) << self.shift(&ours));
        // RFC 9293 §3.8.6: a window once told is not taken back.
        assert!(memory_short || edge >= self.told, "the window's edge moves back to {edge}: {self:?}");
        self.told = if memory_short { edge.max(ack) } else { self.told.max(edge) };
        // An edge that may not move back is rounded up with every acknowledgement (RFC 7323 §2.3).
        let most = u64::from(config.receive_window_max) + 2;
        let held = edge.saturating_sub(1 + done.received);
        self.rounded = if held > most { self.rounded + (1 << self.shift(&ours)) - 1 } else { 0 };
        assert!(held <= most + self.rounded, "{held} bytes were promised room: {done:?} {self:?}");
    }

    fn learn_value(&mut self, packet: &Packet) {
        if let Some(t) = packet.header.options.timestamps {
            let (oldest, newest) = self.told_values;
            let newer = (t.value.wrapping_sub(newest) as i32) > 0;
            self.told_values = (oldest, if newer { t.value } else { newest });
        }
    }

    fn take_acknowledgement(&mut self, packet: &Packet) {
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
        // SND.WND counts from SND.UNA: an acknowledgement whose window is not taken moves the edge all the same.
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

    fn take_data(&mut self, now: Instant, packet: &Packet) {
        let at = relative(packet.header.seq, self.irs.expect("a SYN came"), self.next);
        let end = at + i64::from(packet.len());
        let (from, to) = (at.max(1) as u64, end.max(1) as u64);
        let told = self.told.max(self.next);
        let fin_fits = packet.header.flags.fin() && to <= told + 1;
        self.got.insert(from, if fin_fits { to } else { to.min(told) });
        self.next = self.got.end_of_first(self.next);
        if self.next > self.last_ack {
            self.owed_since = self.owed_since.or(Some(now));
        }
    }

    /// Sequence numbers sent and not acknowledged.
    pub fn outstanding(&self) -> u64 {
        self.top - self.una.min(self.top)
    }
}

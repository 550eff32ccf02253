//! Observation of an engine's connections from the wire, and checks of every segment that it sends.
//!
//! Positions count from the initial sequence numbers: 0 is the SYN, `n + 1` is byte `n` of the stream.
//!
//! ```text
//!   sending:    una          top   edge     edge_max      receiving:   last_ack   next  advertised
//!    |--------- | -- sent -- | ---- | --------- |          |------------- | ------ | ------ |
//! ```

mod checks;
mod cookies;
mod patience;

use std::collections::BTreeMap;
use std::fmt;

use csp_tcp::StackConfig;
use csp_types::{Duration, FourTuple, Instant};
use csp_wire::tcp::{Options, Repr};

use crate::packet::Packet;
use crate::pattern::Stream;
use crate::spans::Spans;
use cookies::Cookies;
use patience::Patience;

/// How late a timer of the engine may fire: the granularity of its wheel.
pub const TIMER_SLACK: Duration = Duration::from_millis(3);

/// Pacing may delay the first segment after an idle time by this much.
const IDLE_MAX: Duration = Duration::from_millis(20);

/// Actions of the application at this end so far.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub sends: Stream,
    pub written: u64,
    pub finished: bool,
    pub received: u64,
    /// Its connection is established and has not ended.
    pub lives: bool,
    /// It still reads, and data may arrive.
    pub reads: bool,
}

/// One connection of the engine, observed from the wire.
pub struct View {
    iss: u32,
    irs: Option<u32>,
    ours: Options,
    theirs: Option<Options>,
    sends: Stream,

    // Sending.
    /// Our last SYN carried an acknowledgement.
    answered_syn: bool,
    /// An older connection of the other side answered our last SYN, which is therefore sent again.
    misunderstood: bool,
    pub top: u64,
    una: u64,
    edge: u64,
    edge_max: u64,
    window_from: (i64, i64),
    fin_at: Option<u64>,
    last_value: Option<u32>,
    /// Whether the other side's acknowledgements ever indicated loss.
    hinted: bool,
    /// Whether its window was ever closed or shrank.
    squeezed: bool,
    /// Sequence numbers sent more than once, except window probes.
    pub again: u64,
    patience: Patience,
    /// TS.Recent.
    recent: u32,

    // Receiving.
    got: Spans,
    next: u64,
    last_ack: u64,
    advertised: u64,
    /// Right edge up to which the engine may accept data before its next segment advertises a window: after a
    /// cookie it computes the window anew (`cookies.rs`).
    restored: u64,
    /// How far roundings may have advanced the edge since the window was largest.
    rounded: u64,
    owed_since: Option<Instant>,
    /// Since when data could be sent and was not.
    idle_since: Option<Instant>,
    /// A RST was sent in either direction.
    over: bool,
}

/// Watches all connections of one engine.
pub struct Watch {
    pub views: BTreeMap<FourTuple, View>,
    config: StackConfig,
    cookies: Cookies,
    /// Views that ended, and the data they retransmitted.
    pub again: u64,
    /// SYNs sent again after an older connection of the other side answered, for example one in TIME-WAIT
    /// that the SYN's timestamp and sequence number do not follow (RFC 9293 §3.10.7.3 first check, RFC 6191
    /// §2).
    pub misunderstood_syns: u64,
    /// Memory was short at some time: windows may have shrunk, and bytes may have been dropped.
    pub memory_short: bool,
}

fn relative(seq: u32, to: u32, near: u64) -> i64 {
    let near_seq = to.wrapping_add(near as u32);
    near as i64 + i64::from(seq.wrapping_sub(near_seq) as i32)
}

impl Watch {
    pub fn new(config: StackConfig) -> Watch {
        let cookies = Cookies::default();
        let views = BTreeMap::new();
        Watch { views, config, cookies, again: 0, misunderstood_syns: 0, memory_short: false }
    }

    /// Observes a packet that is sent. `anonymous`: it belongs to no connection block (a reply to a stray
    /// segment or in TIME-WAIT).
    pub fn on_sent(&mut self, now: Instant, packet: &Packet, anonymous: bool, done: Option<Done>) {
        let flags = packet.header.flags;
        assert!(!(flags.syn() && (flags.fin() || flags.rst())), "SYN with FIN or RST");
        if flags.syn() {
            return match anonymous {
                false => self.on_syn_sent(packet, done),
                true => self.cookies.on_sent(packet, done.expect("a conversation opens it").sends),
            };
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
            return; // a reply in TIME-WAIT
        }
        assert!(!view.over, "a segment after RST");
        assert!(flags.ack(), "a segment without ACK");
        let done = done.expect("a connection has an application");
        view.check_options(packet, memory_short, &self.config);
        view.check_data(packet, &done, &self.config);
        view.check_patience(now, packet, &self.config);
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
                self.again += if before.squeezed { 0 } else { before.again };
                (view.irs, view.theirs) = (before.irs, before.theirs); // the SYN being answered arrived before
                view.recent = before.recent;
            }
            self.views.insert(packet.tuple, view);
        }
        let view = self.views.get_mut(&packet.tuple).expect("it was put there");
        assert!(packet.payload.is_empty() && view.una == 0, "SYN {view:?}");
        let again = view.top > 0 && flags.ack() == view.answered_syn;
        let misunderstood = core::mem::take(&mut view.misunderstood) && again;
        self.misunderstood_syns += u64::from(misunderstood);
        view.again += u64::from(again && !misunderstood);
        view.answered_syn = flags.ack();
        view.top = view.top.max(1);
        if flags.ack() {
            let irs = view.irs.expect("SYN/ACK without a SYN");
            assert_eq!(ack, irs.wrapping_add(1), "SYN/ACK does not acknowledge the SYN");
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
        view.advertised = view.advertised.max(1 + u64::from(window)); // RFC 7323 §2.2: not scaled
    }

    /// Observes a packet passed to the engine. `taken`: it was not dropped; `opens`: it opened a connection.
    pub fn on_delivered(&mut self, now: Instant, packet: &Packet, taken: bool, opens: bool) {
        let flags = packet.header.flags;
        let tuple = packet.at_receiver();
        if flags.syn() && !flags.rst() {
            return self.on_syn_delivered(packet, taken, opens);
        }
        let Some(view) = self.views.get_mut(&tuple) else { return };
        view.patience = Patience::default();
        let awaits_answer = view.top == 1 && view.una == 0 && !view.answered_syn && !flags.rst();
        view.misunderstood |=
            !taken && awaits_answer && flags.ack() && packet.header.ack != view.iss.wrapping_add(1);
        if !taken || view.theirs.is_none() {
            return;
        }
        if flags.rst() {
            view.over = true;
            return;
        }
        view.learn_value(packet);
        view.process_ack(packet);
        view.take_data(now, packet);
    }

    fn on_syn_delivered(&mut self, packet: &Packet, taken: bool, opens: bool) {
        let Repr { seq, options, flags, ack, window, .. } = packet.header;
        let tuple = packet.at_receiver();
        let view = self.views.entry(tuple).or_insert_with(|| View::new(0, Options::default(), Stream::NONE));
        if taken && !flags.ack() {
            self.cookies.on_syn_taken(packet);
        }
        let other = view.irs.is_none() || view.over || view.irs != Some(seq) || view.top == 0;
        let opens = opens || (taken && other);
        if opens {
            // If the view exists, only the other side is new (the answer to our SYN); otherwise ours follows.
            (view.irs, view.theirs) = (Some(seq), Some(options));
            view.recent = options.timestamps.map_or(0, |t| t.value);
        }
        if taken && flags.ack() && view.irs == Some(seq) && view.una == 0 {
            assert_eq!(ack, view.iss.wrapping_add(1), "the engine accepted a SYN/ACK for another SYN");
            view.una = 1;
            view.recent = options.timestamps.map_or(0, |t| t.value);
            (view.edge, view.window_from) = (1 + u64::from(window), (0, 1));
            view.edge_max = view.edge;
        }
    }

    /// The engine's retransmission timer fired for a connection.
    pub fn on_retransmission_timeout(&mut self, tuple: &FourTuple) {
        if let Some(view) = self.views.get_mut(tuple) {
            view.patience.sent_since_timeout = Some(0);
        }
    }

    /// The path MTU has decreased: data in flight is retransmitted.
    pub fn on_too_big(&mut self, tuple: &FourTuple) {
        if let Some(view) = self.views.get_mut(tuple) {
            view.patience = Patience::default();
        }
    }

    /// Between two steps, after everything permitted was sent: checks that acknowledgements are not delayed
    /// beyond the limits.
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

    /// Checks that data which fits the window, and needs no acknowledgement first, is sent.
    pub fn check_idle(&mut self, now: Instant, tuple: &FourTuple, done: &Done) {
        let Some(view) = self.views.get_mut(tuple) else { return };
        let end = 1 + done.written + u64::from(done.finished);
        let unsent = end.saturating_sub(view.top);
        let fits = unsent > 0 && view.edge.saturating_sub(view.top) >= unsent.min(1_460);
        if view.over || !done.lives || view.una == 0 || view.top > view.una || !fits {
            view.idle_since = None;
            return;
        }
        let since = *view.idle_since.get_or_insert(now);
        assert!(now - since <= IDLE_MAX, "{unsent} bytes wait to be sent since {since:?}: {view:?}");
    }

    /// Checks that a receiver that has read everything advertises a usable window (RFC 9293 §3.8.6.2.2).
    pub fn check_window(&self, tuple: &FourTuple, done: &Done) {
        let Some(view) = self.views.get(tuple) else { return };
        let unread = (view.next - 1).saturating_sub(done.received);
        if self.memory_short || view.over || !done.reads || unread > 0 || view.irs.is_none() {
            return;
        }
        let (window, most) =
            (view.advertised - view.next.min(view.advertised), u64::from(self.config.receive_window_max));
        assert!(
            window >= self.mss_of(tuple).min(most / 4),
            "a window of {window} bytes is advertised: {view:?}"
        );
    }

    fn mss_of(&self, tuple: &FourTuple) -> u64 {
        u64::from(if tuple.local.is_ipv4() { self.config.mss_v4 } else { self.config.mss_v6 })
    }

    /// Sequence numbers sent twice on connections whose window never shrank.
    pub fn needless(&self) -> u64 {
        let views = self.views.values().filter(|view| !view.squeezed);
        self.again + views.map(|view| view.again).sum::<u64>()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let View { top, una, edge, edge_max, fin_at, again, next, last_ack, advertised, over, .. } = self;
        write!(f, "sent {una}..{top} window to {edge} (most {edge_max}) fin {fin_at:?} again {again} | ")?;
        write!(
            f,
            "received {next} acknowledged {last_ack} advertised {advertised} {:?} over {over}",
            self.got
        )
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
            misunderstood: false,
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
            patience: Patience::default(),
            recent: 0,
            got: Spans::default(),
            next: 1,
            last_ack: 0,
            advertised: 1,
            restored: 0,
            rounded: 0,
            owed_since: None,
            idle_since: None,
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

    /// Sequence numbers sent and not yet acknowledged.
    pub fn outstanding(&self) -> u64 {
        self.top - self.una.min(self.top)
    }
}

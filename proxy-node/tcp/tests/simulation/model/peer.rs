//! One connection of the model: handshake, segments in the order of RFC 9293 §3.10.7, close.

use csp_types::{FourTuple, Instant};
use csp_wire::tcp::{Flags, Options, Repr, Timestamps};

use super::receiver::Receiver;
use super::sender::{SYN_TRIES, Sender, TRIES};
use super::{Event, Shared};
use crate::packet::{CE, NOT_ECT, Packet, headers_len};

const ECT_0: u8 = 2;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum State {
    SynSent,
    SynReceived,
    /// ESTABLISHED to LAST-ACK: the sender and receiver halves have the details.
    Open,
    TimeWait,
    Gone,
}

pub struct Peer {
    id: usize,
    pub tuple: FourTuple,
    pub state: State,
    passive: bool,
    pub sender: Sender,
    pub receiver: Receiver,
    sack: bool,
    timestamps: bool,
    ecn: bool,
    scaling: bool,
    send_shift: u8,
    clock_offset: u32,
    recent: u32,
    /// ECN: CE was received, and CWR not since.
    echo: bool,
    finish_reported: bool,
    /// The application has closed.
    closed: bool,
    /// Both sides finished.
    done: bool,
    over: bool,
    remove_at: Option<Instant>,
}

impl Peer {
    pub fn new(id: usize, tuple: FourTuple, iss: u32, passive: bool, shared: &Shared) -> Peer {
        Peer {
            id,
            tuple,
            state: if passive { State::SynReceived } else { State::SynSent },
            passive,
            sender: Sender::new(iss, &shared.manners),
            receiver: Receiver::default(),
            sack: shared.manners.sack,
            timestamps: shared.manners.timestamps,
            ecn: shared.manners.ecn,
            scaling: shared.manners.window_scale.is_some(),
            send_shift: 0,
            clock_offset: 0xfff0_0000, // one clock for successive connections of the same addresses
            recent: 0,
            echo: false,
            finish_reported: false,
            closed: false,
            done: false,
            over: false,
            remove_at: None,
        }
    }

    fn report(&mut self, shared: &mut Shared, event: Event) {
        if !self.over {
            shared.events.push_back((self.id, event));
        }
    }

    fn end(&mut self, shared: &mut Shared, event: Event) {
        // A passive connection is not reported before it is established.
        if !(self.passive && self.state == State::SynReceived) {
            self.report(shared, event);
        }
        self.over = true;
        self.state = State::Gone;
    }

    fn clock(&self, shared: &Shared) -> u32 {
        self.clock_offset.wrapping_add((shared.now.as_nanos() / 1_000_000) as u32)
    }

    /// Sends a segment at `position`.
    fn send(&mut self, shared: &mut Shared, flags: Flags, position: u64, payload: Vec<u8>, ecn: u8) {
        let syn = flags.syn();
        let manners = shared.manners;
        let mut options = Options::default();
        if self.timestamps {
            options.timestamps = Some(Timestamps { value: self.clock(shared), echo: self.recent });
        }
        if syn {
            options.mss = Some(manners.mss);
            options.sack_permitted = self.sack;
            options.window_scale = manners.window_scale.filter(|_| self.scaling);
        } else if self.sack && !flags.rst() {
            options.sack = self.receiver.sack_blocks();
        }
        let header = Repr {
            source_port: self.tuple.local.port(),
            destination_port: self.tuple.remote.port(),
            seq: self.sender.seq(position),
            ack: if flags.ack() { self.receiver.ack() } else { 0 },
            flags,
            window: match flags.ack() {
                true => self.receiver.window(&manners, &mut shared.random, syn),
                false => manners.buffer.min(0xffff) as u16,
            },
            options,
        };
        if flags.ack() {
            self.receiver.on_acknowledged();
        }
        shared.out.push_back(Packet {
            tuple: self.tuple,
            header,
            payload,
            ecn,
            coalesced: 1,
            segment_size: 0,
        });
    }

    pub fn send_syn(&mut self, shared: &mut Shared) {
        let mut flags = Flags::SYN;
        if self.state == State::SynReceived {
            flags |= Flags::ACK;
            if self.ecn {
                flags |= Flags::ECE;
            }
        } else if self.ecn {
            flags |= Flags::ECE | Flags::CWR;
        }
        self.send(shared, flags, 0, Vec::new(), NOT_ECT);
        self.sender.on_sent(shared.now, 1);
    }

    /// A pure acknowledgement; after the window shrank, its sequence number is one within the window.
    fn acknowledge(&mut self, shared: &mut Shared) {
        let at = self.sender.top.min(self.sender.edge.max(self.sender.una));
        let flags = if self.echo { Flags::ACK | Flags::ECE } else { Flags::ACK };
        self.send(shared, flags, at, Vec::new(), NOT_ECT);
    }

    /// Processes a SYN for a listener.
    pub fn accept(&mut self, shared: &mut Shared, packet: &Packet) {
        self.agree(shared, packet);
        self.send_syn(shared);
    }

    fn agree(&mut self, shared: &mut Shared, packet: &Packet) {
        let manners = shared.manners;
        let Repr { options, flags, seq, window, .. } = packet.header;
        self.receiver.start(seq, &manners);
        self.sack &= options.sack_permitted;
        self.timestamps &= options.timestamps.is_some();
        self.recent = options.timestamps.map_or(0, |t| t.value);
        self.scaling &= options.window_scale.is_some();
        if let (Some(theirs), Some(ours)) = (options.window_scale, manners.window_scale) {
            (self.send_shift, self.receiver.shift) = (theirs, ours);
        }
        self.ecn &= match flags.ack() {
            true => flags.contains(Flags::ECE) && !flags.contains(Flags::CWR),
            false => flags.contains(Flags::ECE | Flags::CWR),
        };
        let peer_mss = options.mss.unwrap_or(if self.tuple.local.is_ipv4() { 536 } else { 1220 });
        let mss = u64::from(peer_mss.min(manners.mss).max(64)) - if self.timestamps { 12 } else { 0 };
        self.sender.start(&manners, mss);
        self.sender.take_window(0, 0, u64::from(window));
        // A SYN's window is not scaled, and its acknowledgement number is at most 1.
        self.sender.edge = 1 + u64::from(window);
    }

    /// The sequence number after everything that was sent.
    pub fn sequence_end(&self) -> u32 {
        self.sender.seq(self.sender.top)
    }

    /// Whether a SYN may replace an old connection (RFC 9293 §3.10.7.4, RFC 6191 §2).
    pub fn gives_way_to(&self, packet: &Packet) -> bool {
        if self.state != State::TimeWait {
            return false;
        }
        match packet.header.options.timestamps {
            Some(t) if self.timestamps && t.value != self.recent => {
                (t.value.wrapping_sub(self.recent) as i32) > 0
            }
            _ => self.receiver.position(packet.header.seq) > self.receiver.next as i64,
        }
    }

    pub fn on_packet(&mut self, shared: &mut Shared, packet: &Packet) {
        match self.state {
            State::Gone => {}
            State::SynSent => self.on_packet_syn_sent(shared, packet),
            _ => self.on_packet_synchronised(shared, packet),
        }
    }

    fn on_packet_syn_sent(&mut self, shared: &mut Shared, packet: &Packet) {
        let Repr { flags, ack, .. } = packet.header;
        let ours = !flags.ack() || self.sender.position(ack) == 1;
        if flags.rst() {
            if flags.ack() && ours {
                self.end(shared, Event::Refused);
            }
            return;
        }
        if !ours || !flags.syn() {
            return; // the other side's timers recover
        }
        self.agree(shared, packet);
        if flags.ack() {
            self.establish(shared);
            self.acknowledge(shared);
        } else {
            self.state = State::SynReceived; // simultaneous open
            self.send_syn(shared);
        }
    }

    fn establish(&mut self, shared: &mut Shared) {
        self.state = State::Open;
        self.sender.on_ack(shared.now, 1, false);
        self.report(shared, Event::Established { passive: self.passive });
    }

    fn on_packet_synchronised(&mut self, shared: &mut Shared, packet: &Packet) {
        let Repr { flags, seq, ack, window, options, .. } = packet.header;
        let at = self.receiver.position(seq);
        if self.state == State::SynReceived && flags.syn() && at == 0 {
            if !flags.ack() {
                return self.send_syn(shared);
            }
            if self.sender.position(ack) == 1 {
                self.sender.edge = 1 + u64::from(window); // SYN/ACK of a simultaneous open
                self.establish(shared);
            }
            return self.acknowledge(shared);
        }
        if flags.rst() {
            if self.receiver.is_within(at) && self.state != State::TimeWait {
                let refused = self.state == State::SynReceived && !self.passive;
                self.end(shared, if refused { Event::Refused } else { Event::Reset });
            }
            return;
        }
        // RFC 7323 §5.3
        let old = options.timestamps.is_some_and(|t| (t.value.wrapping_sub(self.recent) as i32) < 0);
        if (self.timestamps && old)
            || !self.receiver.is_acceptable(at, i64::from(packet.len()))
            || flags.syn()
        {
            if self.state != State::SynReceived {
                self.sender.on_sign_of_life();
            }
            return self.acknowledge(shared);
        }
        if let Some(t) = options.timestamps.filter(|_| at <= self.receiver.last_ack_sent as i64) {
            self.recent = t.value;
        }
        if !flags.ack() {
            return;
        }
        let acked = self.sender.position(ack);
        if self.state == State::SynReceived && acked != 1 {
            return shared.refuse(packet); // of another connection's SYN/ACK (RFC 9293 §3.10.7.4)
        }
        if acked > self.sender.top as i64 {
            return self.acknowledge(shared);
        }
        self.sender.on_sign_of_life();
        if self.state == State::SynReceived {
            self.establish(shared);
        }
        self.process_ack(shared, packet, at, acked);
        self.take_data(shared, packet, at);
        self.look_for_the_end(shared);
    }

    fn process_ack(&mut self, shared: &mut Shared, packet: &Packet, at: i64, acked: i64) {
        if acked < self.sender.una as i64 {
            return;
        }
        let acked = acked as u64;
        let window = u64::from(packet.header.window) << self.send_shift;
        let changed = self.sender.take_window(at.max(0) as u64, acked, window);
        if self.ecn && packet.header.flags.contains(Flags::ECE) {
            self.sender.on_congestion_echo();
        }
        self.sender.on_ack(shared.now, acked, packet.len() == 0 && !changed);
    }

    fn take_data(&mut self, shared: &mut Shared, packet: &Packet, at: i64) {
        if packet.len() == 0 {
            return;
        }
        if self.ecn {
            self.echo &= !packet.header.flags.contains(Flags::CWR);
            self.echo |= packet.ecn == CE;
        }
        if self.receiver.finished {
            self.receiver.ack_now = true;
            return;
        }
        let manners = shared.manners;
        let fin = packet.header.flags.fin();
        let more = self.receiver.take(&manners, &mut shared.random, at, &packet.payload, fin);
        if more > 0 && self.closed {
            return self.reset(shared, Event::DataAfterClose);
        }
        self.receiver.count_segment(&manners, shared.now);
        if more > 0 {
            self.report(shared, Event::Readable);
        }
        if self.receiver.finished && !self.finish_reported {
            self.finish_reported = true;
            self.report(shared, Event::PeerFinished);
        }
    }

    /// Ends the connection if both sides have finished.
    fn look_for_the_end(&mut self, shared: &mut Shared) {
        if self.state != State::Open || !self.receiver.finished || !self.sender.fin_is_acknowledged() {
            return;
        }
        self.state = State::TimeWait;
        self.done = true;
        self.remove_at = Some(shared.now + shared.manners.time_wait);
        self.report_closed(shared);
    }

    fn report_closed(&mut self, shared: &mut Shared) {
        if self.done && self.receiver.unread() == 0 {
            self.report(shared, Event::Closed);
            self.over = true;
        }
    }

    pub fn write(&mut self, data: &[u8]) -> usize {
        self.sender.write(data)
    }

    pub fn read(&mut self, shared: &mut Shared, max: usize, f: &mut dyn FnMut(&[u8]) -> usize) -> usize {
        let taken = self.receiver.read(max, f);
        if taken > 0 && self.state == State::Open && self.receiver.has_window_update(&shared.manners) {
            self.receiver.ack_now = true;
        }
        self.report_closed(shared);
        taken
    }

    pub fn close(&mut self, shared: &mut Shared) {
        self.closed = true;
        if self.receiver.unread() > 0 {
            return self.reset(shared, Event::DataAfterClose);
        }
        self.sender.fin = true;
    }

    pub fn abort(&mut self, shared: &mut Shared) {
        self.over = true;
        self.reset(shared, Event::Reset);
    }

    fn reset(&mut self, shared: &mut Shared, event: Event) {
        if matches!(self.state, State::Open | State::SynReceived) {
            let at = self.sender.top;
            self.send(shared, Flags::RST | Flags::ACK, at, Vec::new(), NOT_ECT);
        }
        self.end(shared, event);
    }

    pub fn on_too_big(&mut self, shared: &mut Shared, mtu: usize) {
        let mss = (mtu - headers_len(&self.tuple)) as u64 - if self.timestamps { 12 } else { 0 };
        if mss < self.sender.mss && self.state == State::Open {
            self.sender.mss = mss;
            self.sender.nxt = self.sender.una; // RFC 1191 §6.4
            self.sender.arm(shared.now);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        if self.state == State::TimeWait {
            return self.remove_at;
        }
        [self.sender.deadline, self.receiver.ack_at].into_iter().flatten().min()
    }

    pub fn on_timeout(&mut self, shared: &mut Shared) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= shared.now);
        if due(self.remove_at) {
            self.report_closed(shared);
            self.state = State::Gone;
            return;
        }
        if due(self.receiver.ack_at) {
            self.receiver.ack_now = true;
        }
        if self.state == State::TimeWait || !due(self.sender.deadline) {
            return;
        }
        let probes = self.state == State::Open && self.sender.is_held_back();
        let most = match self.state {
            State::SynReceived if self.passive => SYN_TRIES,
            _ => TRIES,
        };
        if self.sender.on_timeout(shared.now, most) {
            return self.reset(shared, Event::TimedOut);
        }
        match self.state {
            State::SynSent | State::SynReceived => self.send_syn(shared),
            // RFC 9293 §3.8.6.1: one octet into the closed window.
            State::Open if probes => self.send_stretch(shared, self.sender.una, self.sender.una + 1),
            _ => {}
        }
    }

    fn send_stretch(&mut self, shared: &mut Shared, from: u64, to: u64) {
        let (payload, fin) = self.sender.bytes(from, to);
        let mut flags = Flags::ACK;
        if fin {
            flags |= Flags::FIN;
        }
        if !payload.is_empty() && to >= self.sender.data_end() {
            flags |= Flags::PSH;
        }
        if self.echo {
            flags |= Flags::ECE;
        }
        let new = from >= self.sender.top && !payload.is_empty();
        if new && core::mem::take(&mut self.sender.cwr_due) {
            flags |= Flags::CWR;
        }
        // RFC 3168 §6.1.5: not on retransmissions.
        let ecn = if self.ecn && new { ECT_0 } else { NOT_ECT };
        self.send(shared, flags, from, payload, ecn);
        let held_back = self.sender.edge <= from;
        let nxt = self.sender.nxt;
        self.sender.on_sent(shared.now, to);
        if held_back {
            self.sender.nxt = nxt; // a probe
        }
    }

    /// Sends everything that may be sent.
    pub fn transmit(&mut self, shared: &mut Shared) {
        if self.state == State::Open {
            if core::mem::take(&mut self.sender.again) && self.sender.una < self.sender.end() {
                let end = self.sender.end().min(self.sender.una + self.sender.mss).min(self.sender.top);
                if end > self.sender.una {
                    self.send_stretch(shared, self.sender.una, end);
                }
            }
            let manners = shared.manners;
            while let Some((from, to)) = self.sender.next_stretch(&manners, &mut shared.random) {
                self.send_stretch(shared, from, to);
            }
            if self.sender.deadline.is_none() && self.sender.una < self.sender.end() {
                self.sender.arm(shared.now); // limited by the window
            }
        }
        if self.receiver.ack_now && matches!(self.state, State::Open | State::TimeWait) {
            self.acknowledge(shared);
        }
    }

    pub fn describe(&self) -> String {
        let (s, r) = (&self.sender, &self.receiver);
        format!(
            "model {:?} una {} nxt {} top {} end {} edge {} cwnd {} | next {} unread {} deadline {:?}",
            self.state,
            s.una,
            s.nxt,
            s.top,
            s.end(),
            s.edge,
            s.cwnd,
            r.next,
            r.unread(),
            self.deadline()
        )
    }
}

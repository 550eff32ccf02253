//! Application to application: a CONNECT to an address on which a process listens is answered by pairing two
//! flows, as the kernel does on its loopback interface. The client is connected before the server accepts;
//! beyond a full backlog clients wait. Bytes, windows and ends are passed on in both directions.

use super::*;

/// How much later than the CONNECT of the same process its LISTEN may come.
const LISTEN_MAY_BE_LATE: Duration = Duration::from_millis(30);
/// How long an offer stays unanswered while another process is idle.
const OFFER_PATIENCE: Duration = Duration::from_millis(20);
const TURN_MAX: Duration = Duration::from_millis(1);
/// What the stage may invent for clients that are bound to no port.
const FIRST_PORT: u16 = 33_000;

/// Connections between applications.
#[derive(Debug)]
pub struct Hairpin {
    next_port: u16,
    /// Server halves that no process was offered yet, oldest first.
    waiting: VecDeque<u32>,
    /// CONNECTs that found the backlog full.
    crowded: VecDeque<Connect>,
    /// CONNECTs to where nobody listens yet: LISTEN may be on its way on another link.
    doubtful: Vec<(Connect, Clock)>,
    /// Labels of offers that were withdrawn and that their processes may still use.
    void: BTreeMap<u32, LinkId>,
    made: u64,
    asked: u64,
}

impl Default for Hairpin {
    fn default() -> Self {
        Hairpin {
            next_port: FIRST_PORT,
            waiting: VecDeque::new(),
            crowded: VecDeque::new(),
            doubtful: Vec::new(),
            void: BTreeMap::new(),
            made: 0,
            asked: 0,
        }
    }
}

impl Listener {
    fn serves(&self, remote: SocketAddr) -> bool {
        let ip = self.address.ip();
        self.address.port() == remote.port() && (ip == remote.ip() || ip.is_unspecified())
    }

    /// Of listeners on one port the one with that address is offered a connection, else one of its family, as
    /// at the proxy.
    fn closeness(&self, local: SocketAddr) -> (bool, bool) {
        (self.address.ip() == local.ip(), self.address.is_ipv4() == local.is_ipv4())
    }

    fn closest(listeners: &[Listener], local: SocketAddr) -> Option<(bool, bool)> {
        listeners.iter().filter(|l| l.serves(local)).map(|l| l.closeness(local)).max()
    }
}

impl Flow {
    /// The listener that has not answered yet.
    fn unanswered(&self) -> Option<(LinkId, u32)> {
        let offered = self.offered.filter(|_| self.pair.is_some() && !self.accepted)?;
        Some((self.link?, offered.1))
    }

    /// In Linux' numbers, for its own application.
    pub(super) fn state(&self) -> u32 {
        match (self.pair.is_some(), self.end_sent, self.ended) {
            (true, true, true) => 7,
            (true, true, false) => 8,
            (true, false, true) => 5,
            _ => 1,
        }
    }
}

impl Proxy {
    /// From now on applications reach each other.
    pub fn pair_applications(&mut self) {
        self.hairpin = Some(Hairpin::default());
    }

    /// Connections asked for, refused ones too.
    pub fn pairs_asked(&self) -> u64 {
        self.hairpin.as_ref().map_or(0, |h| h.asked)
    }

    /// Connections made between applications.
    pub fn pairs_made(&self) -> u64 {
        self.hairpin.as_ref().map_or(0, |h| h.made)
    }

    /// Flows that are not over.
    pub fn flows_left(&self) -> usize {
        self.flows.len()
    }

    /// A CONNECT: refused, connected, or kept until there is room in the backlog.
    fn pair_up(&mut self, asked: Connect) {
        let backlog = self.listeners.iter().filter(|l| l.serves(asked.remote)).map(|l| l.backlog).max();
        let Some(backlog) = backlog else {
            self.hairpin.iter_mut().for_each(|h| h.doubtful.push((asked, Clock::now())));
            return;
        };
        let queued =
            |f: &&Flow| f.ends.is_some_and(|e| e.0 == asked.remote) && !f.accepted && f.handovers == 0;
        let crowded = self.flows.values().filter(queued).count() > backlog as usize;
        let Some(hairpin) = &mut self.hairpin else { return };
        if crowded {
            hairpin.crowded.push_back(asked);
            return;
        }
        let local = asked.local.unwrap_or_else(|| {
            hairpin.next_port = hairpin.next_port.checked_add(1).unwrap_or(FIRST_PORT);
            SocketAddr::new(asked.remote.ip(), hairpin.next_port)
        });
        hairpin.made += 1;
        let mut label = || self.labels.allocate().unwrap().to_wire();
        let (client, server) = (label(), label());
        hairpin.waiting.push_back(server);
        let ends = Some((asked.remote, local));
        self.flows.insert(server, Flow { pair: Some(client), ends, ..Flow::default() });
        let (link, ends) = (Some(asked.link), Some((local, asked.remote)));
        let flow = Flow { link, ends, accepted: true, window: asked.window, ..Flow::default() };
        self.flows.insert(client, Flow { pair: Some(server), ..flow });
        let payload = OpenPayload { local, remote: asked.remote, window: WINDOW };
        let header = MessageHeader::new(MessageKind::Connected, client, asked.request, 0);
        self.send_with(asked.link, header, &payload.emit());
    }

    /// Offers what waits to processes that take connections; what nobody listens for any more is reset.
    /// `begun`: before messages were received in this turn. An answer that waits here is not late, so a turn
    /// in which this thread was preempted withdraws nothing.
    pub(super) fn offer_waiting(&mut self, begun: Clock) {
        if begun.elapsed() < TURN_MAX {
            self.withdraw_unanswered(begun);
        }
        let mut unanswered: Vec<_> = self.flows.values().filter_map(Flow::unanswered).collect();
        let Some(hairpin) = &mut self.hairpin else { return };
        let crowded = std::mem::take(&mut hairpin.crowded);
        let waiting = std::mem::take(&mut hairpin.waiting);
        for label in waiting {
            let (local, remote) = self.flows[&label].ends.unwrap();
            let closest = Listener::closest(&self.listeners, local);
            let serving =
                self.listeners.iter_mut().filter(|l| l.serves(local) && Some(l.closeness(local)) == closest);
            let rank = |l: &&mut Listener| {
                (l.credit > 0, !unanswered.contains(&(l.link, l.id)), std::cmp::Reverse(l.opened))
            };
            let Some(listener) = serving.max_by_key(rank) else {
                self.ended_by_application(label, true);
                continue;
            };
            if listener.credit == 0 {
                self.hairpin.as_mut().unwrap().waiting.push_back(label);
                continue;
            }
            listener.credit -= 1;
            listener.opened += 1;
            let (link, id) = (listener.link, listener.id);
            unanswered.push((link, id));
            let flow = self.flows.get_mut(&label).unwrap();
            (flow.link, flow.offered) = (Some(link), Some((Clock::now(), id)));
            let payload = OpenPayload { local, remote, window: WINDOW };
            self.send_with(link, MessageHeader::new(MessageKind::Open, label, id, 0), &payload.emit());
        }
        crowded.into_iter().for_each(|asked| self.pair_up(asked));
        self.decide_doubtful();
    }

    /// What a busy process leaves unanswered goes to an idle one, as it does at the proxy.
    fn withdraw_unanswered(&mut self, now: Clock) {
        let late = |f: &Flow| {
            f.unanswered().is_some() && f.offered.is_some_and(|o| now.duration_since(o.0) > OFFER_PATIENCE)
        };
        let late: Vec<u32> = self.flows.iter().filter(|(_, f)| late(f)).map(|(label, _)| *label).collect();
        for label in late {
            let unanswered: Vec<_> = self.flows.values().filter_map(Flow::unanswered).collect();
            let local = self.flows[&label].ends.unwrap().0;
            let idle = |l: &&Listener| l.credit > 0 && !unanswered.contains(&(l.link, l.id));
            let (link, id) = self.flows[&label].unanswered().unwrap();
            let closest = Listener::closest(&self.listeners, local);
            let mut serving =
                self.listeners.iter().filter(|l| l.serves(local) && Some(l.closeness(local)) == closest);
            if !serving.any(|l| idle(&l)) {
                continue;
            }
            if let Some(busy) = self.listeners.iter_mut().find(|l| (l.link, l.id) == (link, id)) {
                busy.opened -= 1;
            }
            self.send_control(link, MessageKind::Reset, label, libc::ECONNRESET as u32);
            self.hairpin.as_mut().unwrap().void.insert(label, link);
            self.wait_again(label);
        }
    }

    /// Whether a message is about an offer that was withdrawn; its label is free when the process has
    /// answered.
    pub(super) fn is_void(&mut self, link: LinkId, header: &MessageHeader) -> bool {
        let Some(hairpin) = self.hairpin.as_mut().filter(|h| h.void.get(&header.id) == Some(&link)) else {
            return false;
        };
        if matches!(header.kind, MessageKind::Close | MessageKind::Reset | MessageKind::Refused) {
            hairpin.void.remove(&header.id);
            self.labels.release(FlowLabel::from_wire(header.id).unwrap());
        }
        true
    }

    /// A process is gone: it answers no more.
    pub(super) fn drop_void(&mut self, link: LinkId) {
        let Some(hairpin) = &mut self.hairpin else { return };
        for (label, _) in hairpin.void.extract_if(.., |_, of| *of == link) {
            self.labels.release(FlowLabel::from_wire(label).unwrap());
        }
    }

    /// Somebody listens by now, or it is certain that nobody does.
    fn decide_doubtful(&mut self) {
        let Some(hairpin) = &mut self.hairpin else { return };
        for (asked, since) in std::mem::take(&mut hairpin.doubtful) {
            if self.listeners.iter().any(|l| l.serves(asked.remote)) {
                self.pair_up(asked);
            } else if since.elapsed() > LISTEN_MAY_BE_LATE {
                self.connect_refused(asked, libc::ECONNREFUSED);
            } else {
                self.hairpin.iter_mut().for_each(|h| h.doubtful.push((asked, since)));
            }
        }
    }

    /// A CONNECT came.
    pub(super) fn connect_asked(&mut self, asked: Connect) {
        self.hairpin.iter_mut().for_each(|h| h.asked += 1);
        self.pair_up(asked);
    }

    /// A message of a flow that has a partner.
    pub(super) fn paired_message(&mut self, link: LinkId, message: &Message<'_>, partner: u32) {
        let header = message.header;
        let label = header.id;
        let flow = self.flows.get_mut(&label).unwrap();
        match header.kind {
            MessageKind::Accepted => {
                flow.accepted = true;
                flow.window = header.argument;
            }
            MessageKind::Refused => self.offered_in_vain(label),
            MessageKind::Data => self.pass_on(link, label, partner, message.payload),
            MessageKind::Credit => flow.window += header.argument,
            MessageKind::Shutdown => {
                flow.ended = true;
                self.flows.get_mut(&partner).unwrap().shutdown_after = true;
            }
            MessageKind::Close | MessageKind::Reset => {
                let unread = header.flags & CLOSE_UNREAD != 0 || flow.sent < flow.to_send.len();
                if !flow.reset_sent {
                    self.send_control(link, MessageKind::Close, label, 0);
                }
                self.ended_by_application(label, unread || header.kind == MessageKind::Reset);
            }
            other => panic!("{other:?}"),
        }
    }

    fn pass_on(&mut self, link: LinkId, label: u32, partner: u32, bytes: &[u8]) {
        let to = self.flows.get_mut(&partner).unwrap();
        if !to.closed {
            to.to_send.extend_from_slice(bytes);
            return;
        }
        // Data for a socket that is gone: the sender is reset. One that knew that the other ends gets EPIPE.
        let flow = self.flows.get_mut(&label).unwrap();
        let reason = if flow.end_sent { libc::EPIPE } else { libc::ECONNRESET };
        if !std::mem::replace(&mut flow.reset_sent, true) {
            self.send_control(link, MessageKind::Reset, label, reason as u32);
        }
    }

    /// A process gave a connection back that it had not accepted: others get it.
    fn offered_in_vain(&mut self, label: u32) {
        self.labels.release(FlowLabel::from_wire(label).unwrap());
        self.wait_again(label);
    }

    /// A connection waits for a process again, under a new label.
    fn wait_again(&mut self, label: u32) {
        let client = self.flows[&label].pair.unwrap();
        let flow = self.flows.remove(&label).unwrap();
        let again = self.labels.allocate().unwrap().to_wire();
        self.flows.insert(again, Flow { link: None, offered: None, ..flow });
        self.flows.get_mut(&client).unwrap().pair = Some(again);
        self.hairpin.as_mut().unwrap().waiting.push_front(again);
    }

    /// The application's half of a flow is over (closed, lost with its process, or never accepted): its
    /// partner is notified once it has all bytes.
    pub(super) fn ended_by_application(&mut self, label: u32, reset: bool) {
        let flow = self.flows.get_mut(&label).unwrap();
        flow.ended = true;
        flow.closed = true;
        flow.to_send.clear();
        flow.sent = 0;
        let partner = flow.pair.unwrap();
        let other = self.flows.get_mut(&partner).unwrap();
        if other.closed {
            for label in [label, partner] {
                self.flows.remove(&label);
                self.labels.release(FlowLabel::from_wire(label).unwrap());
            }
        } else if reset {
            other.reset_after = true;
        } else {
            other.shutdown_after = true;
        }
    }

    /// After the bytes that could be sent to a flow: its end, if there is one to report.
    pub(super) fn push_end(&mut self, label: u32, link: LinkId) {
        let flow = self.flows.get_mut(&label).unwrap();
        if flow.sent < flow.to_send.len() || flow.reset_sent {
            return;
        }
        if std::mem::take(&mut flow.shutdown_after) && !std::mem::replace(&mut flow.end_sent, true) {
            self.send_control(link, MessageKind::Shutdown, label, 0);
        }
        let flow = self.flows.get_mut(&label).unwrap();
        if flow.reset_after {
            flow.reset_sent = true;
            self.send_control(link, MessageKind::Reset, label, libc::ECONNRESET as u32);
        }
    }
}

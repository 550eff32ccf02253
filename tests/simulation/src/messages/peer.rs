//! A ZeroMQ peer as its plan has it, whatever its connection is: what it sends next, and what it has
//! received.

use std::collections::BTreeMap;

use csp_types::Duration;

use super::plan::{self, Leaves, PeerPlan, Place, Role};
use super::stamps::{self, Stamp};
use super::zmtp::{Received, ZmtpClient};

/// Time within which a receiver that was deaf begins to receive what waited for it.
const AWAKE: Duration = Duration::from_secs(1);

/// How far a peer's connection is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// It has not connected.
    Waits,
    /// Its connection is open, or being opened.
    Open,
    /// It has closed or reset its connection, as planned.
    Left,
    /// The broker has ended it.
    Ended,
    /// The connection failed, for this reason.
    Failed(String),
}

/// What a peer is to do with its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Parting {
    Close,
    Reset,
}

pub(super) struct Peer {
    /// Its number, which its messages have.
    pub(super) number: u32,
    pub(super) plan: PeerPlan,
    pub(super) stage: Stage,
    zmtp: ZmtpClient,
    /// The handshake is complete.
    pub(super) ready: bool,
    /// Messages that it has begun to write.
    pub(super) sent: u32,
    /// The late receivers are there: a late sender may connect.
    pub(super) released: bool,
    /// When it was connected, relative to the senders' start.
    pub(super) began: Duration,
    /// Numbers of the messages received, in order, by sender.
    pub(super) got: BTreeMap<u32, Vec<u32>>,
    /// Its channel has a handler that stamps messages; what it has stamped, in the order of arrival.
    pub(super) is_stamped: bool,
    pub(super) stamps: Vec<Stamp>,
    /// Received messages, and when the last one was.
    pub(super) received: u64,
    pub(super) last: Duration,
    /// Bytes read and written.
    pub(super) bytes: u64,
    /// What it has received that nobody sent.
    pub(super) wrong: Vec<String>,
    /// It is to leave now, because the run is over.
    pub(super) is_last: bool,
}

impl Peer {
    pub(super) fn new(number: u32, plan: PeerPlan, is_push: bool) -> Self {
        let socket = match (plan.sends(), is_push) {
            (true, false) => ["PUB", "XPUB"][number as usize % 2],
            (false, false) => ["SUB", "XSUB"][number as usize % 2],
            (true, true) => "PUSH",
            (false, true) => "PULL",
        };
        Peer {
            zmtp: ZmtpClient::new(socket, plan.minor),
            number,
            plan,
            stage: Stage::Waits,
            ready: false,
            sent: 0,
            released: false,
            began: Duration::ZERO,
            got: BTreeMap::new(),
            is_stamped: false,
            stamps: Vec::new(),
            received: 0,
            last: Duration::ZERO,
            bytes: 0,
            wrong: Vec::new(),
            is_last: false,
        }
    }

    /// Returns whether it connects now; `since`: the time since the senders' start, if that was.
    pub(super) fn connects(&self, since: Option<Duration>) -> bool {
        let due = match (self.plan.start, since) {
            (None, _) => true,
            (Some(start), Some(since)) => since >= start,
            (Some(_), None) => false,
        };
        self.stage == Stage::Waits && due && (self.released || !self.plan.late || !self.plan.sends())
    }

    /// Returns whether it reads.
    pub(super) fn reads(&self, since: Duration) -> bool {
        let Role::Receives { deaf: Some((from, until)), .. } = self.plan.role else { return true };
        since < from || since >= until
    }

    /// Processes bytes that it has read. `messages`: the senders' lengths and topics, by number.
    pub(super) fn take(&mut self, time: Duration, bytes: &[u8], senders: &[PeerPlan]) {
        self.bytes += bytes.len() as u64;
        self.zmtp.feed(bytes);
        while let Some(received) = self.zmtp.poll() {
            match received {
                Received::Ready => {
                    self.ready = true;
                    if let Role::Receives { topics, .. } = &self.plan.role {
                        topics.iter().for_each(|topic| self.zmtp.subscribe(topic));
                    }
                }
                Received::Subscribe(topic) if self.plan.sends() && topic.is_empty() => {}
                Received::Subscribe(topic) => self.wrong.push(format!("asked for {topic:?}")),
                Received::Message(frames) => {
                    self.last = time;
                    self.on_message(&frames, senders);
                }
            }
        }
        self.wrong.extend(self.zmtp.wrong.take());
    }

    fn on_message(&mut self, mut frames: &[Vec<u8>], senders: &[PeerPlan]) {
        let mut stamped = None;
        if self.is_stamped {
            let Some((last, rest)) = frames.split_last() else { return };
            (frames, stamped) = (rest, stamps::read(last));
            if stamped.is_none() {
                return self.wrong.push(format!("the handler has not stamped the message: {last:?}"));
            }
        }
        let Role::Receives { topics, .. } = &self.plan.role else {
            return self.wrong.push(format!("a sender received {frames:?}"));
        };
        let known = plan::identify(frames)
            .and_then(|(sender, number)| Some((sender, number, senders.get(sender as usize)?)));
        let Some((
            sender,
            number,
            PeerPlan { channel, role: Role::Sends { messages, len_max, topics: theirs, .. }, .. },
        )) = known
        else {
            return self.wrong.push(format!("a message of nobody: {frames:?}"));
        };
        let wanted = topics.is_empty() || topics.iter().any(|topic| frames[0].starts_with(topic));
        if *channel != self.plan.channel || !wanted {
            self.wrong.push(format!("message {number} of {sender}, to which it has not subscribed"));
        }
        if number >= *messages || plan::message(sender, number, *len_max, theirs) != frames {
            self.wrong.push(format!("message {number} of {sender} is not as it was sent"));
        }
        self.received += 1;
        self.got.entry(sender).or_default().push(number);
        let stamp = |(letter, count, version)| Stamp { sender, number, letter, count, version };
        self.stamps.extend(stamped.map(stamp));
    }

    /// Returns bytes to write to the connection.
    pub(super) fn output(&mut self, since: Option<Duration>) -> &[u8] {
        if !self.zmtp.has_output()
            && self.ready
            && let Some(due) = self.due()
            && since.is_some_and(|since| since >= due)
            && let Role::Sends { len_max, topics, .. } = &self.plan.role
        {
            let message = plan::message(self.number, self.sent, *len_max, topics);
            self.zmtp.send(&message);
            self.sent += 1;
        }
        self.zmtp.output()
    }

    /// Records that so many of them were written.
    pub(super) fn wrote(&mut self, len: usize) {
        self.bytes += len as u64;
        self.zmtp.sent(len);
    }

    /// Returns when its next message is due.
    fn due(&self) -> Option<Duration> {
        let Role::Sends { messages, every, .. } = self.plan.role else { return None };
        (self.sent < messages)
            .then(|| self.began.max(self.plan.start.unwrap_or_default()) + every * self.sent)
    }

    /// Returns the number of messages that it has written as a whole.
    pub(super) fn whole(&self) -> u32 {
        let is_cut = self.sent > 0 && self.zmtp.has_output();
        self.sent - u32::from(is_cut)
    }

    /// Returns whether it has sent all its messages.
    pub(super) fn has_sent_all(&self) -> bool {
        self.due().is_none() && !self.zmtp.has_output()
    }

    /// Returns whether it does nothing more by itself until the end, but for receiving.
    pub(super) fn is_done(&self, since: Duration) -> bool {
        match (&self.stage, self.plan.leaves, &self.plan.role) {
            (Stage::Waits, ..) => false,
            (Stage::Open, Leaves::Closes(_) | Leaves::Resets(_), _) => false,
            (Stage::Open, _, Role::Sends { closes, .. }) => self.ready && self.has_sent_all() && !closes,
            (Stage::Open, _, Role::Receives { deaf, .. }) => {
                deaf.is_none_or(|(_, until)| since >= until + AWAKE) && self.is_between()
            }
            _ => true,
        }
    }

    /// Returns whether it is in this program.
    pub(super) fn is_inside(&self, program: usize) -> bool {
        self.plan.place == Place::Inside(program)
    }

    /// Returns whether and how it leaves now.
    pub(super) fn parts(&self, since: Duration) -> Option<Parting> {
        let is_done = self.has_sent_all();
        match (self.plan.leaves, &self.plan.role) {
            (Leaves::Closes(at), _) if since >= at => Some(Parting::Close),
            (Leaves::Resets(at), _) if since >= at => Some(Parting::Reset),
            (_, Role::Sends { closes: true, .. }) if is_done && self.ready => Some(Parting::Close),
            _ if self.is_last => Some(Parting::Close),
            _ => None,
        }
    }

    /// Returns when it does something by itself; some of these times may have passed.
    pub(super) fn wakes(&self) -> Vec<Duration> {
        let leaves = match self.plan.leaves {
            Leaves::Closes(at) | Leaves::Resets(at) => Some(at),
            Leaves::Last => None,
        };
        match self.stage {
            Stage::Waits => self.plan.start.into_iter().collect(),
            Stage::Open => {
                let hears = match self.plan.role {
                    Role::Receives { deaf: Some((from, until)), .. } => [Some(from), Some(until)],
                    _ => [None; 2],
                };
                let due = self.due().filter(|_| self.ready && !self.zmtp.has_output());
                [leaves, due].into_iter().chain(hears).flatten().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether nothing of a message is left in what it has received.
    pub(super) fn is_between(&self) -> bool {
        self.zmtp.is_between()
    }

    /// Describes it.
    pub(super) fn describe(&self) -> String {
        let got: usize = self.got.values().map(Vec::len).sum();
        format!(
            "peer {} {:?} {:?}: ready {}, sent {}, got {got}",
            self.number, self.plan, self.stage, self.ready, self.sent
        )
    }
}

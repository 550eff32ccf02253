//! What the connection itself has to send: greeting, handshake, PING and PONG. Each waits at most once, so
//! that a peer that sends and does not read costs no memory.

use crate::command::Context;

/// Most bytes that one call of [`Connection::transmit`](crate::Connection::transmit) writes; its buffer must
/// be as long.
pub const CONTROL_LEN_MAX: usize = 256;

/// The answer to a command of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// To HELLO.
    Welcome,
    /// To READY or INITIATE.
    Ready,
    /// To a peer that is refused, with the reason.
    Error(&'static str),
}

/// What is due, in the order in which it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Greeting,
    /// What stands before the mechanism.
    Version,
    /// The mechanism and what follows.
    Mechanism,
    Reply(Reply),
    Pong(Context),
    Ping,
}

/// How much of the greeting has been sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Greeting {
    Due(Due),
    /// The mechanism is chosen when the peer has named its own.
    Undecided,
    Sent,
}

/// What has not been sent yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    greeting: Greeting,
    reply: Option<Reply>,
    pong: Option<Context>,
    ping: bool,
}

impl Output {
    /// The greeting is due; of one that is `undecided` the part before the mechanism.
    pub const fn new(undecided: bool) -> Self {
        let greeting = Greeting::Due(if undecided { Due::Version } else { Due::Greeting });
        Output { greeting, reply: None, pong: None, ping: false }
    }

    /// The mechanism is known: what is left of the greeting is due.
    pub fn decided(&mut self) {
        self.greeting = match self.greeting {
            Greeting::Due(Due::Version) => Greeting::Due(Due::Greeting),
            Greeting::Undecided => Greeting::Due(Due::Mechanism),
            other => other,
        };
    }

    /// An answer of the handshake is due. The peer waits for the one before, so that there is none.
    pub fn reply(&mut self, reply: Reply) {
        self.reply = Some(reply);
    }

    /// A PONG is due. Returns whether it replaces one.
    pub fn pong(&mut self, context: Context) -> bool {
        self.pong.replace(context).is_some()
    }

    /// A PING is due.
    pub fn ping(&mut self) {
        self.ping = true;
    }

    /// The connection has failed: PING and PONG are not sent any more.
    pub fn fail(&mut self) {
        (self.pong, self.ping) = (None, false);
    }

    /// What is due first.
    pub fn first(&self) -> Option<Due> {
        if let Greeting::Due(part) = self.greeting {
            return Some(part);
        }
        let reply = self.reply.map(Due::Reply);
        reply.or(self.pong.map(Due::Pong)).or(self.ping.then_some(Due::Ping))
    }

    /// What was due first has been sent.
    pub fn sent(&mut self) {
        match self.first() {
            Some(Due::Greeting | Due::Mechanism) => self.greeting = Greeting::Sent,
            Some(Due::Version) => self.greeting = Greeting::Undecided,
            Some(Due::Reply(_)) => self.reply = None,
            Some(Due::Pong(_)) => self.pong = None,
            Some(Due::Ping) => self.ping = false,
            None => {}
        }
    }
}

//! What the connection itself has to send: greeting, handshake, PING and PONG. Each waits at most once, so that a peer
//! that sends and does not read costs no memory.

use crate::command::Context;

/// Most bytes that one call of [`Connection::transmit`](crate::Connection::transmit) writes; its buffer must be as long.
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
    Reply(Reply),
    Pong(Context),
    Ping,
}

/// What has not been sent yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    greeting: bool,
    reply: Option<Reply>,
    pong: Option<Context>,
    ping: bool,
}

impl Output {
    /// The greeting is due.
    pub const fn new() -> Self {
        Output { greeting: true, reply: None, pong: None, ping: false }
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
        if self.greeting {
            return Some(Due::Greeting);
        }
        let reply = self.reply.map(Due::Reply);
        reply.or(self.pong.map(Due::Pong)).or(self.ping.then_some(Due::Ping))
    }

    /// What was due first has been sent.
    pub fn sent(&mut self) {
        match self.first() {
            Some(Due::Greeting) => self.greeting = false,
            Some(Due::Reply(_)) => self.reply = None,
            Some(Due::Pong(_)) => self.pong = None,
            Some(Due::Ping) => self.ping = false,
            None => {}
        }
    }
}

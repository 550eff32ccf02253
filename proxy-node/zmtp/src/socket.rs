//! Socket types of ZeroMQ, and which of them talk to each other (37/ZMTP, "The Socket-Type Property").

/// A socket type that a peer announces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are those of the specification
pub enum SocketType {
    Pub,
    Xpub,
    Sub,
    Xsub,
    Push,
    Pull,
    Req,
    Rep,
    Dealer,
    Router,
    Pair,
}

impl SocketType {
    /// Every type, for tables and tests.
    pub const ALL: [SocketType; 11] = [
        SocketType::Pub,
        SocketType::Xpub,
        SocketType::Sub,
        SocketType::Xsub,
        SocketType::Push,
        SocketType::Pull,
        SocketType::Req,
        SocketType::Rep,
        SocketType::Dealer,
        SocketType::Router,
        SocketType::Pair,
    ];

    /// Returns the value of the Socket-Type property.
    pub const fn name(self) -> &'static str {
        match self {
            SocketType::Pub => "PUB",
            SocketType::Xpub => "XPUB",
            SocketType::Sub => "SUB",
            SocketType::Xsub => "XSUB",
            SocketType::Push => "PUSH",
            SocketType::Pull => "PULL",
            SocketType::Req => "REQ",
            SocketType::Rep => "REP",
            SocketType::Dealer => "DEALER",
            SocketType::Router => "ROUTER",
            SocketType::Pair => "PAIR",
        }
    }

    /// Returns the type with this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|socket| socket.name().as_bytes() == name)
    }
}

/// The socket type that the proxy speaks on a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // the names are those of the specification
pub enum LocalType {
    Pub,
    Xpub,
    Sub,
    Xsub,
    Push,
    Pull,
    Rep,
    Router,
    /// XSUB to publishers, XPUB to subscribers and ROUTER to those who ask, on one listener (the two sides of
    /// a forwarder, and its control).
    Forwarder,
    /// PULL to pushers, PUSH to pullers and ROUTER to those who ask, on one listener (the two sides of a
    /// streamer, and its control).
    Streamer,
}

impl LocalType {
    /// Returns the type that is spoken with a peer of type `peer`: one side, where the local type has two.
    #[must_use]
    pub const fn towards(self, peer: SocketType) -> LocalType {
        match (self, peer) {
            (LocalType::Forwarder | LocalType::Streamer, SocketType::Req | SocketType::Dealer) => {
                LocalType::Router
            }
            (LocalType::Forwarder, SocketType::Pub | SocketType::Xpub) => LocalType::Xsub,
            (LocalType::Forwarder, _) => LocalType::Xpub,
            (LocalType::Streamer, SocketType::Push) => LocalType::Pull,
            (LocalType::Streamer, _) => LocalType::Push,
            (local, _) => local,
        }
    }

    /// Returns the type as peers know it; of a local type with two sides, that of the side which receives
    /// messages.
    pub const fn socket_type(self) -> SocketType {
        match self {
            LocalType::Pub => SocketType::Pub,
            LocalType::Xpub => SocketType::Xpub,
            LocalType::Sub => SocketType::Sub,
            LocalType::Xsub | LocalType::Forwarder => SocketType::Xsub,
            LocalType::Push => SocketType::Push,
            LocalType::Pull | LocalType::Streamer => SocketType::Pull,
            LocalType::Rep => SocketType::Rep,
            LocalType::Router => SocketType::Router,
        }
    }

    /// Returns whether a peer of type `peer` may connect.
    pub const fn accepts(self, peer: SocketType) -> bool {
        match self {
            LocalType::Pub | LocalType::Xpub => matches!(peer, SocketType::Sub | SocketType::Xsub),
            LocalType::Sub | LocalType::Xsub => matches!(peer, SocketType::Pub | SocketType::Xpub),
            LocalType::Forwarder => matches!(
                peer,
                SocketType::Pub
                    | SocketType::Xpub
                    | SocketType::Sub
                    | SocketType::Xsub
                    | SocketType::Req
                    | SocketType::Dealer
            ),
            LocalType::Streamer => {
                matches!(peer, SocketType::Push | SocketType::Pull | SocketType::Req | SocketType::Dealer)
            }
            LocalType::Push => matches!(peer, SocketType::Pull),
            LocalType::Pull => matches!(peer, SocketType::Push),
            LocalType::Rep => matches!(peer, SocketType::Req | SocketType::Dealer),
            LocalType::Router => matches!(peer, SocketType::Req | SocketType::Dealer | SocketType::Router),
        }
    }

    /// Returns whether peers subscribe here.
    pub const fn is_publisher(self) -> bool {
        matches!(self, LocalType::Pub | LocalType::Xpub)
    }

    /// Returns whether a message of too many frames, or whose frames are too long together, is refused
    /// without its connection: what peers send before and after it is not lost. A peer that waits for an
    /// answer learns by the end of its connection that there is none.
    pub const fn refuses_alone(self) -> bool {
        !matches!(self, LocalType::Rep | LocalType::Router)
    }

    /// Returns whether the socket receives messages; those of peers that send nevertheless are dropped and
    /// counted.
    pub const fn receives(self) -> bool {
        !matches!(self, LocalType::Pub | LocalType::Push)
    }
}

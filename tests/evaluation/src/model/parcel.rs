//! What travels: packets between clients and proxy nodes, messages between proxy and application nodes.

/// Bytes of the IP and TCP headers of a packet. In the tunnel through the SAN they are compacted, and
/// the tunnel's own header takes the place that this frees (section 4.2 of the paper).
pub(crate) const IP_TCP: u32 = 40;
/// Bytes of the header of a message between proxy and application node.
pub(crate) const MESSAGE_HEADER: u32 = 16;

/// A packet or a message of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parcel {
    /// The transaction's number.
    pub transaction: u32,
    /// What it is.
    pub kind: Kind,
    /// Bytes of TCP payload, or of the message's contents.
    pub bytes: u32,
}

/// What a packet or a message is, in the order of a transaction (Fig. 4 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Client to proxy: opens the connection.
    Syn,
    /// Proxy to client.
    SynAck,
    /// Client to proxy: the third packet of the handshake.
    Established,
    /// Client to proxy: the request.
    Request,
    /// Proxy to application node: a connection was opened.
    Open,
    /// Proxy to application node: the request.
    Get,
    /// Application node to proxy: a part of the response.
    Response,
    /// Application node to proxy: the response is complete.
    Close,
    /// Proxy to client: a part of the response.
    Data,
    /// Client to proxy: acknowledges two packets of data.
    DataAck,
    /// Proxy to client: the response is complete.
    Fin,
    /// Client to proxy: acknowledges it and closes, too.
    ClientFin,
    /// Proxy to client: the last packet.
    LastAck,
}

/// Where a parcel goes to across the SAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To the network node, and on to the client.
    Client,
    /// To the proxy node, from a client.
    ProxyFromClient,
    /// To the proxy node, from an application node.
    ProxyFromApplication,
    /// To the application node.
    Application,
}

impl Kind {
    pub(crate) const fn destination(self) -> Destination {
        match self {
            Kind::Syn | Kind::Established | Kind::Request | Kind::DataAck | Kind::ClientFin => {
                Destination::ProxyFromClient
            }
            Kind::SynAck | Kind::Data | Kind::Fin | Kind::LastAck => Destination::Client,
            Kind::Open | Kind::Get => Destination::Application,
            Kind::Response | Kind::Close => Destination::ProxyFromApplication,
        }
    }
}

impl Parcel {
    /// Bytes that cross the SAN, without what its packets add.
    pub(crate) const fn san_bytes(self) -> u32 {
        match self.kind.destination() {
            Destination::Client | Destination::ProxyFromClient => self.bytes + IP_TCP,
            Destination::Application | Destination::ProxyFromApplication => self.bytes + MESSAGE_HEADER,
        }
    }
}

/// A connection with one request and its response.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    /// When the client sent its first packet.
    pub started: u64,
    /// Bytes of the response with its head.
    pub response: u32,
    /// Bytes of it that the client has.
    pub received: u32,
    /// Packets of data that the client has.
    pub packets: u32,
    /// Whether the client has the packet that ends the response.
    pub ended: bool,
    /// Its network node.
    pub network: u32,
    /// Its proxy node.
    pub proxy: u32,
    /// The proxy node's port for it.
    pub port: u32,
    /// Its application node.
    pub application: u32,
}

impl Transaction {
    pub(crate) const fn is_complete(&self) -> bool {
        self.ended && self.received == self.response
    }
}

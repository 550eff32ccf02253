//! Counters of the relay.

/// Totals since the agent started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages of processes passed to the SAN, and their bytes.
    pub out_messages: u64,
    /// See `out_messages`.
    pub out_bytes: u64,
    /// Messages from the SAN delivered into rings of processes, and their bytes.
    pub in_messages: u64,
    /// See `in_messages`.
    pub in_bytes: u64,
    /// Messages that waited because the SAN's send queue was full.
    pub waited: u64,
    /// VIs of processes that were forwarded.
    pub opened: u64,
    /// Proxy workers declared dead because their link fell silent.
    pub proxies_silent: u64,
    /// VIs that were refused or ended by the relay.
    pub refused: Refused,
}

/// Why VIs were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// The process's user may not use the agent, or HELLO's token belongs to another user.
    pub user: u64,
    /// The relay's table is full (`capacity.relay_vis`).
    pub full: u64,
    /// The process's user holds as many VIs as are free.
    pub share: u64,
    /// The process requested a deeper ring than the transport's channels have.
    pub depth: u64,
    /// The proxy worker is no longer listed.
    pub gone: u64,
    /// The process violated the rules of the ring or of HELLO; its VI over the SAN ended uncleanly.
    pub protocol: u64,
    /// The proxy worker cannot be reached over the SAN.
    pub san: u64,
}

/// One of the reasons in [`Refused`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    User,
    Full,
    Share,
    Depth,
    Gone,
    Protocol,
}

impl Refused {
    pub(super) const fn count(&mut self, reason: Reason) {
        let counter = match reason {
            Reason::User => &mut self.user,
            Reason::Full => &mut self.full,
            Reason::Share => &mut self.share,
            Reason::Depth => &mut self.depth,
            Reason::Gone => &mut self.gone,
            Reason::Protocol => &mut self.protocol,
        };
        *counter += 1;
    }

    /// Returns the counters with the names used in metrics.
    pub const fn by_reason(&self) -> [(&'static str, u64); 7] {
        [
            ("user", self.user),
            ("full", self.full),
            ("share", self.share),
            ("depth", self.depth),
            ("gone", self.gone),
            ("protocol", self.protocol),
            ("san", self.san),
        ]
    }
}

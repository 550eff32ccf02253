//! What the relay counts.

/// Totals since the agent started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages of processes that were handed to the SAN, and their bytes.
    pub out_messages: u64,
    /// See `out_messages`.
    pub out_bytes: u64,
    /// Messages from the SAN that were put into rings of processes, and their bytes.
    pub in_messages: u64,
    /// See `in_messages`.
    pub in_bytes: u64,
    /// Messages that found the SAN full and waited.
    pub waited: u64,
    /// VIs of processes that were forwarded.
    pub opened: u64,
    /// Proxy workers found dead by their silence.
    pub proxies_silent: u64,
    /// VIs that were not forwarded, or no longer.
    pub refused: Refused,
}

/// Why VIs were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// The process's user may not use the agent, or HELLO's token is another user's.
    pub user: u64,
    /// The relay's table is full (`capacity.relay_vis`).
    pub full: u64,
    /// The process's user holds as many VIs as are left for all others.
    pub share: u64,
    /// The process wanted a deeper ring than the transport's channels have.
    pub depth: u64,
    /// The proxy worker is not known any more.
    pub gone: u64,
    /// The process broke the rules of the ring or of HELLO; its VI over the SAN ended uncleanly.
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

    /// The numbers with the names that metrics give them.
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

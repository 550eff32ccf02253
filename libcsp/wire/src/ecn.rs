//! The two ECN bits that IPv4, IPv6 and the tunnel header carry.

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not use ECN.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, codepoint 1.
    Ect1 = 1,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 2,
    /// A router on the path was congested.
    Ce = 3,
}

impl Ecn {
    /// The codepoint in the two low bits of `bits`; other bits are ignored.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// The codepoint's two bits.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

//! The greeting (37/ZMTP, "Formal Grammar", "Version Negotiation").
//!
//! ```text
//!  0         1          9    10      11      12          32          33       64
//!  +----+----------+----+-------+-------+-----------+-----------+--------+
//!  | FF | padding  | 7F | major | minor | mechanism | as-server | filler |
//!  +----+----------+----+-------+-------+-----------+-----------+--------+
//! ```
//! The proxy sends its 64 bytes at once, or the first 12 and the others when it has the peer's mechanism, if
//! it accepts more than one. A peer may send its own in parts and wait between them for the proxy's: libzmq
//! sends 10 bytes, then the major version, then the rest. A peer of ZMTP 1.0 or 2.0 is refused at the first
//! byte that shows it, since it may never send 64.

use crate::cursor::Cursor;
use crate::error::ZmtpError;

/// Length of a greeting in bytes.
pub const GREETING_LEN: usize = 64;

const SIGNATURE_END: usize = 9;
const MAJOR_AT: usize = 10;
const MINOR_AT: usize = 11;
/// Start of the mechanism; what stands before it is the same for each.
pub(crate) const MECHANISM_AT: usize = 12;
const AS_SERVER_AT: usize = 32;

/// The versions that the proxy speaks.
const MAJOR: u8 = 3;
const MINOR: u8 = 1;

/// Security mechanism of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mechanism {
    /// No authentication, no encryption.
    Null,
    /// 25/ZMTP-CURVE.
    Curve,
}

impl Mechanism {
    const fn name(self) -> [u8; AS_SERVER_AT - MECHANISM_AT] {
        match self {
            Mechanism::Null => *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Mechanism::Curve => *b"CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }
}

/// Returns the proxy's greeting.
pub(crate) fn emit(mechanism: Mechanism) -> [u8; GREETING_LEN] {
    let mut out = [0; GREETING_LEN];
    out[0] = 0xff;
    // The padding as libzmq has it: the length of an empty identity in ZMTP 1.0.
    out[8] = 1;
    out[SIGNATURE_END] = 0x7f;
    out[MAJOR_AT] = MAJOR;
    out[MINOR_AT] = MINOR;
    out[MECHANISM_AT..AS_SERVER_AT].copy_from_slice(&mechanism.name());
    out[AS_SERVER_AT] = (mechanism == Mechanism::Curve).into();
    out
}

/// Reads the peer's greeting.
#[derive(Clone, Debug)]
pub(crate) struct GreetingReader {
    bytes: [u8; GREETING_LEN],
    have: usize,
}

impl GreetingReader {
    pub const fn new() -> Self {
        GreetingReader { bytes: [0; GREETING_LEN], have: 0 }
    }

    /// Bytes that the greeting lacks.
    pub fn lacks(&self) -> usize {
        GREETING_LEN - self.have
    }

    /// Reads on; returns the peer's minor version and its mechanism, one of `mechanisms`, when the greeting
    /// is complete. A peer of a higher major version is taken for one of this version, since it must speak
    /// this one.
    pub fn read<'a, I>(
        &mut self,
        input: &mut Cursor<'a, I>,
        mechanisms: &[Mechanism],
    ) -> Result<Option<(u8, Mechanism)>, ZmtpError>
    where
        I: Iterator<Item = &'a [u8]>,
    {
        self.have += self.bytes.get_mut(self.have..).map_or(0, |out| input.copy(out));
        let seen = |at: usize| (self.have > at).then(|| self.bytes[at]);
        if let Some(found) = seen(0).filter(|first| *first != 0xff) {
            return Err(ZmtpError::Signature { at: 0, found });
        }
        // Bit 0 of this byte is the LSB of the flags that ZMTP 1.0 has here: an identity of 255 bytes or
        // more.
        if let Some(found) = seen(SIGNATURE_END).filter(|last| last & 1 == 0) {
            return Err(ZmtpError::Signature { at: SIGNATURE_END as u64, found });
        }
        if let Some(found) = seen(MAJOR_AT).filter(|major| *major < MAJOR) {
            return Err(ZmtpError::Version { at: MAJOR_AT as u64, found });
        }
        if self.have < GREETING_LEN {
            return Ok(None);
        }
        let named = |mechanism: &&Mechanism| self.bytes[MECHANISM_AT..AS_SERVER_AT] == mechanism.name();
        let Some(&mechanism) = mechanisms.iter().find(named) else {
            return Err(ZmtpError::Mechanism { at: MECHANISM_AT as u64 });
        };
        if mechanism == Mechanism::Curve && self.bytes[AS_SERVER_AT] != 0 {
            return Err(ZmtpError::AsServer { at: AS_SERVER_AT as u64 });
        }
        let newer = self.bytes[MAJOR_AT] > MAJOR;
        Ok(Some((if newer { MINOR } else { self.bytes[MINOR_AT] }, mechanism)))
    }
}

//! Trailer sections: fields behind the last chunk (RFC 9112 §7.1.2), examined byte by byte where they lie.

use crate::fault::Fault;
use crate::head::FieldText;
use crate::limits::Limits;
use crate::name::{Name, is_token_byte, is_value_byte, trimmed};

/// How far a trailer section was examined. Its bytes stay unread until it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TrailerScan {
    at: At,
    /// Bytes examined.
    len: u32,
    fields: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum At {
    #[default]
    LineStart,
    Name,
    Value,
    Lf,
    LastLf,
    Complete,
}

impl TrailerScan {
    /// Examines the bytes of `slices` that were not examined before. Returns the length of the section once
    /// it is complete.
    pub(super) fn scan(&mut self, slices: &[&[u8]], limits: &Limits) -> Result<Option<usize>, Fault> {
        let mut skip = self.len as usize;
        for slice in slices {
            let rest = slice.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(slice.len());
            for byte in rest {
                if self.at == At::Complete {
                    break;
                }
                if self.len as usize >= limits.trailer_len_max {
                    return Err(Fault::TrailerTooLong);
                }
                self.len += 1;
                self.at = self.step(*byte, limits)?;
            }
        }
        Ok(self.is_complete().then_some(self.len as usize))
    }

    fn step(&mut self, byte: u8, limits: &Limits) -> Result<At, Fault> {
        match (self.at, byte) {
            (At::LineStart, b'\r') => Ok(At::LastLf),
            (At::LineStart, byte) if is_token_byte(byte) => {
                self.fields += 1;
                if usize::from(self.fields) > limits.fields_max {
                    return Err(Fault::TooManyFields);
                }
                Ok(At::Name)
            }
            (At::LineStart, b' ' | b'\t') => Err(Fault::Fold),
            (At::Name, byte) if is_token_byte(byte) => Ok(At::Name),
            (At::Name, b':') => Ok(At::Value),
            (At::Name, b' ' | b'\t') => Err(Fault::SpaceInName),
            (At::Value, b'\r') => Ok(At::Lf),
            (At::Lf, b'\n') => Ok(At::LineStart),
            (At::LastLf, b'\n') => Ok(At::Complete),
            (At::Lf | At::LastLf, _) => Err(Fault::BareCr),
            (_, b'\n') => Err(Fault::BareLf),
            (_, 0) => Err(Fault::Nul),
            (At::Value, byte) if is_value_byte(byte) => Ok(At::Value),
            _ => Err(Fault::Trailer),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.at == At::Complete
    }
}

/// Returns the fields of a complete trailer section that may be forwarded, in order: none that frames, routes
/// or authenticates a message (RFC 9110 §6.5.1).
pub fn trailer_fields(section: &[u8]) -> impl Iterator<Item = FieldText<'_>> {
    section.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let known = Name::of(name);
        let value = trimmed(value.strip_suffix(b"\r").unwrap_or(value));
        known.may_trail(name).then_some(FieldText { known, name, value })
    })
}

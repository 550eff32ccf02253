//! Values that are hidden: hashed with a key, masked or dropped.

use csp_formats::{Bytes, Field, Presence, Primitive, Scalar, Type, Value, WriteProblem, Writer};
use csp_queries::EmitError;
use siphasher::sip128::{Hasher128, SipHasher24};

/// The key of hashes. Whoever has it can try values until one has a given hash; without it nobody can.
#[derive(Clone, Default)]
pub(crate) struct Key(pub [u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// What is done to a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hide {
    /// A hash in its place: as many hexadecimal digits as there is room for, or a number of as many bits.
    Hash,
    /// All but the first bytes become asterisks.
    Mask(u32),
    /// Null, or zero or empty where there is no null.
    Drop,
}

/// Hexadecimal digits of a hash.
const DIGITS: usize = 32;
/// Bytes of variable data that a hash takes.
pub(crate) const HASH_LEN: u64 = DIGITS as u64;
const MASK: [u8; 64] = [b'*'; 64];

impl Key {
    fn hash(&self, parts: impl Iterator<Item = u8>) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        // In runs: the hash does not depend on how the bytes are cut.
        let (mut run, mut len) = ([0; 64], 0);
        for byte in parts {
            run[len] = byte;
            len += 1;
            if len == run.len() {
                std::hash::Hasher::write(&mut hasher, &run);
                len = 0;
            }
        }
        std::hash::Hasher::write(&mut hasher, &run[..len]);
        hasher.finish128().as_u128()
    }
}

fn digits(hash: u128) -> [u8; DIGITS] {
    core::array::from_fn(|at| {
        let digit = (hash >> (4 * (DIGITS - 1 - at))) as u8 & 15;
        if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
    })
}

impl Hide {
    /// Whether a field can be hidden so; `Err` says why not.
    pub fn check(self, field: &Field) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("\"{}\": {what}", field.name));
        if field.constant.is_some() {
            return wrong("a constant says nothing about anybody");
        }
        let encoded = match (&field.kind, self) {
            (_, Hide::Drop) => return Ok(()),
            (Type::Encoded(encoded), _) => encoded,
            _ => return wrong("only numbers and text can be hashed or masked; it can be dropped"),
        };
        let is_text = encoded.primitive == Primitive::Char;
        match self {
            Hide::Mask(_) if !(is_text && encoded.is_array()) => wrong("only text can be masked"),
            Hide::Hash if !is_text && encoded.is_array() => wrong("an array of numbers cannot be hashed"),
            Hide::Hash if is_text && !encoded.is_array() => wrong("one character cannot be hashed"),
            Hide::Hash if matches!(encoded.primitive, Primitive::Float | Primitive::Double) => {
                wrong("a floating-point number cannot be hashed")
            }
            Hide::Hash if encoded.min.is_some() || encoded.max.is_some() => {
                wrong("a hash would not keep to the range of the number")
            }
            _ => Ok(()),
        }
    }

    /// Writes a field.
    pub fn field(
        self,
        to: &Field,
        value: Value<'_>,
        writer: &mut Writer<'_, '_>,
        key: &Key,
    ) -> Result<(), EmitError> {
        match (self, value) {
            // A new block has null, or zero where there is no null.
            (Hide::Drop, _) => Ok(()),
            (_, Value::Null) if to.presence == Presence::Optional => Ok(()),
            (Hide::Hash, Value::Scalar(number)) => {
                let word = match number {
                    Scalar::Int(number) => number as u64,
                    other => other.unsigned().unwrap_or(0),
                };
                let hash = key.hash(word.to_le_bytes().into_iter()) as u64;
                Ok(writer.scalar(to, number_of(to, hash))?)
            }
            (Hide::Hash, Value::Text(bytes)) => {
                let digits = digits(key.hash(bytes.iter().take_while(|&byte| byte != 0)));
                let len = digits.len().min(to.size() as usize);
                Ok(writer.text(to, &digits[..len])?)
            }
            (Hide::Mask(shown), Value::Text(bytes)) => {
                // Longer text than a block may have does not exist.
                let mut text = [0; 256];
                let len = bytes.iter().take_while(|&byte| byte != 0).count();
                if len > text.len() {
                    let problem = WriteProblem::TooLong { len, max: text.len() as u64 };
                    return Err(EmitError::Result(csp_formats::WriteError {
                        field: to.name.clone(),
                        problem,
                    }));
                }
                let shown = shown as usize;
                let masked = bytes.iter().enumerate().map(|(at, byte)| if at < shown { byte } else { b'*' });
                text.iter_mut().zip(masked.take(len)).for_each(|(into, byte)| *into = byte);
                Ok(writer.text(to, &text[..len])?)
            }
            // The field has another type than was checked: it does not happen.
            _ => Ok(()),
        }
    }

    /// Writes variable data.
    pub fn data(
        self,
        to: usize,
        bytes: Bytes<'_>,
        writer: &mut Writer<'_, '_>,
        key: &Key,
    ) -> Result<(), EmitError> {
        match self {
            Hide::Drop => Ok(()),
            Hide::Hash => Ok(writer.data(to, [&digits(key.hash(bytes.iter()))[..]])?),
            Hide::Mask(shown) => {
                let shown = (shown as usize).min(bytes.len());
                let hidden = bytes.len() - shown;
                let clear = bytes.take(shown).unwrap_or(bytes);
                let masks = (0..hidden.div_ceil(MASK.len()))
                    .map(move |at| &MASK[..MASK.len().min(hidden - at * MASK.len())]);
                Ok(writer.data(to, clear.parts().chain(masks))?)
            }
        }
    }
}

/// A hash as a number of a field's width that does not stand for null.
fn number_of(field: &Field, hash: u64) -> Scalar {
    let Type::Encoded(encoded) = &field.kind else { return Scalar::UInt(hash) };
    let bits = 8 * encoded.primitive.size();
    let low = hash & (u64::MAX >> (64 - bits));
    let number = |low: u64| match encoded.primitive {
        Primitive::Int8 | Primitive::Int16 | Primitive::Int32 | Primitive::Int64 => {
            Scalar::Int(((low << (64 - bits)) as i64) >> (64 - bits))
        }
        _ => Scalar::UInt(low),
    };
    if number(low).same(encoded.null) { number(low ^ 1) } else { number(low) }
}

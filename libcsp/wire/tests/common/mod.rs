//! What the hostile-bytes tests share: damage to valid bytes, and what must hold of every error.
#![allow(dead_code, reason = "each test binary uses a part")]

use csp_wire::WireError;
use proptest::prelude::*;

/// One way to spoil bytes.
#[derive(Clone, Debug)]
pub enum Damage {
    /// Cut to this share (of 65536) of the length.
    Cut(u16),
    /// Flip this bit, counted modulo the number of bits.
    Flip(usize),
    /// Set the byte at this place (modulo the length).
    Set(usize, u8),
    /// Append these.
    Append(Vec<u8>),
    /// Overwrite two bytes at this place with this number, little- and big-endian lengths being what hurts
    /// most.
    Number(usize, u16),
}

/// Up to three damages.
pub fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let one = prop_oneof![
        any::<u16>().prop_map(Damage::Cut),
        any::<usize>().prop_map(Damage::Flip),
        (any::<usize>(), any::<u8>()).prop_map(|(at, value)| Damage::Set(at, value)),
        prop::collection::vec(any::<u8>(), 1..40).prop_map(Damage::Append),
        (0usize..64, any::<u16>()).prop_map(|(at, value)| Damage::Number(at, value)),
    ];
    prop::collection::vec(one, 1..4)
}

/// `bytes` after `damages`.
pub fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let len = bytes.len();
        match damage {
            Damage::Cut(share) => bytes.truncate((len * usize::from(*share)) >> 16),
            Damage::Append(more) => bytes.extend_from_slice(more),
            _ if len < 2 => {}
            Damage::Flip(bit) => bytes[bit / 8 % len] ^= 1 << (bit % 8),
            Damage::Set(at, value) => bytes[at % len] = *value,
            Damage::Number(at, value) => {
                bytes[at % (len - 1)..][..2].copy_from_slice(&value.to_be_bytes());
            }
        }
    }
    bytes
}

/// An error about `bytes` names a field, points into them (or right behind), and asks for more than is there.
pub fn check_error(error: WireError, bytes: &[u8]) {
    assert!(!error.what().is_empty());
    assert!(error.offset() <= bytes.len(), "{error:?} points behind {} bytes", bytes.len());
    if let WireError::Truncated { needed, .. } = error {
        assert!(needed > bytes.len(), "{error:?}, yet {} bytes are there", bytes.len());
    }
    assert!(
        !matches!(error, WireError::NoSpace { .. } | WireError::TooLarge { .. }),
        "{error:?} from a parser"
    );
    assert!(error.to_string().contains(error.what()));
}

/// Arbitrary bytes of every interesting length.
pub fn noise() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// Configuration: more cases than usual, failures kept next to the test so that they replay.
pub fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1024,
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource(
            "regressions",
        ))),
        ..ProptestConfig::default()
    }
}

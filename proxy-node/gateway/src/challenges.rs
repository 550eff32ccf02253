//! Answers to an ACME authority that asks whose a name is: http-01 (RFC 8555 §8.3).

use std::collections::BTreeMap;
use std::sync::Arc;

/// Where authorities ask, before the token.
const PLACE: &[u8] = b"/.well-known/acme-challenge/";

/// The challenges under way: what is answered for which token. Clones share them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Challenges(Option<Arc<BTreeMap<Vec<u8>, Vec<u8>>>>);

impl Challenges {
    /// Makes them of tokens and answers.
    pub fn new(all: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Self {
        let all: BTreeMap<_, _> = all.into_iter().collect();
        Challenges((!all.is_empty()).then(|| Arc::new(all)))
    }

    /// Returns the answer to a request for a path in its normal form. Other paths, and tokens that are not
    /// known, are the routes' matter.
    #[inline]
    pub(crate) fn answer(&self, path: &[u8]) -> Option<&[u8]> {
        let token = path.strip_prefix(PLACE).filter(|_| self.0.is_some())?;
        self.0.as_ref()?.get(token).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_tokens_are_answered() {
        let none = Challenges::new([]);
        assert_eq!(
            (none.answer(b"/.well-known/acme-challenge/"), none == Challenges::default()),
            (None, true)
        );
        let one = Challenges::new([(b"abc".to_vec(), b"abc.key".to_vec())]);
        assert_eq!(one.answer(b"/.well-known/acme-challenge/abc"), Some(&b"abc.key"[..]));
        for other in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/abcd", "/abc", "abc", "/"]
        {
            assert_eq!(one.answer(other.as_bytes()), None, "{other}");
        }
    }
}

//! Keys by which a repeated request is known (the header `Idempotency-Key`), with the answers to the first.
//! Pure: the time is an argument.

use std::time::Duration;

/// How long a key is remembered.
const LIFE: Duration = Duration::from_secs(600);
/// Keys remembered: in all, and of these of one caller.
const EACH_MAX: (usize, usize) = (1024, 64);
/// Longest key, in bytes.
pub(super) const KEY_LEN_MAX: usize = 128;
/// Longest answer that is kept, in bytes.
pub(super) const ANSWER_LEN_MAX: usize = 64 << 10;

/// An answer that is given again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    pub(super) status: u16,
    /// Content-Type; empty: none.
    pub(super) kind: String,
    pub(super) body: Vec<u8>,
}

/// What is known of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Nothing: the request is the first, and must be ended with [`Keys::end`].
    First,
    /// The first request is under way.
    UnderWay,
    /// The first request was another one.
    Other,
    /// The answer to the first request.
    Answered(Kept),
    /// As many requests with keys are under way as there is room for.
    Full,
}

/// The keys of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// In the order in which they came.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    who: String,
    key: String,
    /// SHA-256 of method, path, query and body.
    digest: [u8; 32],
    at: Duration,
    answer: Option<Kept>,
}

impl Keys {
    /// Looks at the key of a request, and remembers it if it is new.
    pub(super) fn begin(&mut self, who: &str, key: &str, digest: [u8; 32], now: Duration) -> Known {
        self.entries.retain(|entry| entry.answer.is_none() || now < entry.at + LIFE);
        if let Some(entry) = self.entries.iter().find(|entry| entry.who == who && entry.key == key) {
            return match (&entry.answer, entry.digest == digest) {
                (_, false) => Known::Other,
                (None, true) => Known::UnderWay,
                (Some(answer), true) => Known::Answered(answer.clone()),
            };
        }
        let of_caller = self.entries.iter().filter(|entry| entry.who == who).count();
        // A caller's oldest answers give way to its own; those of others only when all room is taken.
        if !(of_caller < EACH_MAX.1 || self.evict(|entry| entry.who == who))
            || !(self.entries.len() < EACH_MAX.0 || self.evict(|_| true))
        {
            return Known::Full;
        }
        let (who, key) = (who.to_owned(), key.to_owned());
        self.entries.push(Entry { who, key, digest, at: now, answer: None });
        Known::First
    }

    /// Keeps the answer to a request; without one the key is free again.
    pub(super) fn end(&mut self, who: &str, key: &str, answer: Option<Kept>) {
        let Some(at) = self.entries.iter().position(|entry| entry.who == who && entry.key == key) else {
            return;
        };
        match answer {
            Some(answer) => self.entries[at].answer = Some(answer),
            None => drop(self.entries.remove(at)),
        }
    }

    fn evict(&mut self, of: impl Fn(&Entry) -> bool) -> bool {
        let oldest = self.entries.iter().position(|entry| entry.answer.is_some() && of(entry));
        oldest.map(|at| self.entries.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn answer(text: &str) -> Kept {
        Kept { status: 200, kind: "text/plain".into(), body: text.as_bytes().to_vec() }
    }

    #[test]
    fn a_repeated_request_gets_the_first_answer_for_ten_minutes() {
        let mut keys = Keys::default();
        assert_eq!(keys.begin("alice", "k", [1; 32], at(0)), Known::First);
        assert_eq!(keys.begin("alice", "k", [1; 32], at(1)), Known::UnderWay);
        keys.end("alice", "k", Some(answer("done")));
        assert_eq!(keys.begin("alice", "k", [1; 32], at(2)), Known::Answered(answer("done")));
        assert_eq!(keys.begin("alice", "k", [2; 32], at(2)), Known::Other);
        assert_eq!(keys.begin("bob", "k", [2; 32], at(2)), Known::First, "a key is its caller's own");
        assert_eq!(keys.begin("alice", "k", [2; 32], at(600)), Known::First);
        keys.end("alice", "k", None);
        assert_eq!(
            keys.begin("alice", "k", [3; 32], at(601)),
            Known::First,
            "what failed may be tried again"
        );
    }

    #[test]
    fn one_caller_does_not_displace_others() {
        let mut keys = Keys::default();
        assert_eq!(keys.begin("bob", "his", [0; 32], at(0)), Known::First);
        keys.end("bob", "his", Some(answer("his")));
        for n in 0..1000 {
            assert_eq!(keys.begin("alice", &n.to_string(), [0; 32], at(1)), Known::First);
            keys.end("alice", &n.to_string(), Some(answer("")));
        }
        assert_eq!(keys.entries.len(), 1 + EACH_MAX.1);
        assert_eq!(keys.begin("bob", "his", [0; 32], at(2)), Known::Answered(answer("his")));
        for n in 0..2 * EACH_MAX.0 {
            keys.begin(&n.to_string(), "k", [0; 32], at(3));
        }
        assert_eq!(keys.entries.len(), EACH_MAX.0, "those under way stay, further ones are refused");
        assert_eq!(keys.begin("carol", "k", [0; 32], at(3)), Known::Full);
    }
}

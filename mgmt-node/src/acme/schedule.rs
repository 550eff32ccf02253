//! When a certificate is ordered: at once while it is not there, for other names or of another authority,
//! else at two thirds of its lifetime; later after failures, since authorities limit rates.

use csp_api::certificates::StoredCertificate;

/// Pause after the first failure, in seconds; it doubles with each further one. Let's Encrypt allows five
/// failures of a name in an hour.
const PAUSE_S: i64 = 120;
/// Longest pause after failures, in seconds.
const PAUSE_S_MAX: i64 = 6 * 3600;
/// Longest pause that an authority may ask for, in seconds.
const ASKED_S_MAX: i64 = 24 * 3600;
/// Pause after success, in seconds, unless the certificate is for less than twice as long.
const SUCCESS_S: i64 = 3600;

/// What became of the last orders of a certificate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attempts {
    /// Orders that failed one after another.
    pub failures: u32,
    /// No order before this time, in seconds since 1970.
    pub not_before_s: i64,
    /// Why the last one failed.
    pub error: String,
}

impl Attempts {
    /// Notes a failure. `fraction`, from 0 to 1, spreads orders that failed together; `asked_s`: the pause
    /// that the authority asks for.
    pub fn failed(&mut self, now_s: i64, error: String, fraction: f64, asked_s: i64) {
        self.failures = self.failures.saturating_add(1);
        let doubled = PAUSE_S.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(PAUSE_S_MAX);
        let pause = doubled + (doubled as f64 * fraction.clamp(0.0, 1.0) / 4.0) as i64;
        self.not_before_s = now_s.saturating_add(pause.max(asked_s.clamp(0, ASKED_S_MAX)));
        self.error = error;
    }
}

/// Returns when a certificate for names, of the authority with a directory, is ordered, in seconds since
/// 1970; 0: at once.
pub fn order_at_s(
    stored: Option<&StoredCertificate>,
    (names, directory): (&[String], &str),
    attempts: &Attempts,
    now_s: i64,
) -> i64 {
    let is_of = |of: &&StoredCertificate| {
        of.is_for(names) && (of.ordered.directory.is_empty() || *of.ordered.directory == *directory)
    };
    let due = stored.filter(is_of).map_or(0, |stored| renewal_s(stored).max(rest_s(stored, now_s)));
    // A pause that is longer than any comes from a clock that was set back since.
    let longest = now_s.saturating_add(ASKED_S_MAX.max(PAUSE_S_MAX / 4 * 5));
    if attempts.not_before_s > longest { due } else { due.max(attempts.not_before_s) }
}

/// Returns until when a certificate is not ordered again after success, whatever its times are: an authority
/// may issue what is due already.
fn rest_s(stored: &StoredCertificate, now_s: i64) -> i64 {
    let ordered_s = stored.ordered_s(now_s);
    if ordered_s == 0 {
        return 0;
    }
    let left = stored.not_after_s.saturating_sub(ordered_s).max(0);
    ordered_s.saturating_add((left / 3).max(SUCCESS_S.min(left / 2)))
}

/// Returns whether less than a sixth of a certificate's lifetime is left.
pub fn is_urgent(stored: &StoredCertificate, now_s: i64) -> bool {
    let lifetime = stored.not_after_s.saturating_sub(stored.not_before_s).max(0);
    stored.not_after_s.saturating_sub(now_s) < lifetime / 6
}

/// Returns two thirds of a certificate's lifetime, and up to a thirtieth more: the same for each leader, and
/// another one for each certificate, so that those of one day are not renewed at one moment.
fn renewal_s(stored: &StoredCertificate) -> i64 {
    let lifetime = stored.not_after_s.saturating_sub(stored.not_before_s).max(0);
    let digits = stored.sha256.get(..4).and_then(|digits| i64::from_str_radix(digits, 16).ok());
    let spread = lifetime / 30 * digits.unwrap_or(0) / 0xffff;
    stored.not_before_s.saturating_add(lifetime / 3 * 2).saturating_add(spread)
}

#[cfg(test)]
mod tests {
    use csp_api::certificates::Ordered;

    use super::*;

    const DAY: i64 = 86_400;

    fn stored(sha256: &str) -> StoredCertificate {
        StoredCertificate {
            name: "a".into(),
            sha256: sha256.into(),
            names: vec!["a.example".into()],
            issuer: "CN=x".into(),
            not_before_s: 1_000 * DAY,
            not_after_s: 1_090 * DAY,
            ordered: Ordered { at_s: 1_000 * DAY, directory: "https://x".into() },
        }
    }

    #[test]
    fn it_is_renewed_at_two_thirds_of_its_lifetime_and_a_little_later() {
        let names = ["a.example".to_owned()];
        let none = Attempts::default();
        let at = |of: &str| order_at_s(Some(&stored(of)), (&names, "https://x"), &none, 1_001 * DAY);
        assert_eq!(at("0000ab"), 1_060 * DAY);
        assert_eq!(at("ffffab"), 1_063 * DAY);
        assert_eq!(at("7fffab"), at("7fff00"), "each leader says the same");
        // One that is not there, or for other names, is ordered at once.
        assert_eq!(order_at_s(None, (&names, "https://x"), &none, 0), 0);
        let other = ["b.example".to_owned()];
        assert_eq!(order_at_s(Some(&stored("0")), (&other, "https://x"), &none, 0), 0);
        // So is one of another authority: staging, say.
        assert_eq!(order_at_s(Some(&stored("0")), (&names, "https://y"), &none, 0), 0);
    }

    #[test]
    fn one_that_is_due_when_it_is_issued_is_not_ordered_again_at_once() {
        assert!(is_urgent(&stored("0"), 1_076 * DAY) && !is_urgent(&stored("0"), 1_074 * DAY));
        let names = ["a.example".to_owned()];
        let late = |at_s| StoredCertificate {
            ordered: Ordered { at_s, directory: "https://x".into() },
            ..stored("0000")
        };
        let at = |of: &StoredCertificate, now_s| {
            order_at_s(Some(of), (&names, "https://x"), &Attempts::default(), now_s)
        };
        assert_eq!(at(&late(1_078 * DAY), 1_080 * DAY), 1_082 * DAY);
        let last = 1_090 * DAY - 7_200;
        assert_eq!(at(&late(last), last), 1_090 * DAY - 3_600);
        // A time in the future is none.
        assert_eq!(at(&late(2_000 * DAY), 1_080 * DAY), 1_060 * DAY);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_stop_orders() {
        let names = ["a.example".to_owned()];
        let mut attempts = Attempts::default();
        attempts.failed(1_000 * DAY, "no".to_owned(), 0.0, 0);
        assert!(order_at_s(None, (&names, ""), &attempts, 1_000 * DAY) > 1_000 * DAY);
        assert_eq!(order_at_s(None, (&names, ""), &attempts, 900 * DAY), 0);
    }

    #[test]
    fn failures_are_followed_by_longer_and_longer_pauses() {
        let (mut attempts, mut now, mut in_first_hour) = (Attempts::default(), 0, 1);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            attempts.failed(now, "no".to_owned(), 0.0, 0);
            pauses.push(attempts.not_before_s - now);
            now = attempts.not_before_s;
            in_first_hour += i32::from(now < 3600);
        }
        assert_eq!(pauses[..3], [120, 240, 480]);
        assert_eq!(pauses[11], PAUSE_S_MAX);
        assert!(in_first_hour <= 5, "{in_first_hour}");
        attempts.failed(0, "no".to_owned(), 1.0, i64::MAX);
        assert_eq!(attempts.not_before_s, ASKED_S_MAX);
        let names = ["a.example".to_owned()];
        assert_eq!(order_at_s(None, (&names, ""), &attempts, 0), ASKED_S_MAX);
    }
}

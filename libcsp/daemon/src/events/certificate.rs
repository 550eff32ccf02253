//! Events before this node's certificate ends.

use csp_api::Text;
use csp_api::events::What;
use csp_api::time::utc;
use csp_identity::{Peer, UnixTime};

use super::Events;

/// Days before the end at which it is an event.
const THRESHOLDS_DAYS: [u64; 3] = [1, 7, 30];
const DAY_S: u64 = 24 * 3600;
/// A threshold counts if it is at most this part of the certificate's lifetime: one that is made for a week
/// always has less than 30 days.
const LIFETIME_PART: u64 = 3;

/// What was recorded of this node's certificate.
#[derive(Debug)]
pub struct CertificateNotice {
    node: Text,
    /// End of the certificate, and the shortest threshold that was recorded for it.
    recorded: Option<(i64, u64)>,
}

impl CertificateNotice {
    /// Returns a notice for the certificate of the node with this id; nothing was recorded of it.
    pub fn new(node: Text) -> CertificateNotice {
        CertificateNotice { node, recorded: None }
    }

    /// Records that `holder` ends soon if it passed a threshold since the last call, or before the first one.
    pub fn look(&mut self, events: &Events, holder: &Peer, now: UnixTime) {
        if let Some(what) = self.due(holder, now) {
            events.record(&what);
        }
    }

    fn due(&mut self, holder: &Peer, now: UnixTime) -> Option<What> {
        let lifetime = u64::try_from(holder.not_after.saturating_sub(holder.not_before)).unwrap_or(0);
        let left = holder.life_left(now).as_secs();
        let passed = |days: &u64| left <= days * DAY_S && days * DAY_S <= lifetime / LIFETIME_PART;
        let threshold = THRESHOLDS_DAYS.into_iter().find(passed)?;
        let recorded = self.recorded.filter(|(end, _)| *end == holder.not_after);
        if recorded.is_some_and(|(_, recorded)| recorded <= threshold) {
            return None;
        }
        self.recorded = Some((holder.not_after, threshold));
        let end_ms = u64::try_from(holder.not_after).unwrap_or(0).saturating_mul(1000);
        Some(What::CertificateExpires {
            node: self.node.clone(),
            subject: holder.identity.to_string().into(),
            days_left: left / DAY_S,
            ends: utc(end_ms).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use csp_api::events::Severity;

    use super::*;

    /// The days at which something is recorded while a certificate of this lifetime runs out, hour by hour
    /// from its beginning, and what is left then by the event.
    fn recorded(notice: &mut CertificateNotice, begin_s: u64, lifetime_days: u64) -> Vec<(u64, Severity)> {
        let identity = "csp://demo/proxy-node/pn-1".parse().unwrap();
        let (not_before, not_after) = (begin_s as i64, (begin_s + lifetime_days * DAY_S) as i64);
        let (serial, certificate) = ("1".to_owned(), Vec::new().into());
        let holder = Peer { identity, serial, not_before, not_after, certificate };
        let hours = 0..(lifetime_days + 2) * 24;
        let at = |hour: u64| UnixTime::since_unix_epoch(Duration::from_secs(begin_s + hour * 3600));
        let due = hours.filter_map(|hour| notice.due(&holder, at(hour)));
        due.filter_map(|what| match &what {
            What::CertificateExpires { days_left, .. } => Some((*days_left, what.severity())),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn each_threshold_is_recorded_once_for_each_certificate() {
        let mut notice = CertificateNotice::new("pn-1".into());
        let all = [(30, Severity::Info), (7, Severity::Warning), (1, Severity::Error)];
        assert_eq!(recorded(&mut notice, 1_000_000, 365), all);
        // It is renewed; and what is made for a short time says little.
        assert_eq!(recorded(&mut notice, 2_000_000, 90), all);
        assert_eq!(recorded(&mut notice, 3_000_000, 30), all[1..]);
        assert_eq!(recorded(&mut notice, 4_000_000, 7), all[2..]);
        assert_eq!(recorded(&mut notice, 5_000_000, 1), []);
    }

    #[test]
    fn a_daemon_that_starts_late_records_the_shortest_only() {
        let identity = "csp://demo/proxy-node/pn-1".parse().unwrap();
        let (serial, certificate) = ("1".to_owned(), Vec::new().into());
        let holder = Peer { identity, serial, not_before: 0, not_after: 365 * 86_400, certificate };
        let at = |day: u64| UnixTime::since_unix_epoch(Duration::from_secs(day * DAY_S));
        let mut notice = CertificateNotice::new("pn-1".into());
        let what = notice.due(&holder, at(400)).unwrap();
        assert_eq!(what.severity(), Severity::Error);
        assert_eq!(what.object(), *"node/pn-1/certificate");
        let expected = "the certificate of csp://demo/proxy-node/pn-1 ends within a day, or has ended: 1971-01-01T00:00:00.000Z";
        assert_eq!(what.text(), *expected);
        assert_eq!(notice.due(&holder, at(401)), None);
    }
}

//! Which responses may be stored, and for how long they are fresh (RFC 9111 §3, §4.2).

use crate::control::{RequestControl, ResponseControl};
use crate::date;
use crate::fields::{Fields, elements, seconds};

/// Statuses of responses that are stored. Each is final, and none is partial or about one client.
const STATUSES: [u16; 16] = [200, 203, 204, 300, 301, 302, 303, 307, 308, 403, 404, 405, 410, 414, 451, 501];
/// Those of them that need no explicit freshness (RFC 9110 §15.1).
const HEURISTIC: [u16; 10] = [200, 203, 204, 300, 301, 404, 405, 410, 414, 501];

/// What a policy says of freshness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Seconds for which a response is fresh that says nothing of that; `None`: it is not stored.
    pub default_ttl: Option<u64>,
    /// Most seconds for which a response is fresh.
    pub max_ttl: Option<u64>,
    /// Seconds for which a stale response may be served while another request asks the server, if it does not
    /// say so itself.
    pub stale_while_revalidate: u64,
    /// The same while the server fails.
    pub stale_if_error: u64,
}

/// What of a request decides whether its response may be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// The request has `Authorization`, or cookies that count: the response has to say that it is for all.
    pub is_known: bool,
}

/// How long a stored response may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Its age when it came, in seconds.
    pub initial_age: u64,
    /// When it came, in seconds since 1970.
    pub received: u64,
    /// For how long it is fresh, in seconds of age; 0: it is validated before each use.
    pub lifetime: u64,
    /// For how long after that it may be served while another request asks the server.
    pub while_revalidate: u64,
    /// For how long after that it may be served while the server fails.
    pub if_error: u64,
}

/// Why a response is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unstored {
    /// Its status.
    Status,
    /// `no-store`, `private`, or it belongs to the identity of its request.
    Control,
    /// `Set-Cookie`.
    Cookie,
    /// `Vary: *`, or a field of which the proxy writes another value for each client.
    Vary,
    /// It says nothing of freshness, or is stale and has no validator.
    Freshness,
    /// It is a part, or of a content that the fields do not describe.
    Part,
}

impl Times {
    /// Returns the present age in seconds (RFC 9111 §4.2.3).
    pub fn age(&self, now: u64) -> u64 {
        self.initial_age.saturating_add(now.saturating_sub(self.received))
    }

    /// Returns for how many seconds more it is fresh; `None`: it is not.
    pub fn fresh_for(&self, now: u64) -> Option<u64> {
        self.lifetime.checked_sub(self.age(now)).filter(|left| *left > 0)
    }

    /// Returns for how many seconds it has been stale.
    pub fn staleness(&self, now: u64) -> u64 {
        self.age(now).saturating_sub(self.lifetime)
    }

    /// Returns whether it could be served without a validation when it came.
    pub(crate) fn is_ever_of_use(&self) -> bool {
        self.lifetime.saturating_add(self.while_revalidate) > self.initial_age
    }

    /// Returns whether a request takes it as fresh, whose `Cache-Control` is `control`; `None`: that does not
    /// count.
    pub fn satisfies(&self, now: u64, control: Option<&RequestControl>, must_revalidate: bool) -> bool {
        let left = self.fresh_for(now);
        let Some(control) = control else { return left.is_some() };
        if control.no_cache || control.max_age.is_some_and(|most| self.age(now) > most) {
            return false;
        }
        match left {
            Some(left) => control.min_fresh.is_none_or(|least| left >= least),
            None => !must_revalidate && control.max_stale.is_some_and(|most| self.staleness(now) <= most),
        }
    }
}

/// Returns the times of a response that may be stored. `delay`: seconds between request and response.
/// `now` in seconds since 1970.
///
/// # Errors
/// Why it must not be stored.
pub fn storable(
    (status, fields): (u16, Fields<'_>),
    (now, delay): (u64, u64),
    identity: Identity,
    rules: &Rules,
) -> Result<(Times, ResponseControl), Unstored> {
    let control = ResponseControl::of(fields);
    if !STATUSES.contains(&status) {
        return Err(Unstored::Status);
    }
    // RFC 9111 §3.
    if control.no_store || control.private || identity.is_known && !control.is_shared() {
        return Err(Unstored::Control);
    }
    if fields.has(b"set-cookie") || fields.has(b"set-cookie2") {
        return Err(Unstored::Cookie);
    }
    if fields.has(b"content-range") {
        return Err(Unstored::Part);
    }
    let (explicit, initial_age) = of_dates(fields, &control, (now, delay));
    let by_default = rules.default_ttl.filter(|_| HEURISTIC.contains(&status) && !control.no_cache);
    let lifetime = match (explicit, control.no_cache) {
        (_, true) => 0,
        (Some(time), _) => time,
        (None, _) => by_default.map(|ttl| ttl + initial_age).ok_or(Unstored::Freshness)?,
    };
    let lifetime = rules.max_ttl.map_or(lifetime, |most| lifetime.min(most));
    // RFC 9111 §5.2.2.4: what must be validated each time is not served otherwise.
    let serves_stale = !control.no_cache && !control.must_revalidate;
    let stale = |said: Option<u64>, by_rule| if serves_stale { said.unwrap_or(by_rule) } else { 0 };
    let times = Times {
        initial_age,
        received: now,
        lifetime,
        while_revalidate: stale(control.stale_while_revalidate, rules.stale_while_revalidate),
        if_error: stale(control.stale_if_error, rules.stale_if_error),
    };
    let is_of_use = times.fresh_for(now).is_some() || times.while_revalidate > times.staleness(now);
    if !is_of_use && !has_validator(fields) {
        return Err(Unstored::Freshness);
    }
    Ok((times, control))
}

/// Returns the explicit lifetime and the age that a response has when it comes.
fn of_dates(fields: Fields<'_>, control: &ResponseControl, (now, delay): (u64, u64)) -> (Option<u64>, u64) {
    let date = fields.only(b"date").and_then(|text| date::parse(text, now)).unwrap_or(now);
    // RFC 9111 §5.1: the first value counts, and one that cannot be read says nothing.
    let said = fields.values(b"age").flat_map(elements).next().and_then(seconds).unwrap_or(0);
    let initial_age = now.saturating_sub(date).max(said.saturating_add(delay));
    let expires = fields.has(b"expires").then(|| {
        let at = fields.only(b"expires").and_then(|text| date::parse(text, now));
        at.map_or(0, |at| at.saturating_sub(date)) // RFC 9111 §5.3: what cannot be read is in the past
    });
    (control.s_maxage.or(control.max_age).or(expires), initial_age)
}

/// Returns whether the server can be asked whether the response is still right.
pub fn has_validator(fields: Fields<'_>) -> bool {
    fields.only(b"etag").is_some() || fields.only(b"last-modified").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 784_111_777; // Sun, 06 Nov 1994 08:49:37 GMT

    fn of(status: u16, text: &str) -> Result<Times, Unstored> {
        with(status, text, Identity::default(), &Rules::default())
    }

    fn with(status: u16, text: &str, identity: Identity, rules: &Rules) -> Result<Times, Unstored> {
        let head = format!("HTTP/1.1 {status} X\r\n{text}\r\n\r\n");
        let stored = storable((status, Fields::of_head(head.as_bytes())), (NOW, 0), identity, rules);
        stored.map(|(times, _)| times)
    }

    /// RFC 9111 §3, line by line.
    #[test]
    fn what_is_stored() {
        let lifetime = |status, text: &str| of(status, text).map(|times| times.lifetime);
        assert_eq!(lifetime(200, "Cache-Control: max-age=60"), Ok(60));
        assert_eq!(lifetime(200, "Cache-Control: max-age=60, s-maxage=5"), Ok(5));
        assert_eq!(lifetime(302, "Cache-Control: max-age=60"), Ok(60));
        assert_eq!(lifetime(200, "Expires: Sun, 06 Nov 1994 08:50:37 GMT"), Ok(60));
        assert_eq!(
            lifetime(200, "Date: Sun, 06 Nov 1994 08:49:07 GMT\r\nExpires: Sun, 06 Nov 1994 08:50:37 GMT"),
            Ok(90)
        );
        assert_eq!(lifetime(200, "Cache-Control: max-age=9\r\nExpires: 0"), Ok(9));
        for (status, text, why) in [
            (200, "", Unstored::Freshness),
            (200, "ETag: \"a\"", Unstored::Freshness),
            (200, "Expires: 0", Unstored::Freshness),
            (200, "Cache-Control: max-age=0", Unstored::Freshness),
            (200, "Cache-Control: no-cache", Unstored::Freshness),
            (200, "Cache-Control: max-age=60, no-store", Unstored::Control),
            (200, "Cache-Control: max-age=60, private", Unstored::Control),
            (200, "Cache-Control: s-maxage=60\r\nSet-Cookie: a=b", Unstored::Cookie),
            (200, "Cache-Control: max-age=60\r\nContent-Range: bytes 0-1/2", Unstored::Part),
            (206, "Cache-Control: max-age=60", Unstored::Status),
            (304, "Cache-Control: max-age=60", Unstored::Status),
            (500, "Cache-Control: max-age=60", Unstored::Status),
            (401, "Cache-Control: max-age=60, public", Unstored::Status),
            (200, "Cache-Control: max-age=60\r\nAge: 60", Unstored::Freshness),
        ] {
            assert_eq!(of(status, text), Err(why), "{status} {text}");
        }
        // Validated before each use.
        for text in ["Cache-Control: no-cache", "Cache-Control: max-age=0", "Expires: 0"] {
            assert_eq!(lifetime(200, &format!("{text}\r\nETag: \"a\"")), Ok(0), "{text}");
        }
    }

    #[test]
    fn an_identity_needs_a_response_for_all() {
        let known = Identity { is_known: true };
        let of = |text| with(200, text, known, &Rules::default()).is_ok();
        assert!(!of("Cache-Control: max-age=60") && !of("Cache-Control: max-age=60, must-revalidate"));
        assert!(of("Cache-Control: max-age=60, public") && of("Cache-Control: s-maxage=60"));
    }

    #[test]
    fn the_rules_of_a_policy() {
        let rules =
            Rules { default_ttl: Some(30), max_ttl: Some(40), stale_while_revalidate: 7, stale_if_error: 8 };
        let of = |status, text| with(status, text, Identity::default(), &rules);
        let times = of(200, "Age: 5").unwrap();
        assert_eq!((times.lifetime, times.initial_age, times.fresh_for(NOW)), (35, 5, Some(30)));
        assert_eq!((times.while_revalidate, times.if_error), (7, 8));
        assert_eq!(of(200, "Cache-Control: max-age=90").unwrap().lifetime, 40);
        assert_eq!(of(302, ""), Err(Unstored::Freshness));
        let strict = of(200, "Cache-Control: max-age=9, must-revalidate, stale-if-error=5").unwrap();
        assert_eq!((strict.while_revalidate, strict.if_error), (0, 0));
        let said = of(200, "Cache-Control: max-age=9, stale-while-revalidate=5").unwrap();
        assert_eq!((said.while_revalidate, said.if_error), (5, 8));
    }

    /// RFC 9111 §4.2.3 and §5.2.1.
    #[test]
    fn age_and_what_requests_accept() {
        let times = Times { initial_age: 10, received: NOW, lifetime: 60, ..Times::default() };
        assert_eq!((times.age(NOW + 5), times.fresh_for(NOW + 5)), (15, Some(45)));
        assert_eq!((times.fresh_for(NOW + 50), times.staleness(NOW + 55)), (None, 5));
        assert_eq!(times.age(NOW - 5), 10, "a clock that was set back");
        let takes = |text: &str, now, strict| {
            let head = format!("GET / HTTP/1.1\r\nCache-Control: {text}\r\n\r\n");
            times.satisfies(now, Some(&RequestControl::of(Fields::of_head(head.as_bytes()))), strict)
        };
        assert!(takes("x", NOW, false) && !takes("no-cache", NOW, false));
        assert!(takes("max-age=15", NOW + 5, false) && !takes("max-age=14", NOW + 5, false));
        assert!(takes("min-fresh=45", NOW + 5, false) && !takes("min-fresh=46", NOW + 5, false));
        assert!(takes("max-stale=5", NOW + 55, false) && !takes("max-stale=4", NOW + 55, false));
        assert!(takes("max-stale", NOW + 55, false) && !takes("max-stale", NOW + 55, true));
        assert!(times.satisfies(NOW, None, false) && !times.satisfies(NOW + 50, None, false));
    }

    #[test]
    fn the_age_of_a_response() {
        let age = |text: &str| of(200, &format!("Cache-Control: max-age=600\r\n{text}")).unwrap().initial_age;
        assert_eq!(age("Age: 7"), 7);
        assert_eq!(age("Date: Sun, 06 Nov 1994 08:49:07 GMT\r\nAge: 7"), 30);
        assert_eq!(age("Date: Sun, 06 Nov 1994 08:50:07 GMT"), 0);
        assert_eq!((age("Age: 5, 9"), age("Age: x"), age("Age: 3\r\nAge: 9")), (5, 0, 3));
    }
}

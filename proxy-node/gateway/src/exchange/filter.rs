//! Filters of a request, between the choice of its route and that of its member: rules of the service, rules
//! of the route, CORS. What they find is kept until the exchange is over.

use csp_filters::compress::Coding;
use csp_filters::{Asker, CONCURRENT_MAX, Cors, Filters, Permit, Preference, Stop, requested_method};
use csp_http::forward::Extra;
use csp_http::head::Request;
use csp_http::route::{Found, Subject};

use super::Exchange;
use crate::Reason;
use crate::out::Buffers;
use crate::shared::Work;
use crate::spec::{HttpService, Rule};

/// Most fields of an answer that filters add.
const FIELDS_MAX: usize = 5;
/// Fields of a request that decide the answer to a preflight.
const PREFLIGHT_VARY: &[u8] = b"Access-Control-Request-Method, Access-Control-Request-Headers";

/// What filters have found. Without filters it has no memory.
#[derive(Debug, Default)]
pub(super) struct Filtered {
    /// The status of an answer, where a rule says it; 0: none does.
    pub(super) status: u16,
    /// What the client would rather read.
    pub(super) wants: Preference,
    /// Seconds after which a request will pass.
    wait_s: u32,
    /// By which coding the response may be compressed, and its level.
    pub(super) coding: Option<(Coding, u8)>,
    /// The origin that may read the response, then the fields that a preflight asks for.
    origin: Vec<u8>,
    origin_len: u16,
    /// Places in the tables of requests at the same time: of rules of the service and of the route.
    permits: [Option<Permit>; 2 * CONCURRENT_MAX],
}

impl Filtered {
    /// Releases what is kept.
    pub(super) fn clear(&mut self, buffers: &mut Buffers) {
        buffers.give(std::mem::take(&mut self.origin));
        self.permits = Default::default();
        (self.status, self.wait_s, self.origin_len, self.coding) = (0, 0, 0, None);
    }

    /// Returns the field by which a response says that its origin may read it.
    pub(super) fn cors(&self) -> Option<Extra<'_>> {
        let origin = self.origin.get(..usize::from(self.origin_len)).filter(|origin| !origin.is_empty())?;
        Some((b"Access-Control-Allow-Origin", origin))
    }

    /// Returns the fields of an answer, and their number.
    pub(super) fn fields<'a>(
        &'a self,
        reason: Reason,
        rule: Option<&'a Rule>,
    ) -> ([Extra<'a>; FIELDS_MAX], usize) {
        let mut fields: [Extra<'a>; FIELDS_MAX] = [(b"", b""); FIELDS_MAX];
        let cors = rule.and_then(|rule| rule.filters.cors.as_ref()).filter(|_| reason == Reason::Preflight);
        let preflight = cors.map(Cors::preflight).map(|of| {
            let asked = self.origin.get(usize::from(self.origin_len)..).unwrap_or_default();
            let all: [Extra<'a>; 4] = [
                (b"Access-Control-Allow-Methods", of.methods),
                (b"Access-Control-Allow-Headers", of.headers.unwrap_or(asked)),
                (b"Access-Control-Max-Age", of.max_age),
                (b"Vary", PREFLIGHT_VARY),
            ];
            all
        });
        let all = self.cors().into_iter().chain(preflight.into_iter().flatten());
        let mut len = 0;
        for (place, field) in fields.iter_mut().zip(all.filter(|(_, value)| !value.is_empty())) {
            (*place, len) = (field, len + 1);
        }
        (fields, len)
    }

    /// Returns the status of an answer of the proxy's own.
    pub(super) fn status_of(&self, reason: Reason) -> u16 {
        match reason {
            Reason::Denied if self.status != 0 => self.status,
            reason => reason.status(),
        }
    }

    /// Returns after how many seconds a client may try again; empty: that is not known.
    pub(super) fn retry_after(&self, reason: Reason) -> String {
        match reason {
            Reason::RateLimited => self.wait_s.max(1).to_string(),
            Reason::TooManyAtOnce => "1".to_owned(),
            reason if reason.is_temporary() => "1".to_owned(),
            _ => String::new(),
        }
    }
}

/// Returns the route of a request. A preflight of CORS falls under the route of the request that it is about,
/// if that one has CORS, and is of its method for most filters. The last: whether it is a preflight.
pub(super) fn routed<'a, 'r>(
    service: &HttpService,
    subject: Subject<'a, Request<'r>>,
) -> (Subject<'a, Request<'r>>, Option<Found>, bool) {
    if service.has_cors
        && let Some(method) = requested_method(&subject)
    {
        let subject = Subject { method, ..subject };
        let found = service.routes.find(&subject);
        let rule = found.and_then(|found| service.rules().get(found.route));
        if rule.is_some_and(|rule| rule.filters.cors.is_some()) {
            return (subject, found, true);
        }
    }
    (subject, service.routes.find(&subject), false)
}

impl Exchange {
    /// Applies the filters of the service and of the rule at this position. An error: the gateway answers.
    pub(super) fn filter(
        &mut self,
        (request, subject): (&Request<'_>, &Subject<'_, Request<'_>>),
        (rule, is_preflight): (Option<usize>, bool),
        work: &mut Work,
    ) -> Result<(), Reason> {
        let service = std::sync::Arc::clone(&self.service);
        let rule = rule.and_then(|at| service.rules().get(at));
        let of_rule = rule.map(|rule| &rule.filters);
        let mut all = std::iter::once(&service.filters).chain(of_rule).filter(|filters| !filters.is_empty());
        if all.clone().next().is_none() {
            return Ok(());
        }
        if let Some(cors) = of_rule.unwrap_or(&service.filters).cors.as_ref() {
            self.note_origin(request, cors, work);
        }
        if let Some(compress) = of_rule.unwrap_or(&service.filters).compress.as_ref() {
            let fields = request.fields().filter(|of| of.name.eq_ignore_ascii_case(b"accept-encoding"));
            self.filtered.coding = compress.choose(fields.map(|field| field.value));
        }
        all.try_for_each(|filters| self.judge((request, subject), filters, is_preflight, work))?;
        let cors = of_rule.and_then(|filters| filters.cors.as_ref());
        match cors {
            Some(cors) if is_preflight => {
                let is_allowed = cors.allows_any() || self.filtered.cors().is_some();
                Err(if is_allowed { Reason::Preflight } else { Reason::CorsOrigin })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the origin of a request that may read the response, and what a preflight asks for.
    fn note_origin(&mut self, request: &Request<'_>, cors: &Cors, work: &mut Work) {
        let value = |name: &[u8]| {
            let mut fields = request.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
            fields.next().map(|field| field.value).filter(|_| fields.next().is_none())
        };
        let origin = value(b"Origin").filter(|origin| !cors.allows_any() && cors.allows(origin));
        let asked = match cors.preflight().headers {
            None => value(b"Access-Control-Request-Headers").unwrap_or_default(),
            Some(_) => b"",
        };
        let Some(origin) = origin.or((!asked.is_empty()).then_some(b"")) else { return };
        let kept = &mut self.filtered;
        kept.origin = work.buffers.take();
        kept.origin.extend_from_slice(origin);
        kept.origin.extend_from_slice(asked);
        kept.origin_len = origin.len() as u16; // heads have fewer than 64 KiB
    }

    fn judge(
        &mut self,
        (request, subject): (&Request<'_>, &Subject<'_, Request<'_>>),
        filters: &Filters,
        is_preflight: bool,
        work: &mut Work,
    ) -> Result<(), Reason> {
        let asker = Asker { source: self.record.source, is_preflight };
        let (now, permits) = (self.record.began, &mut self.filtered.permits);
        let keep = |permit| {
            // There are as many places as rules may give permits.
            if let Some(place) = permits.iter_mut().find(|place| place.is_none()) {
                *place = Some(permit);
            }
        };
        let Some(stop) = filters.rules.judge(subject, asker, now, keep) else { return Ok(()) };
        self.filtered.permits = Default::default();
        Err(match stop {
            Stop::Denied(status) => {
                self.filtered.status = status;
                Reason::Denied
            }
            Stop::Redirected(to, found) => {
                self.filtered.status = to.status;
                self.head = work.buffers.take();
                match to.location(request, self.service.scheme, subject.path, found, &mut self.head) {
                    true => Reason::Redirect,
                    false => Reason::NoHost,
                }
            }
            Stop::Limited(wait_s) => {
                self.filtered.wait_s = wait_s;
                Reason::RateLimited
            }
            Stop::TooMany => Reason::TooManyAtOnce,
        })
    }
}

/// Returns what a client would rather read.
pub(super) fn preference(request: &Request<'_>) -> Preference {
    let mut accepted = request.fields().filter(|field| field.name.eq_ignore_ascii_case(b"accept"));
    accepted.next().map_or(Preference::Any, |field| Preference::of(field.value))
}

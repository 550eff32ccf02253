//! From a request's head to a rule, and to the head that the member gets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use csp_http::forward::{self, Origin, PeerText, RequestForward, TraceIds};
use csp_http::head::{Framing, Host, Method, Request, normalised, other_readings};
use csp_http::name::{Name, elements};
use csp_http::route::{Found, Subject};

use super::cache::Looked;
use super::filter::{preference, routed};
use super::{Asked, Exchange, Stage};
use crate::Reason;
use crate::caching::CacheResult;
use crate::framer::Framer;
use crate::grpc;
use crate::shared::Work;
use crate::spec::{Action, HttpService};

impl Exchange {
    /// Finds the rule of a request and writes the head for a member. An error: the gateway answers.
    /// `is_framed`: the client sends chunks if the head says so; otherwise its protocol frames the body.
    pub(crate) fn begin(
        &mut self,
        request: &Request<'_>,
        peer: &PeerText,
        is_framed: bool,
        work: &mut Work,
    ) -> Result<(), Reason> {
        self.asked = Asked {
            framing: request.framing(),
            is_head: request.method() == Method::Head,
            is_idempotent: request.method().is_idempotent(),
            is_upgrade: false,
            is_grpc: false,
        };
        let source = match request.framing() {
            Framing::Chunked if !is_framed => Framing::UntilClose,
            framing => framing,
        };
        let is_trusted = self.service.trusts(self.peer.ip());
        self.note(request, (is_trusted, is_framed), work);
        if self.service.has_pages {
            self.filtered.wants = preference(request);
        }
        let mut path_room = std::mem::take(&mut work.path);
        let outcome = match request.path() {
            b"*" => Ok(&b"*"[..]),
            path => normalised(path, &mut path_room).map_err(Reason::Client),
        };
        let outcome = outcome.and_then(|path| self.choose(request, path, (peer, is_trusted), work));
        work.path = path_room;
        let to = match self.over_http2.is_spoken {
            true => Framing::UntilClose, // HTTP/2 frames the body by itself
            false => request.framing(),
        };
        self.up_framer = Framer::new(source, to);
        outcome
    }

    /// Records what the log says of the request.
    fn note(&mut self, request: &Request<'_>, (is_trusted, is_framed): (bool, bool), work: &mut Work) {
        let (mut agent, mut referer, mut id): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        let (mut content_type, mut timeout): (&[u8], &[u8]) = (b"", b"");
        for field in request.fields() {
            match field.known {
                Name::Other if field.name.eq_ignore_ascii_case(b"user-agent") => agent = field.value,
                Name::Other if field.name.eq_ignore_ascii_case(b"referer") => referer = field.value,
                Name::Other if field.name.eq_ignore_ascii_case(b"content-type") => content_type = field.value,
                Name::Other if field.name.eq_ignore_ascii_case(b"grpc-timeout") => timeout = field.value,
                Name::XRequestId if is_trusted => id = field.value,
                _ => {}
            }
        }
        // Otherwise any request could have its answer of an error said by a 200.
        self.asked.is_grpc = grpc::is_call(content_type) && request.method_name() == b"POST";
        self.grpc_timeout = grpc::timeout(timeout).filter(|_| self.asked.is_grpc);
        let host = request.host().map_or(&b""[..], |host| host.name);
        let query: [&[u8]; 2] = match request.query() {
            Some(query) => [b"?", query],
            None => [b"", b""],
        };
        self.record.version = request.version();
        self.record.is_http2 = !is_framed;
        let texts: [&[&[u8]]; 6] = [
            &[request.method_name()],
            &[host],
            &[request.path(), query[0], query[1]],
            &[agent],
            &[referer],
            &[id],
        ];
        if let Some(unused) = self.record.set_texts(work.buffers.take(), texts) {
            work.buffers.give(unused);
        }
    }

    /// Chooses the rule and the target.
    fn choose(
        &mut self,
        request: &Request<'_>,
        path: &[u8],
        peer: (&PeerText, bool),
        work: &mut Work,
    ) -> Result<(), Reason> {
        if let Some(answer) = work.challenges.answer(path) {
            self.head = work.buffers.take();
            self.head.extend_from_slice(answer);
            return Err(Reason::Challenge);
        }
        let service = Arc::clone(&self.service);
        let source = source(request, &service, self.peer.ip(), peer.1);
        self.record.source = source.unwrap_or(self.peer.ip().to_canonical());
        let subject = Subject { source, ..Subject::new(request, path, self.peer.ip()) };
        // Members get the default host then, so rules judge the request by it.
        let host = subject.host.or_else(|| Host::parse(&service.default_host).map(|host| host.name));
        let (subject, found, is_preflight) = routed(&service, Subject { host, ..subject });
        let rule = found.and_then(|found| service.rules().get(found.route));
        let (Some(found), Some(rule)) = (found, rule) else {
            self.filter((request, &subject), (None, is_preflight), work)?;
            return Err(Reason::NoRoute);
        };
        let all = [&service.filters.rules, &rule.filters.rules];
        let among = all.map(|rules| rules.with_path(&subject, self.record.source));
        let by_path =
            |subject: &Subject<'_, _>| [all[0].by_path(among[0], subject), all[1].by_path(among[1], subject)];
        let own = by_path(&subject);
        other_readings(path, &mut work.room, |other| {
            let other = Subject { path: other, ..subject };
            let route = service.routes.find(&other).map(|other| other.route);
            route == Some(found.route) && by_path(&other) == own
        })
        .map_err(Reason::Client)?;
        self.rule = Some(found.route);
        self.record.rule = Some(Arc::clone(&rule.name));
        self.filter((request, &subject), (Some(found.route), is_preflight), work)?;
        if request.max_forwards() == Some(0) {
            return Err(Reason::MaxForwards);
        }
        match &rule.action {
            Action::Answer { .. } => return Err(Reason::Answer),
            Action::Redirect(redirect) => {
                self.head = work.buffers.take();
                let has_host = redirect.location(request, service.scheme, path, found, &mut self.head);
                return Err(if has_host { Reason::Redirect } else { Reason::NoHost });
            }
            Action::Forward(targets) => {
                let pick = rule.weights.pick((work.random.next() >> 32) as u32);
                let (name, _) = pick.and_then(|at| targets.get(at)).ok_or(Reason::NoServer)?;
                self.target = Some(Arc::clone(name));
                self.over_http2.is_spoken = service.speaks_http2(name);
            }
        }
        match self.consult(request, path, peer.1, work) {
            Looked::Stored => return Ok(()),
            Looked::Refused => return Err(Reason::OnlyIfCached),
            Looked::Shared => self.stage = Stage::Shared,
            Looked::Ask => {}
        }
        if let Framing::Length(length) = request.framing()
            && length > service.body_len_max
        {
            return Err(Reason::BodyTooLong);
        }
        self.write_head(request, (path, found), peer, work)
    }

    /// Writes the head for the member.
    fn write_head(
        &mut self,
        request: &Request<'_>,
        (path, found): (&[u8], Found),
        (peer, is_trusted): (&PeerText, bool),
        work: &mut Work,
    ) -> Result<(), Reason> {
        let service = Arc::clone(&self.service);
        let rule = self.rule.and_then(|at| service.rules().get(at)).ok_or(Reason::NoRoute)?;
        let Work { head, room, random, buffers, identity, .. } = work;
        let (certificate, fields) = service.certificate.of(identity.as_ref());
        let path = match &rule.rewrite {
            Some(rewrite) => rewrite.apply(path, found, room),
            None => path,
        };
        let ids = service.trace.then(|| {
            let span = (random.next() | 1).to_be_bytes();
            TraceIds { trace: random.id(), span, sampled: false }
        });
        let request_id = service.request_id.then(|| random.id());
        self.asked.is_upgrade = rule.upgrade && request.is_upgrade() && !is_http_upgrade(request);
        if self.asked.is_upgrade && self.over_http2.is_spoken {
            return Err(Reason::NoSwitch);
        }
        let how = RequestForward {
            path,
            host: rule.host.as_deref(),
            default_host: &service.default_host,
            origin: Origin { peer, is_trusted, scheme: service.scheme, fields: service.origin },
            trace: ids.as_ref(),
            request_id,
            upgrade: self.asked.is_upgrade,
            expect: true,
            edits: &rule.request_edits,
            extra: certificate.get(..fields).unwrap_or_default(),
        };
        let written = forward::request(head, request, &how).map_err(|_| Reason::RequestTooLong)?;
        self.record.trace = written.trace.map(|trace| trace.trace);
        self.record.request_id = request_id;
        self.head = buffers.take();
        self.head.extend_from_slice(&head[..written.len]);
        if let Some(state) = self.cache.as_deref() {
            state.prepare(&mut self.head);
        }
        Ok(())
    }

    /// Asks the cache, if the rule has one. A request that may change something is looked for under the
    /// rule of a GET request, since what that has stored is not right any more.
    fn consult(&mut self, request: &Request<'_>, path: &[u8], is_trusted: bool, work: &mut Work) -> Looked {
        let service = Arc::clone(&self.service);
        if !service.caches || work.caching.store.is_none() || path == b"*" {
            return Looked::Ask;
        }
        if !matches!(request.method(), Method::Get | Method::Head) {
            let source = Some(self.record.source);
            let as_get = Subject { source, method: b"GET", ..Subject::new(request, path, self.peer.ip()) };
            let found = service.routes.find(&as_get).filter(|_| request.method() != Method::Options);
            let rule = found.and_then(|found| service.rules().get(found.route));
            if let Some(cache) = rule.and_then(|rule| rule.cache.as_ref()) {
                let state = self.cache.insert(work.caching.state());
                state.changes(request, path, (&service, cache, is_trusted));
            }
            return Looked::Ask;
        }
        let rule = self.rule.and_then(|at| service.rules().get(at));
        let Some(cache) = rule.and_then(|rule| rule.cache.as_ref()) else { return Looked::Ask };
        let state = self.cache.insert(work.caching.state());
        if !state.ask(request, path, (&service, cache, is_trusted)) {
            state.result = Some(CacheResult::Bypass);
            return Looked::Ask;
        }
        state.look(self.record.began, cache, work)
    }
}

/// Returns whether a request would upgrade to another version of HTTP, or to TLS: requests in it would pass
/// all rules.
fn is_http_upgrade(request: &Request<'_>) -> bool {
    let fields = request.fields().filter(|field| field.known == Name::Upgrade);
    let mut protocols = fields.flat_map(|field| field.value.split(|byte| *byte == b','));
    protocols.any(|protocol| {
        let protocol = protocol.trim_ascii_start();
        let begins = |name: &[u8]| protocol.get(..name.len()).is_some_and(|p| p.eq_ignore_ascii_case(name));
        begins(b"h2") || begins(b"http") || begins(b"tls")
    })
}

/// Returns the address of the client: the peer's, or the last one in `X-Forwarded-For` that is of no trusted
/// proxy, if the peer is one. `None`: an element cannot be read, so that those before it may be anyone's.
fn source(request: &Request<'_>, service: &HttpService, peer: IpAddr, is_trusted: bool) -> Option<IpAddr> {
    let mut source = peer.to_canonical();
    if !is_trusted {
        return Some(source);
    }
    let fields = request.fields().filter(|field| field.known == Name::XForwardedFor);
    // RFC 9110 §5.3: several lines are one list, whose last element is the newest.
    for element in fields.flat_map(|field| elements(field.value)).collect::<Vec<_>>().into_iter().rev() {
        source = address(element)?;
        if !service.trusts(source) {
            break;
        }
    }
    Some(source)
}

/// Reads an address, perhaps with a port, which some proxies add.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|at| at.ip()));
    address.ok().map(|address| address.to_canonical())
}

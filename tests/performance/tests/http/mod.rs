//! Heads of HTTP/1.1 as browsers and curl send them, read, routed and forwarded.

use csp_http::exchange::{Connection, Plan};
use csp_http::forward::{
    Edits, Origin, OriginFields, PeerText, RequestForward, ResponseForward, request, response,
};
use csp_http::head::{Framing, HeadReader, Scheme, Scratch, normalised};
use csp_http::limits::HEAD_LEN_MAX;
use csp_http::route::{PathSpec, RouteSpec, Routes, Subject};
use csp_http::{Limits, limits};

/// curl 8: 82 bytes, 3 fields.
pub const CURL: &str = "GET /index.html HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: curl/8.5.0\r\n\
    Accept: */*\r\n\r\n";

/// Chrome 130 on a page: 16 fields with a cookie.
pub const CHROME: &str = "GET /static/app.js?v=17 HTTP/1.1\r\nHost: www.example.com\r\n\
    Connection: keep-alive\r\nCache-Control: max-age=0\r\n\
    sec-ch-ua: \"Chromium\";v=\"130\", \"Google Chrome\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n\
    sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/130.0.0.0 Safari/537.36\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
    Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: script\r\n\
    Referer: https://www.example.com/\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9\r\nCookie: session=4f1b2c9d8e7a; theme=dark\r\n\r\n";

/// A response of nginx.
pub const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 16384\r\nLast-Modified: Sun, 29 Nov 2026 12:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"65a1b2c3-4000\"\r\nAccept-Ranges: bytes\r\n\r\n";

/// What a worker has for HTTP.
pub struct Heads {
    limits: Limits,
    scratch: Scratch,
    routes: Routes,
    path: Vec<u8>,
    out: Vec<u8>,
    peer: PeerText,
}

impl Heads {
    pub fn new() -> Self {
        let limits = Limits::default();
        // Twenty routes of one host, as of a site with several services.
        let specs: Vec<RouteSpec> = (0..20)
            .map(|at| RouteSpec {
                hosts: vec!["www.example.com".to_owned()],
                path: PathSpec::Prefix(if at == 0 { "/".to_owned() } else { format!("/service-{at}") }),
                ..RouteSpec::default()
            })
            .collect();
        Heads {
            scratch: Scratch::new(&limits),
            routes: Routes::compile(&specs).expect("the routes are right"),
            path: Vec::with_capacity(limits.target_len_max),
            out: vec![0; limits::HEAD_LEN_MAX],
            peer: PeerText::new([192, 0, 2, 1].into()),
            limits,
        }
    }

    /// Reads a request head; returns its length.
    pub fn read(&mut self, text: &str) -> usize {
        let mut reader = HeadReader::default();
        let read = reader.request(&[text.as_bytes()], false, &self.limits, &mut self.scratch);
        read.ok().flatten().map_or(0, |head| head.head_len())
    }

    /// Reads a request, finds its route and writes the head for the member; returns that head's length.
    pub fn pass_request(&mut self, text: &str) -> usize {
        let Heads { limits, scratch, routes, path, out, peer } = self;
        let mut reader = HeadReader::default();
        let read = reader.request(&[text.as_bytes()], false, limits, scratch);
        let Some(head) = read.ok().flatten() else { return 0 };
        let Ok(path) = normalised(head.path(), path) else { return 0 };
        if routes.find(&Subject::new(&head, path, [192, 0, 2, 1].into())).is_none() {
            return 0;
        }
        let fields = OriginFields { x_forwarded: true, forwarded: false };
        let how = RequestForward {
            path,
            host: None,
            default_host: b"default",
            origin: Origin { peer, is_trusted: false, scheme: Scheme::Https, fields },
            trace: None,
            request_id: None,
            upgrade: false,
            expect: true,
            edits: Edits::NONE,
            extra: &[],
        };
        request(&mut out[..HEAD_LEN_MAX], &head, &how).map_or(0, |written| written.len)
    }

    /// Reads a response and writes the head for the client; returns that head's length.
    pub fn pass_response(&mut self, text: &str) -> usize {
        let mut reader = HeadReader::default();
        let read = reader.response(&[text.as_bytes()], false, &self.limits, &mut self.scratch);
        let Some(head) = read.ok().flatten() else { return 0 };
        let plan = Plan { framing: Framing::Length(16_384), connection: Connection::Implied };
        let how = ResponseForward { plan: Some(plan), date: None, edits: Edits::NONE, extra: &[] };
        response(&mut self.out, &head, &how).unwrap_or(0)
    }
}

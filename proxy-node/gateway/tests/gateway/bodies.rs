//! Requests and responses that pass: framing, interim responses, versions, order.

use csp_gateway::spec::ServiceConfig;
use csp_http::head::Scheme;

use crate::http::{Http, service};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn a_request_passes_and_its_connection_is_kept() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, "GET /a?b HTTP/1.1\r\nHost: example.com\r\nUser-Agent: t\r\n\r\n");
    assert_eq!(h.hears(member), "GET /a?b HTTP/1.1\r\nHost: example.com\r\nUser-Agent: t\r\n\r\n");
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    // The next one, at the same connections.
    h.send(1_000, "GET /b HTTP/1.1\r\nHost: example.com\r\n\r\n");
    assert!(h.w.offers.is_empty());
    assert_eq!(h.hears(member), "GET /b HTTP/1.1\r\nHost: example.com\r\n\r\n");
    h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(h.codes(), [(200, "ok"), (204, "ok")]);
    h.assert_no_leak();
}

/// Two clients share a connection to a member, one after the other.
#[test]
fn a_kept_connection_serves_another_client() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.says(member, EMPTY);
    h.w.connect(1_001);
    h.send(1_001, "GET /other HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(h.w.offers.is_empty());
    assert!(h.hears(member).ends_with("GET /other HTTP/1.1\r\nHost: a\r\n\r\n"));
    let upstreams = h.gateway().snapshot().upstreams;
    assert_eq!((upstreams.opened, upstreams.reused, upstreams.idle, upstreams.open), (1, 1, 0, 1));
    h.says(member, EMPTY);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 1);
    let records = h.records();
    assert_eq!((records[0].reused, records[1].reused), (false, true));
    h.assert_no_leak();
}

#[test]
fn bodies_of_requests_pass_in_each_framing() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert!(h.hears(member).ends_with("Content-Length: 10\r\n\r\nhello"));
    h.send(1_000, "world");
    assert_eq!(h.hears(member), "world");
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    h.send(1_000, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhel");
    let member = h.accept();
    assert!(h.hears(member).ends_with("Transfer-Encoding: chunked\r\n\r\n5\r\nhel"));
    h.send(1_000, "lo\r\n3\r\nyou\r\n0\r\nX-Sum: 7\r\nHost: evil\r\n\r\n");
    assert_eq!(h.hears(member), "lo\r\n3\r\nyou\r\n0\r\nX-Sum: 7\r\n\r\n");
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    let received: Vec<u64> = h.records().iter().map(|record| record.received).collect();
    assert_eq!(received, [10, 8]);
    h.assert_no_leak();
}

#[test]
fn bodies_of_responses_pass_in_each_framing() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.says(member, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nab");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nab");
    h.says(member, "cd\r\n0\r\nX-Sum: 1\r\n\r\n");
    assert_eq!(h.reads(1_000), "cd\r\n0\r\nX-Sum: 1\r\n\r\n");
    // Until the end of the connection: in chunks of the gateway's own.
    h.send(1_000, GET);
    h.says(member, "HTTP/1.1 200 OK\r\n\r\nhello");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello");
    h.says(member, "you");
    h.closes(member);
    assert_eq!(h.reads(1_000), "\r\n3\r\nyou\r\n0\r\n\r\n");
    // HEAD: the length of a body that does not come.
    h.send(1_000, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let member = h.accept();
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n");
    // With Transfer-Encoding in the answer to HEAD.
    h.send(1_000, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    h.says(member, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\n\r\n");
    h.send(1_000, GET);
    h.says(member, "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n");
    assert_eq!(h.codes().len(), 5);
    h.assert_no_leak();
}

#[test]
fn a_client_of_http_1_0_gets_what_it_understands() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(h.hears(member), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    h.says(member, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na");
    h.send(1_000, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    h.says(member, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n");
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nab");
    assert!(h.w.clients[&1_000].fin);
    assert_eq!(h.gateway().snapshot().upstreams.idle, 1, "the member's connection is kept");
    h.assert_no_leak();
}

#[test]
fn interim_responses_pass_and_a_body_waits_for_100() {
    let mut h = Http::new(service());
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let member = h.asks(1_000, head);
    assert!(h.hears(member).contains("Expect: 100-continue"));
    h.says(member, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n");
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    assert_eq!(h.reads(1_000), hints);
    h.send(1_000, "body");
    assert_eq!(h.hears(member), "body");
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    // Refused before the body: what the client's next bytes are cannot be known.
    h.w.connect(1_001);
    h.send(1_001, head);
    h.says(member, "HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(h.reads(1_001), "HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(h.w.clients[&1_001].fin && h.w.served[&member.to_wire()].reset);
    h.assert_no_leak();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut h = Http::new(service());
    let requests: String = (0..20).map(|at| format!("GET /{at} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    let member = h.asks(1_000, &requests);
    for at in 0..20 {
        assert_eq!(h.hears(member), format!("GET /{at} HTTP/1.1\r\nHost: a\r\n\r\n"), "one at a time");
        h.says(member, format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{at:02}"));
        assert_eq!(h.reads(1_000), format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{at:02}"));
    }
    h.assert_no_leak();
}

/// Many requests that the gateway answers itself in one segment do not starve others, and are all answered.
#[test]
fn pipelined_requests_that_need_no_member_are_all_answered() {
    let mut config = service();
    config.rules.clear();
    let mut h = Http::new(config);
    h.w.connect(1_000);
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    h.send(1_000, request.repeat(300));
    assert_eq!(h.reads(1_000).matches("HTTP/1.1 404 Not Found\r\n").count(), 300);
    h.assert_no_leak();
}

/// The response comes while the request's body is still on its way.
#[test]
fn an_early_response_passes_and_the_rest_of_the_request_is_drained() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbegin");
    h.says(member, "HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
    assert_eq!(h.reads(1_000), "HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
    assert!(h.w.served[&member.to_wire()].reset, "its request is not complete");
    h.send(1_000, vec![b'x'; 995]);
    h.send(1_000, GET);
    let member = h.accept();
    assert_eq!(h.hears(member), GET);
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    // A body beyond the bound: the connection ends after the response.
    h.send(1_000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
    let member = h.accept();
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), EMPTY);
    let mut sent = 0;
    while !h.w.clients[&1_000].fin {
        sent += h.w.client_sends(1_000, &[b'x'; 1_400]);
        assert!(sent < 1 << 20);
    }
    assert!(sent > 60_000, "{sent} bytes were read before");
    assert!(!h.w.clients[&1_000].rst);
    h.assert_no_leak();
}

/// A response that is longer than all windows, with a client that reads slowly.
#[test]
fn a_long_response_passes_at_the_client_s_pace() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    let len = 400_000;
    h.says(member, format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n"));
    let body: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    h.w.clients.get_mut(&1_000).unwrap().stalled = true;
    let mut sent = 0;
    loop {
        let now = h.w.sends(member, &body[sent..]);
        sent += now;
        if now == 0 {
            break;
        }
    }
    assert!(sent < 200_000, "{sent} bytes wait: the windows bound them");
    h.w.clients.get_mut(&1_000).unwrap().stalled = false;
    h.w.pass(std::time::Duration::from_secs(5));
    while sent < len {
        let now = h.w.sends(member, &body[sent..]);
        assert!(now > 0, "at {sent}");
        sent += now;
    }
    let received = &h.w.clients[&1_000].received;
    assert!(received.ends_with(&body) && received.len() == len + 43, "{}", received.len());
    h.assert_no_leak();
}

/// A response that is cut is no complete one: the client sees it.
#[test]
fn a_client_sees_that_a_response_is_cut() {
    let mut h = Http::new(service());
    for (port, head) in [(1_000, "Content-Length: 10\r\n"), (1_001, "Transfer-Encoding: chunked\r\n")] {
        let member = h.asks(port, GET);
        h.says(member, format!("HTTP/1.1 200 OK\r\n{head}\r\n5\r\nab"));
        h.closes(member);
        let received = h.reads(port);
        assert!(received.ends_with("5\r\nab") && !received.contains("502"), "{received}");
        assert!(h.w.clients[&port].fin && !h.w.clients[&port].rst, "the framing shows it");
    }
    // Without framing a reset shows it.
    let member = h.asks(1_002, "GET / HTTP/1.0\r\n\r\n");
    h.says(member, "HTTP/1.1 200 OK\r\n\r\nabc");
    h.resets(member);
    assert!(h.w.clients[&1_002].rst && !h.w.clients[&1_002].fin);
    assert_eq!(h.codes(), [(200, "truncated-body"); 3]);
    h.assert_no_leak();
}

#[test]
fn a_client_that_resets_cancels_its_request() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.says(member, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab");
    h.w.segment(1_000, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
    assert!(h.w.served[&member.to_wire()].reset);
    // While it waits for a member.
    h.w.connect(1_001);
    h.send(1_001, GET);
    h.w.segment(1_001, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
    assert_eq!(h.codes(), [(200, "client-gone"), (499, "client-gone")]);
    assert_eq!(h.gateway().connections(), (0, 0));
    h.assert_no_leak();
}

/// A client that has sent its request and FIN gets the response.
#[test]
fn a_client_that_finishes_early_gets_its_response() {
    let mut h = Http::new(service());
    let member = h.asks(1_000, GET);
    h.w.client_finishes(1_000);
    h.says(member, EMPTY);
    assert_eq!(h.reads(1_000), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(h.w.clients[&1_000].fin);
    assert_eq!(h.gateway().connections().0, 0);
    h.assert_no_leak();
}

/// Of TLS one record is readable at a time, so that parts of heads and trailers are taken out.
#[test]
fn heads_and_trailers_come_in_parts() {
    for scheme in [Scheme::Http, Scheme::Https] {
        let mut h = Http::new(ServiceConfig { scheme, ..service() });
        h.w.connect(1_000);
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        head.bytes().for_each(|byte| h.send(1_000, [byte]));
        let member = h.accept();
        "2\r\nab\r\n0\r\nX: y\r\n\r\n".bytes().for_each(|byte| h.send(1_000, [byte]));
        assert_eq!(h.hears(member), format!("{head}2\r\nab\r\n0\r\nX: y\r\n\r\n"));
        // A part of the next request comes with the end of the response.
        h.send(1_000, "GET /ne");
        h.says(member, EMPTY);
        h.send(1_000, "xt HTTP/1.1\r\nHost: a\r\n\r\nGET /third HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(h.hears(member), "GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
        h.says(member, EMPTY);
        assert_eq!(h.hears(member), "GET /third HTTP/1.1\r\nHost: a\r\n\r\n");
        h.says(member, EMPTY);
        assert_eq!(h.reads(1_000), EMPTY.repeat(3));
        // The rest never comes.
        h.send(1_000, "GET /");
        h.w.client_finishes(1_000);
        assert!(h.reads(1_000).starts_with("HTTP/1.1 400 Bad Request\r\n"));
        assert_eq!(h.codes().last(), Some(&(400, "truncated-head")));
        h.assert_no_leak();
    }
}

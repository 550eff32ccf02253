//! An exchange allocates nothing: not for heads in one slice or several, routes, forwarding or bodies.
#![allow(clippy::unwrap_used, reason = "an unwrap that fails is a failed test")]

use csp_http::exchange::{ClientSide, FromClient, FromMember, MemberSide, StreamEnd};
use csp_http::forward::{
    Edit, Edits, Origin, OriginFields, PeerText, RequestForward, ResponseForward, TraceIds, request, response,
};
use csp_http::head::{Scheme, Scratch, normalised};
use csp_http::route::{PathSpec, RouteSpec, Routes, Subject, TextSpec};
use csp_http::{Limits, limits};
use csp_support::allocation;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

const REQUEST: &[u8] = b"POST /api/v1/%61/../b?q=1 HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: x/1.0\r\n\
    Accept: */*\r\nCookie: a=b; session=abc\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Forwarded-For: 192.0.2.9\r\n\
    Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: s\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";

fn routes() -> Routes {
    let spec = RouteSpec {
        hosts: vec!["*.example.com".into()],
        path: PathSpec::Regex("/api/v[0-9]+/.*".into()),
        cookies: vec![("session".into(), TextSpec::Regex("[a-z]+".into()))],
        query: vec![("q".into(), TextSpec::Exact("1".into()))],
        ..RouteSpec::default()
    };
    Routes::compile(&[RouteSpec::default(), spec]).unwrap()
}

#[test]
fn an_exchange_allocates_nothing() {
    let (limits, routes) = (Limits::default(), routes());
    let edits = Edits::new([Edit::Set("X-A".into(), b"1".as_slice().into())]).unwrap();
    let trace = TraceIds { trace: [1; 16], span: [2; 8], sampled: true };
    let mut scratch = Scratch::new(&limits);
    let mut room = Vec::with_capacity(limits.target_len_max);
    let mut out = vec![0; limits::HEAD_LEN_MAX];
    for size in [1_000, 50, 7] {
        let (mut client, mut member) = (ClientSide::default(), MemberSide::default());
        let request_slices: Vec<&[u8]> = REQUEST.chunks(size).collect();
        let response_slices: Vec<&[u8]> = RESPONSE.chunks(size).collect();
        let before = allocation::count();
        let source = "192.0.2.7".parse().unwrap();
        let peer = PeerText::new(source);
        let read = client.read(&request_slices, StreamEnd::Open, &limits, &mut scratch);
        let Ok(FromClient::Request(head)) = read else { panic!("{read:?}") };
        let path = normalised(head.path(), &mut room).unwrap();
        assert_eq!(routes.find(&Subject::new(&head, path, source)).unwrap().route, 1);
        let fields = OriginFields { x_forwarded: true, forwarded: true };
        let how = RequestForward {
            path,
            host: None,
            default_host: b"default",
            origin: Origin { peer: &peer, is_trusted: true, scheme: Scheme::Https, fields },
            trace: Some(&trace),
            request_id: Some([3; 16]),
            upgrade: false,
            expect: true,
            edits: &edits,
            extra: &[],
        };
        let written = request(&mut out, &head, &how).unwrap();
        client.accept(&head);
        member.begin(false, false);
        member.sent(written.len);
        let read = member.read(&response_slices, StreamEnd::Open, &limits, &mut scratch);
        let Ok(FromMember::Response(head)) = read else { panic!("{read:?}") };
        let plan = client.respond(head.framing(false));
        response(&mut out, &head, &ResponseForward { plan, date: Some(b"D"), edits: &edits, extra: &[] })
            .unwrap();
        member.accept(&head);
        assert_eq!(allocation::count() - before, 0, "in slices of {size}");
    }
}

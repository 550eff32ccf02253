//! Active checks: what passes, and what a server that fails them loses.

use csp_proxy_core::{CheckSpec, HttpCheck, ProxyHeader, Question, ServerOptions, ServiceSpec};

use super::world::{World, web};
use super::{MS, S, bytes};

pub fn checked(http: bool, header: Option<ProxyHeader>) -> ServiceSpec {
    let request = b"GET /health HTTP/1.1\r\n\r\n"[..].into();
    let question = http.then_some(Question::Http(HttpCheck { request, status: 200..=399 }));
    asked(question, header)
}

fn asked(question: Option<Question>, header: Option<ProxyHeader>) -> ServiceSpec {
    let check =
        CheckSpec { interval: 2 * S, timeout: S, rise: 2, fall: 3, port: None, header, question, tls: None };
    let servers = ServerOptions { check: Some(check.into()), header, ..ServerOptions::default() };
    ServiceSpec { servers, ..web(&[1, 2]) }
}

#[test]
fn checks_put_a_server_out_of_use_and_into_use_again() {
    let endless = [&b"HTTP/1.1 503 no\r\n\r\n"[..], &bytes(3_000_000, 1)].concat();
    for (bad, what) in [
        (&b"HTTP/1.1 500 broken\r\n\r\n"[..], "a status"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "another protocol"),
        (b"HTTP/1", "an answer that ends early"),
        (&endless, "a long answer"),
        (b"", "no answer"),
    ] {
        let mut w = World::new(&[1, 2]);
        w.policy(vec![checked(true, None)]);
        let good = b"HTTP/1.1 204 fine\r\n\r\n";
        [1, 2].into_iter().for_each(|number| w.server(number).answer = good.to_vec());
        w.run(10 * S);
        assert_eq!(w.members(), [(0, false), (0, false)], "{what}");
        let served = w.server(1).accepted.len();
        assert!((4..=7).contains(&served), "{served} checks in 10 s");
        w.server(1).answer = bad.to_vec();
        w.run(3 * S);
        assert_eq!(w.members(), [(0, false), (0, false)], "{what}: not at once");
        w.run(7 * S);
        assert_eq!(w.members(), [(0, true), (0, false)], "{what}");
        (0..4).for_each(|_| _ = w.connect());
        w.run(500 * MS);
        assert_eq!(w.members()[0], (0, true), "{what}: clients go to the other one");
        w.server(1).answer = good.to_vec();
        w.run(8 * S);
        assert_eq!(w.members()[0], (0, false), "{what}: in use again");
        assert!(w.core.flow_count() <= 8 + 2, "{what}: {} flows", w.core.flow_count());
    }
}

#[test]
fn checks_of_the_connection_notice_a_silent_server_before_a_client_does() {
    let mut w = World::new(&[1, 2]);
    w.policy(vec![checked(false, Some(ProxyHeader::V2))]);
    w.run(5 * S);
    let of_server = w.server(1).accepted[0];
    assert_eq!(w.server(1).at(of_server).read, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "no client's connection");
    w.server(1).silent = true;
    w.run(10 * S);
    assert_eq!((w.members(), w.core.counters().calls_failed), (vec![(0, true), (0, false)], 0));
    w.connect();
    w.run(50 * MS);
    assert_eq!((w.members()[1].0, w.core.counters().calls_failed), (1, 0));
    // Without checks it is tried by a connection again.
    w.policy(vec![web(&[1, 2])]);
    w.server(1).silent = false;
    w.run(S);
    w.connect();
    w.run(50 * MS);
    assert_eq!(w.members()[0], (1, false));
    w.run(10 * S);
    assert_eq!(w.core.flow_count(), 4, "no check is left");
}

#[test]
fn checks_ask_the_port_that_they_are_told() {
    let mut w = World::new(&[1, 2]);
    let mut spec = checked(false, None);
    let check = spec.servers.check.take().unwrap();
    spec.servers.check = Some(CheckSpec { port: Some(9), ..(*check).clone() }.into());
    w.policy(vec![spec]);
    w.run(15 * S);
    assert_eq!(w.members(), [(0, true), (0, true)], "nobody listens there");
}

/// A check that begins a TLS handshake passes with the server's hello, and leaves the connection then.
#[test]
fn a_check_over_tls_passes_if_the_server_greets() {
    for (answer, passes) in [
        (&b"\x16\x03\x03\0\x7a\x02\0\0\x76\x03\x03"[..], true),
        (b"\x15\x03\x03\0\x02\x02\x28", false),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", false),
        (b"", false),
    ] {
        let mut w = World::new(&[1, 2]);
        w.policy(vec![asked(Some(Question::Tls(b"hello"[..].into())), None)]);
        let mut answered = 0;
        for _ in 0..1_000 {
            w.run(10 * MS);
            let new: Vec<_> = w.server(1).accepted[answered..].to_vec();
            answered += new.len();
            new.into_iter().for_each(|label| w.server(1).write(label, answer));
        }
        assert!(answered >= 4, "{answered} checks");
        let first = w.server(1).accepted[0];
        assert_eq!(w.server(1).at(first).read, b"hello");
        let seen = w.server(1).at(first);
        assert!(seen.finished || seen.end.is_some(), "{seen:?}");
        assert_eq!(w.members()[0].1, !passes, "{answer:02x?}");
    }
}

//! What is counted by service: connections, bytes, ends and times, while policies come and go.

use csp_proxy_core::{CLASSES, EndClass, ServiceCounters, ServiceSpec};

use super::world::{World, web};
use super::{MS, S, bytes};

/// The counters of the service of this name; `None`: the policy does not name it.
fn of(w: &World, name: &str) -> Option<ServiceCounters> {
    let mut all = w.core.service_counters(0, usize::MAX).flatten();
    all.find(|(_, known, _)| *known == name).map(|(_, _, counters)| *counters)
}

/// Ends by class.
fn ends(of_classes: &[(EndClass, u64)]) -> [u64; CLASSES] {
    let mut all = [0; CLASSES];
    of_classes.iter().for_each(|(class, count)| all[*class as usize] += count);
    all
}

#[test]
fn connections_bytes_and_times_are_what_happened() {
    let mut w = World::new(&[1]);
    w.server(1).echoes = true;
    for len in [5_000, 300_000] {
        let label = w.connect();
        w.client().write(label, &bytes(len, 1));
        w.client().finish(label);
        w.run(S);
    }
    w.run(3 * S);
    let web = of(&w, "web").unwrap();
    assert_eq!((web.opened, web.received_bytes, web.sent_bytes), (2, 305_000, 305_000));
    assert_eq!(web.ended, ends(&[(EndClass::Ok, 2)]));
    // A packet takes 1 ms: a round trip to the server, and one for the bytes and their echo.
    assert_eq!(web.first_byte, [0, 0, 2, 0, 0, 0, 0, 0]);
    assert_eq!(web.first_byte_ns, 2 * 4_000_000);
    assert!(web.duration_ns > 2 * 4_000_000 && web.duration_ns < 1_000_000_000, "{web:?}");
}

#[test]
fn bytes_count_while_the_connection_is_open() {
    let mut w = World::new(&[1]);
    let label = w.connect();
    w.client().write(label, &bytes(1_234, 1));
    w.run(20 * MS);
    let web = of(&w, "web").unwrap();
    assert_eq!((web.opened, web.received_bytes, web.sent_bytes), (1, 1_234, 0));
    assert_eq!((web.ended, web.first_byte), (ends(&[]), [0; 8]));
}

#[test]
fn each_end_counts_in_its_class() {
    let mut w = World::new(&[1]);
    // The client resets, then the server.
    let label = w.connect();
    w.run(20 * MS);
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(20 * MS);
    w.connect();
    w.run(20 * MS);
    let (now, of_server) = (w.now, *w.server(1).accepted.last().unwrap());
    w.server(1).tcp.abort(now, of_server);
    w.run(S);
    assert_eq!(of(&w, "web").unwrap().ended, ends(&[(EndClass::Client, 1), (EndClass::Server, 1)]));
    // No server listens.
    assert!(w.server(1).tcp.unlisten((super::world::server(1), super::world::PORT).into()));
    w.connect();
    w.run(10 * S);
    let web = of(&w, "web").unwrap();
    assert_eq!(web.ended, ends(&[(EndClass::Client, 1), (EndClass::Server, 2)]));
    assert_eq!(web.opened, 3);
}

#[test]
fn a_connection_without_its_header_counts_and_a_balancers_check_does_not() {
    let mut w = World::new(&[1]);
    w.policy(vec![ServiceSpec { accept_proxy_from: vec!["10.0.0.0/24".parse().unwrap()], ..web(&[1]) }]);
    let label = w.connect();
    w.client().finish(label);
    w.run(S);
    assert_eq!(of(&w, "web").unwrap(), ServiceCounters::default());
    let label = w.connect();
    w.client().write(label, b"GET / HTTP/1.1\r\n\r\n");
    w.run(S);
    let counted = of(&w, "web").unwrap();
    assert_eq!((counted.opened, counted.ended), (1, ends(&[(EndClass::Client, 1)])));
}

#[test]
fn counters_stay_through_policies_that_name_the_service_and_begin_anew_after_one_that_does_not() {
    let other = || ServiceSpec { name: "other".to_owned(), address: ([10, 0, 0, 1], 81).into(), ..web(&[1]) };
    let mut w = World::new(&[1]);
    w.server(1).echoes = true;
    let label = w.connect();
    w.client().write(label, &bytes(100, 1));
    w.run(20 * MS);
    // Another service comes, and the first one stays.
    w.policy(vec![other(), web(&[1])]);
    assert_eq!(of(&w, "web").unwrap().received_bytes, 100);
    assert_eq!(of(&w, "other"), Some(ServiceCounters::default()));
    w.client().write(label, &bytes(100, 1));
    w.run(20 * MS);
    assert_eq!(of(&w, "web").unwrap().received_bytes, 200);
    // It goes, but for its connection, and comes back.
    w.policy(vec![other()]);
    assert_eq!(of(&w, "web"), None);
    w.client().write(label, &bytes(100, 1));
    w.run(20 * MS);
    assert_eq!(of(&w, "other"), Some(ServiceCounters::default()), "its connection counts at no other");
    w.policy(vec![other(), web(&[1])]);
    assert_eq!(of(&w, "web"), Some(ServiceCounters::default()));
    w.client().finish(label);
    w.run(3 * S);
    // It goes with its last connection, and another one gets its place.
    w.policy(vec![other()]);
    w.policy(vec![other(), ServiceSpec { name: "new".to_owned(), ..web(&[1]) }]);
    assert_eq!((of(&w, "web"), of(&w, "new")), (None, Some(ServiceCounters::default())));
    w.connect();
    w.run(20 * MS);
    assert_eq!((of(&w, "new").unwrap().opened, of(&w, "other").unwrap().opened), (1, 0));
}

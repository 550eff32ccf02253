//! Which server gets a connection when some are backups, were down, or are preferred by the client's address.

use csp_proxy_core::{AllDown, Balance, ServerOptions, ServiceSpec};
use csp_tcp::FailReason;

use super::checks::checked;
use super::host::End;
use super::world::{PORT, World, server, web};
use super::{MS, S};

/// Opens `count` connections one after the other, which stay; returns how many each server has accepted since
/// `before`.
fn accepted(w: &mut World, servers: &[u8], count: usize) -> Vec<usize> {
    let of = |w: &mut World| -> Vec<usize> { servers.iter().map(|n| w.server(*n).accepted.len()).collect() };
    let before = of(w);
    for _ in 0..count {
        w.connect();
        w.run(10 * MS);
    }
    of(w).into_iter().zip(before).map(|(after, before)| after - before).collect()
}

fn stop(w: &mut World, number: u8) {
    assert!(w.server(number).tcp.unlisten((server(number), PORT).into()));
}

fn start(w: &mut World, number: u8) {
    w.server(number).tcp.listen((server(number), PORT).into(), 0).unwrap();
}

#[test]
fn a_backup_serves_while_no_other_server_can() {
    let mut w = World::new(&[1, 2, 3]);
    let mut spec = web(&[1, 2, 3]);
    spec.pool[2].backup = true;
    w.policy(vec![spec]);
    assert_eq!(accepted(&mut w, &[1, 2, 3], 6), [3, 3, 0]);
    stop(&mut w, 1);
    assert_eq!(accepted(&mut w, &[1, 2, 3], 4), [0, 4, 0], "one is left");
    stop(&mut w, 2);
    assert_eq!(accepted(&mut w, &[1, 2, 3], 3), [0, 0, 3], "the first of them tried server 2 before");
    start(&mut w, 1);
    w.run(5 * S);
    let back = accepted(&mut w, &[1, 2, 3], 4);
    assert!(back[0] >= 1 && back[1] == 0, "{back:?}: a connection tries it");
    assert_eq!(accepted(&mut w, &[1, 2, 3], 3), [3, 0, 0], "the backup gets none any more");
    // One whose weight is 0 is none that a backup waits for.
    let mut w = World::new(&[1, 2]);
    let mut spec = web(&[1, 2]);
    (spec.pool[0].weight, spec.pool[1].backup) = (0, true);
    w.policy(vec![spec]);
    assert_eq!(accepted(&mut w, &[1, 2], 2), [0, 2]);
}

#[test]
fn while_all_are_down_clients_are_refused_or_served_as_the_policy_says() {
    for all_down in [AllDown::Refuse, AllDown::Serve] {
        let mut w = World::new(&[1, 2]);
        let spec = checked(true, None);
        let servers = ServerOptions { all_down, ..spec.servers.clone() };
        w.policy(vec![ServiceSpec { servers, ..spec }]);
        // Checks ask for a path that both lack, but they serve.
        [1, 2].into_iter().for_each(|n| w.server(n).answer = b"HTTP/1.1 404 no\r\n\r\n".to_vec());
        w.run(10 * S);
        assert_eq!(w.members(), [(0, true), (0, true)]);
        let label = w.connect();
        w.client().write(label, b"GET / HTTP/1.1\r\n\r\n");
        w.run(5 * S);
        let got = w.client().at(label);
        match all_down {
            AllDown::Refuse => assert_eq!(got.end, Some(End::Failed(FailReason::Reset))),
            AllDown::Serve => assert_eq!(got.read, b"HTTP/1.1 404 no\r\n\r\n"),
        }
        assert!(w.members().iter().all(|(_, down)| *down), "only checks put them into use");
    }
    // A server that is not checked is down because clients could not reach it: they wait until it can be.
    let mut w = World::new(&[1]);
    let servers = ServerOptions { all_down: AllDown::Serve, ..ServerOptions::default() };
    w.policy(vec![ServiceSpec { servers, ..web(&[1]) }]);
    stop(&mut w, 1);
    let label = w.connect();
    w.run(500 * MS);
    start(&mut w, 1);
    w.run(S);
    assert_eq!((w.client().at(label).end, w.members()), (None, vec![(1, false)]));
}

#[test]
fn those_that_wait_for_a_server_go_to_a_backup_when_it_is_down() {
    let mut w = World::new(&[1, 2]);
    let mut spec = checked(false, None);
    (spec.pool[0].connections_max, spec.pool[1].backup) = (2, true);
    w.policy(vec![spec]);
    w.run(5 * S);
    let checks = w.server(2).accepted.len();
    assert_eq!(accepted(&mut w, &[1], 4), [2]);
    assert_eq!(w.core.waiting_count(), 2, "the server is full, and the backup is not asked");
    w.server(1).silent = true;
    w.run(20 * S);
    assert_eq!((w.core.waiting_count(), w.members()[0].1), (0, true));
    assert!(w.server(2).accepted.len() >= checks + 2);
}

#[test]
fn a_server_that_is_up_again_gets_its_share_by_and_by() {
    let mut w = World::new(&[1, 2]);
    let servers = ServerOptions { slow_start: 20 * S, ..ServerOptions::default() };
    w.policy(vec![ServiceSpec { servers, ..web(&[1, 2]) }]);
    assert_eq!(accepted(&mut w, &[1, 2], 8), [4, 4], "at the start all are warm");
    stop(&mut w, 1);
    assert_eq!(accepted(&mut w, &[1, 2], 12), [0, 12]);
    let now = w.now;
    let of_first = w.server(1).accepted.clone();
    of_first.into_iter().for_each(|label| w.server(1).tcp.abort(now, label));
    start(&mut w, 1);
    w.run(2 * S);
    // One connection tries it; with it, it has 32 for its share, more than the other one's 16.
    assert_eq!(accepted(&mut w, &[1, 2], 1), [1, 0]);
    assert_eq!(accepted(&mut w, &[1, 2], 10), [0, 10]);
    w.run(10 * S);
    let half = accepted(&mut w, &[1, 2], 20);
    assert!((12..=16).contains(&half[0]), "{half:?}: of 47 in all it should have a third");
    w.run(10 * S);
    let members = w.members();
    let missing = (members[1].0 - members[0].0) as usize;
    assert_eq!(accepted(&mut w, &[1, 2], missing + 6), [missing + 3, 3], "it is warm");
    // One after the other, so that nobody has any open: turns follow the shares, too.
    let mut w = World::new(&[1, 2]);
    let servers = ServerOptions { slow_start: 20 * S, ..ServerOptions::default() };
    w.policy(vec![ServiceSpec { servers, ..web(&[1, 2]) }]);
    stop(&mut w, 1);
    let short = |w: &mut World, count: usize| {
        let before = w.server(1).accepted.len();
        for _ in 0..count {
            let (label, now) = (w.connect(), w.now);
            w.run(10 * MS);
            w.client().tcp.abort(now, label);
            w.run(10 * MS);
        }
        w.server(1).accepted.len() - before
    };
    short(&mut w, 4);
    start(&mut w, 1);
    w.run(2 * S);
    assert!((1..=4).contains(&short(&mut w, 40)), "it has just begun");
    w.run(8 * S);
    // A third of what is left once the others have had the turns that its last one, at a 32nd, stands for.
    let half = short(&mut w, 60);
    assert!((10..=20).contains(&half), "{half} of 60");
    w.run(10 * S);
    let whole = short(&mut w, 40);
    assert!((19..=21).contains(&whole), "{whole} of 40");
}

#[test]
fn a_server_that_was_down_is_tried_before_a_backup_however_many_it_has() {
    let mut w = World::new(&[1, 2]);
    let mut spec = web(&[1, 2]);
    spec.pool[1].backup = true;
    w.policy(vec![spec]);
    assert_eq!(accepted(&mut w, &[1, 2], 20), [20, 0]);
    stop(&mut w, 1);
    assert_eq!(accepted(&mut w, &[1, 2], 3), [0, 3]);
    start(&mut w, 1);
    w.run(2 * S);
    assert_eq!(accepted(&mut w, &[1, 2], 3), [3, 0]);
}

#[test]
fn by_its_address_a_client_gets_one_server_as_long_as_that_is_up() {
    let mut w = World::new(&[1, 2, 3]);
    let servers = ServerOptions { balance: Balance::Source, ..ServerOptions::default() };
    w.policy(vec![ServiceSpec { servers, ..web(&[1, 2, 3]) }]);
    let got = accepted(&mut w, &[1, 2, 3], 12);
    let of_server = |got: &[usize]| got.iter().position(|n| *n > 0).unwrap();
    let (first, count) = (of_server(&got), got.iter().max());
    assert_eq!(count, Some(&12), "{got:?}");
    stop(&mut w, first as u8 + 1);
    let got = accepted(&mut w, &[1, 2, 3], 12);
    let second = of_server(&got);
    assert!(second != first && got[second] == 12, "{got:?}");
    start(&mut w, first as u8 + 1);
    w.run(3 * S);
    let got = accepted(&mut w, &[1, 2, 3], 12);
    assert_eq!(got[first], 12, "{got:?}: it has its client again");
}

//! What the log says of connections: who had them, how long it took, who ended them.

use csp_proxy_core::{EndedConnection, ServerHost};
use csp_types::Duration;

use super::world::{CLIENT, PORT, VIP, World, server};
use super::{MS, S, bytes};

fn logged(servers: &[u8], sample: u32) -> World {
    let mut w = World::new(servers);
    w.core.set_connection_log(Some(&|_| sample));
    w
}

fn ends(w: &mut World) -> Vec<(&'static str, &'static str)> {
    records(w).iter().map(|record| (record.end.as_str(), record.end.code())).collect()
}

fn records(w: &mut World) -> Vec<EndedConnection> {
    w.core.take_ended_connections(Vec::new()).0
}

#[test]
fn a_record_has_the_server_the_bytes_and_the_times() {
    let mut w = logged(&[1], 1);
    w.server(1).echoes = true;
    let label = w.connect();
    w.client().write(label, &bytes(5_000, 1));
    w.run(100 * MS);
    w.client().finish(label);
    w.run(3 * S);
    let all = records(&mut w);
    let [record] = &all[..] else { panic!("{all:?}") };
    assert_eq!(
        (&*record.service, record.bytes, record.end.as_str()),
        ("web", (5_000, 5_000), "closed_by_client")
    );
    assert_eq!(record.server, Some((ServerHost::Address(server(1).into()), PORT)));
    assert_eq!(
        (record.tuple.local.to_string(), record.tuple.remote.ip()),
        (format!("{VIP}:80"), CLIENT.into())
    );
    // A packet takes 1 ms: a round trip to the client, one to the server, its answer.
    assert_eq!(record.handshake_us, 2_000);
    let opened = record.opened.unwrap();
    let byte = record.first_byte.unwrap();
    assert!(
        opened.saturating_since(record.began) >= 2 * MS && byte > opened && record.ended > byte,
        "{record:?}"
    );
    assert!(record.figures.srtt_us >= 1_000 && record.figures.retransmits == 0, "{record:?}");
}

#[test]
fn each_end_has_its_reason() {
    let mut w = logged(&[1], 0);
    // Both finish: with a sample of 0 nobody hears of it.
    w.server(1).echoes = true;
    let label = w.connect();
    w.client().finish(label);
    w.run(5 * S);
    assert_eq!(ends(&mut w), []);
    w.server(1).echoes = false;
    // The client resets, then the server.
    let label = w.connect();
    w.run(20 * MS);
    let now = w.now;
    w.client().tcp.abort(now, label);
    w.run(20 * MS);
    assert_eq!(ends(&mut w), [("client_reset", "CR")]);
    w.connect();
    w.run(20 * MS);
    let (now, of_server) = (w.now, *w.server(1).accepted.last().unwrap());
    w.server(1).tcp.abort(now, of_server);
    w.run(S);
    assert_eq!(ends(&mut w), [("server_reset", "SR")]);
    // The server finishes, and the client never does.
    w.connect();
    w.run(20 * MS);
    let of_server = *w.server(1).accepted.last().unwrap();
    w.server(1).finish(of_server);
    w.run(180 * S);
    assert_eq!(ends(&mut w), [("half_closed", "PC")]);
    // No server listens.
    assert!(w.server(1).tcp.unlisten((server(1), PORT).into()));
    w.connect();
    w.run(10 * S);
    let [(end, _)] = ends(&mut w)[..] else { panic!("one end") };
    assert!(["no_server", "server_unreachable"].contains(&end), "{end}");
    // Off, nothing is recorded.
    w.core.set_connection_log(None);
    w.connect();
    w.run(10 * S);
    assert_eq!(ends(&mut w), []);
}

#[test]
fn a_silent_client_is_told_from_a_silent_server() {
    for silent_client in [true, false] {
        let mut w = logged(&[1], 1);
        let label = w.connect();
        w.run(20 * MS);
        let of_server = *w.server(1).accepted.last().unwrap();
        match silent_client {
            true => {
                w.client().silent = true;
                w.server(1).write(of_server, b"to the client");
            }
            false => {
                w.server(1).silent = true;
                w.client().write(label, b"to the server");
            }
        }
        w.run(Duration::from_secs(3600));
        let expected = if silent_client { ("client_silent", "CT") } else { ("server_silent", "ST") };
        assert_eq!(ends(&mut w), [expected]);
    }
}

#[test]
fn one_in_so_many_is_recorded_and_what_has_no_room_is_counted() {
    let mut w = logged(&[1], 10);
    w.server(1).echoes = true;
    for _ in 0..100 {
        let label = w.connect();
        w.client().finish(label);
        w.run(10 * MS);
    }
    w.run(5 * S);
    assert_eq!(records(&mut w).len(), 10);
}

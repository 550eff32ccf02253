//! Programs of the cluster as clients: their connections take neither LAN nor TCP.

use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use crate::http::{Http, service};

const PROGRAM: u32 = 9_000;

/// Has the program receive all that is sent to it, with little room.
fn receive(h: &mut Http, program: FlowLabel, credited: &mut usize) {
    loop {
        let received = h.w.served[&program.to_wire()].received.len();
        if received == *credited {
            return;
        }
        h.w.says(program, MessageKind::Credit, (received - *credited) as u32, &[]);
        *credited = received;
    }
}

#[test]
fn a_program_with_little_room_gets_its_responses() {
    for room in [7, 90, 3_000] {
        let mut h = Http::new(service());
        h.w.process(PROGRAM, 0);
        let program = h.w.dial(PROGRAM, room);
        let mut credited = 0;
        h.says(program, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        let member = h.accept();
        assert!(h.hears(member).ends_with("\r\n\r\nabc"));
        h.says(member, "HTTP/1.1 200 OK\r\n\r\n");
        let body: Vec<u8> = (0..5_000).map(|at| (at % 251) as u8).collect();
        h.says(member, &body);
        receive(&mut h, program, &mut credited);
        h.closes(member);
        receive(&mut h, program, &mut credited);
        let received = h.w.served[&program.to_wire()].received.clone();
        assert!(received.starts_with(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
        assert!(received.ends_with(b"\r\n0\r\n\r\n"), "{room}: {} bytes", received.len());
        h.says(program, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
        let member = h.accept();
        h.says(member, "HTTP/1.1 204 No Content\r\n\r\n");
        receive(&mut h, program, &mut credited);
        assert!(h.w.served[&program.to_wire()].received.ends_with(b"HTTP/1.1 204 No Content\r\n\r\n"));
        h.w.says(program, MessageKind::Close, 0, &[]);
        h.assert_no_leak();
    }
}

//! Behaviour over the memory provider, against a scripted proxy.

mod draining;
mod harness;
mod interest;
mod page;
mod pool;
mod redirect;
mod write;

use super::refused::LISTEN_AGAIN;
use csp_types::{FlowLabel, Role, TraceKind};
use csp_wire::channel::{
    CLOSE_UNREAD, CREDIT_WIDER, ListenPayload, MessageHeader, MessageKind::*, close_argument,
};
use harness::*;

use super::*;

#[test]
fn one_transaction_is_open_data_data_close() {
    let mut w = World::new();
    let listener = w.listening(80);
    w.proxy.open(&w.fabric_now(), label(1), listener);
    let flow = w.accept(listener);
    assert_eq!(w.proxy.take(), [(Accepted, label(1).to_wire(), WINDOW, vec![])]);
    w.proxy.data(label(1), b"GET /");
    w.run();
    let mut buffer = [0; 64];
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(5));
    assert_eq!(&buffer[..5], b"GET /");
    assert_eq!(w.app.write(w.now, flow, &[b"200 ", b"", b"OK"]), Ok(6));
    w.app.close(w.now, flow, false).unwrap();
    w.run();
    let sent = w.proxy.take();
    assert_eq!(sent[0], (Data, label(1).to_wire(), 0, b"200 OK".to_vec()));
    assert_eq!(sent[1], (Close, label(1).to_wire(), close_argument(Some(5)), vec![]), "all was read");
    assert_eq!((sent.len(), w.app.flow_count()), (2, 1));
    w.proxy.send(Close, label(1).to_wire(), 0, &[]);
    w.run();
    assert_eq!(w.app.flow_count(), 0, "both sides ended");
    let kinds: Vec<_> = w.app.trace().iter().map(|e| e.kind).collect();
    use TraceKind::{AppClose, AppDataIn, AppDataOut, AppOpen};
    assert_eq!(kinds, [AppOpen, AppDataIn, AppDataOut, AppClose]);
}

#[test]
fn nothing_is_offered_before_interest_and_all_returns_with_the_listener() {
    let mut w = World::new();
    let listener = w.app.listen("0.0.0.0:80".parse().unwrap(), 4).unwrap();
    w.run();
    let address = ListenPayload { address: "0.0.0.0:80".parse().unwrap() };
    assert_eq!(w.proxy.take(), [(Listen, listener.to_wire(), 4, address.emit().to_vec())]);
    w.app.set_interest(listener, true).unwrap();
    w.run();
    assert_eq!(w.proxy.take(), [(AcceptCredit, listener.to_wire(), 4, vec![])]);
    for n in 1..=3 {
        w.proxy.open(&w.now, label(n), listener);
    }
    w.run();
    assert!(w.app.readiness(Handle::Listener(listener)).contains(Readiness::READABLE));
    w.app.close_listener(listener).unwrap();
    w.run();
    let kinds: Vec<_> = w.proxy.take().iter().map(|m| (m.0, m.1)).collect();
    let refused = |n| (Refused, label(n).to_wire());
    assert_eq!(kinds, [(Unlisten, listener.to_wire()), refused(1), refused(2), refused(3)]);
    assert_eq!(w.app.flow_count(), 0);
    w.proxy.open(&w.now, label(4), listener);
    w.run();
    assert_eq!(w.proxy.take()[0].0, Refused, "an OPEN that crossed UNLISTEN is refused");
}

#[test]
fn a_listener_whose_port_belongs_to_another_user_is_announced_again_and_a_denied_one_is_not() {
    let mut w = World::new();
    let listener = w.listening(4);
    let again = LISTEN_AGAIN.as_millis() as u64;
    w.proxy.send(Refused, listener.to_wire(), errno::EADDRINUSE as u32, &[]);
    w.run_for(again - 10);
    assert_eq!(w.proxy.take(), []);
    assert!(w.app.next_timeout().is_some_and(|due| due <= w.now + LISTEN_AGAIN));
    w.run_for(20);
    let sent: Vec<_> = w.proxy.take().iter().map(|m| (m.0, m.1, m.2)).collect();
    assert_eq!(sent, [(Listen, listener.to_wire(), 4), (AcceptCredit, listener.to_wire(), 4)]);
    w.proxy.send(Refused, listener.to_wire(), errno::EACCES as u32, &[]);
    w.run_for(2 * again);
    assert_eq!(w.proxy.take(), []);
    assert_eq!(w.app.counters().listen_refused, 2);
}

#[test]
fn credit_is_topped_up_as_the_program_accepts() {
    let mut w = World::new();
    let listener = w.listening(4);
    for n in 1..=4 {
        w.proxy.open(&w.now, label(n), listener);
    }
    w.run();
    w.accept(listener);
    assert!(w.proxy.take().iter().all(|m| m.0 != AcceptCredit), "one free place does not cause a message");
    w.accept(listener);
    assert!(w.proxy.take().contains(&(AcceptCredit, listener.to_wire(), 2, vec![])));
    // An offer beyond the granted credit breaks the link.
    for n in 5..=7 {
        w.proxy.open(&w.now, label(n), listener);
    }
    w.run();
    assert_eq!((w.app.counters().protocol_violations, w.app.channels_up()), (1, 0));
}

#[test]
fn the_end_of_the_stream_comes_after_the_data() {
    let (mut w, flow) = World::with_flow();
    w.proxy.data(label(1), b"last");
    w.proxy.send(Shutdown, label(1).to_wire(), 0, &[]);
    w.run();
    let ready = w.app.readiness(Handle::Flow(flow));
    assert!(ready.contains(Readiness::READABLE.with(Readiness::PEER_SHUTDOWN)));
    assert!(!ready.contains(Readiness::HANG_UP), "this side can still write");
    let mut buffer = [0; 64];
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(4));
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(0));
    assert_eq!(w.app.write(w.now, flow, &[b"answer"]), Ok(6));
    w.app.shutdown(w.now, flow, Directions { read: false, write: true }).unwrap();
    assert_eq!(w.app.write(w.now, flow, &[b"more"]), Err(AppError::Pipe));
    assert!(w.app.readiness(Handle::Flow(flow)).contains(Readiness::HANG_UP));
    w.run();
    let kinds: Vec<_> = w.proxy.take().iter().map(|m| m.0).collect();
    assert_eq!(kinds, [Data, Shutdown]);
}

#[test]
fn a_reset_is_reported_after_the_delivered_data_and_once() {
    let (mut w, flow) = World::with_flow();
    w.proxy.data(label(1), b"last");
    w.proxy.send(Reset, label(1).to_wire(), 104, &[]);
    w.run();
    assert_eq!(w.proxy.take(), [(Close, label(1).to_wire(), 0, vec![])], "the label is free again");
    let mut buffer = [0; 2];
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(2));
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(2));
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Err(AppError::Broken(errno::ECONNRESET)));
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(0));
    assert_eq!(w.app.write(w.now, flow, &[b"x"]), Err(AppError::Pipe));
    w.app.close(w.now, flow, false).unwrap();
    assert_eq!(w.app.flow_count(), 0);
}

#[test]
fn a_reset_behind_the_end_of_the_stream_is_an_error_of_writing_only() {
    let (mut w, flow) = World::with_flow();
    w.proxy.data(label(1), b"last");
    w.proxy.send(Shutdown, label(1).to_wire(), 0, &[]);
    w.proxy.send(Reset, label(1).to_wire(), 104, &[]);
    w.run();
    let ready = w.app.readiness(Handle::Flow(flow));
    assert!(ready.contains(Readiness::HANG_UP.with(Readiness::ERROR)));
    let mut buffer = [0; 8];
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(4));
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(0));
    assert_eq!(w.app.error(flow), Some(errno::EPIPE), "as in a kernel's CLOSE-WAIT");
    assert_eq!(w.app.write(w.now, flow, &[b"x"]), Err(AppError::Pipe));
    assert_eq!((w.app.error(flow), w.app.read(w.now, flow, &mut buffer, false)), (None, Ok(0)));
    // After its own end of the stream, the reset is reported as one; the other's stream is still whole.
    let (mut w, flow) = World::with_flow();
    w.proxy.send(Shutdown, label(1).to_wire(), 0, &[]);
    w.run();
    w.app.shutdown(w.now, flow, Directions { read: false, write: true }).unwrap();
    w.proxy.send(Reset, label(1).to_wire(), 104, &[]);
    w.run();
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(0));
    assert_eq!(w.app.take_error(flow), Some(errno::ECONNRESET));
}

#[test]
fn closing_with_unread_data_or_linger_zero_is_signalled() {
    let (mut w, flow) = World::with_flow();
    w.proxy.data(label(1), b"unread");
    w.run();
    w.app.close(w.now, flow, false).unwrap();
    w.run();
    assert_eq!(w.proxy.take(), [(Close, label(1).to_wire(), close_argument(Some(0)), vec![])]);
    assert_eq!(w.proxy.last_flags, CLOSE_UNREAD);
    let (mut w, flow) = World::with_flow();
    w.app.close(w.now, flow, true).unwrap();
    w.run();
    assert_eq!(w.proxy.take(), [(Reset, label(1).to_wire(), close_argument(Some(0)), vec![])]);
}

#[test]
fn a_client_that_leaves_before_accept_is_not_accepted() {
    let mut w = World::new();
    let listener = w.listening(4);
    w.proxy.open(&w.now, label(1), listener);
    w.proxy.send(Reset, label(1).to_wire(), 104, &[]);
    w.run();
    assert_eq!(w.app.accept(listener), Err(AppError::WouldBlock));
    assert_eq!(w.proxy.take(), [(Close, label(1).to_wire(), 0, vec![])]);
    assert_eq!((w.app.flow_count(), w.app.counters().gone_before_accept), (0, 1));
}

#[test]
fn writing_stops_at_the_window_and_resumes_with_credit() {
    let (mut w, flow) = World::with_flow();
    let data = vec![7; WINDOW as usize + 1000];
    let mut sent = 0;
    loop {
        match w.app.write(w.now, flow, &[&data[sent..]]) {
            Ok(n) => sent += n,
            Err(AppError::WouldBlock) if sent == WINDOW as usize => break,
            Err(AppError::WouldBlock) => {}
            Err(e) => panic!("{e}"),
        }
        w.run();
    }
    assert!(!w.app.readiness(Handle::Flow(flow)).contains(Readiness::WRITABLE));
    while w.app.poll_ready().is_some() {}
    w.proxy.send(Credit, label(1).to_wire(), WINDOW, &[]);
    w.run();
    assert_eq!(w.app.poll_ready(), Some(Handle::Flow(flow)));
    assert!(w.app.readiness(Handle::Flow(flow)).contains(Readiness::WRITABLE));
    assert_eq!(w.app.write(w.now, flow, &[&data[sent..]]), Ok(1000));
    w.run();
    let received: Vec<u8> = w.proxy.take().into_iter().flat_map(|m| m.3).collect();
    assert_eq!(received, data);
    w.proxy.send(Credit, label(1).to_wire(), 1001, &[]);
    w.run();
    assert_eq!(w.app.counters().protocol_violations, 1, "more credit than was taken");
}

#[test]
fn a_wider_window_wakes_the_writer_that_waits() {
    let (mut w, flow) = World::with_flow();
    let data = vec![7; WINDOW as usize];
    let mut sent = 0;
    while sent < data.len() {
        sent += w.app.write(w.now, flow, &[&data[sent..]]).unwrap_or(0);
        w.run();
    }
    assert_eq!(w.app.write(w.now, flow, &[b"more"]), Err(AppError::WouldBlock));
    while w.app.poll_ready().is_some() {}
    let header = MessageHeader::of_flow(Credit, label(1), WINDOW, 0);
    w.proxy.send_header(MessageHeader { flags: CREDIT_WIDER, ..header }, &[]);
    w.run();
    assert_eq!(w.app.poll_ready(), Some(Handle::Flow(flow)));
    assert_eq!(w.app.write(w.now, flow, &[b"more"]), Ok(4));
    w.proxy.send_header(MessageHeader { flags: CREDIT_WIDER, argument: u32::MAX, ..header }, &[]);
    w.run();
    assert_eq!(w.app.counters().protocol_violations, 1, "wider than any window");
}

#[test]
fn a_flow_that_was_filled_exactly_is_notified_of_room() {
    let (mut w, flow) = World::with_flow();
    let (data, mut sent) = (vec![7; WINDOW as usize], 0);
    while sent < data.len() {
        sent += w.app.write(w.now, flow, &[&data[sent..]]).unwrap_or(0);
        w.run();
    }
    assert!(!w.app.readiness(Handle::Flow(flow)).contains(Readiness::WRITABLE));
    while w.app.poll_ready().is_some() {}
    w.proxy.send(Credit, label(1).to_wire(), WINDOW, &[]);
    w.run();
    assert_eq!(w.app.poll_ready(), Some(Handle::Flow(flow)), "notified although no write was refused");
}

#[test]
fn writing_stops_without_descriptors_and_resumes_with_them() {
    let (mut w, flow) = World::with_flow();
    let mut written = 0;
    while let Ok(n) = w.app.write(w.now, flow, &[b"x"]) {
        written += n;
        assert!(written < 1000, "descriptors never end");
    }
    assert!(!w.app.readiness(Handle::Flow(flow)).contains(Readiness::WRITABLE));
    while w.app.poll_ready().is_some() {}
    w.run();
    assert_eq!(w.app.poll_ready(), Some(Handle::Flow(flow)));
    assert!(w.app.readiness(Handle::Flow(flow)).contains(Readiness::WRITABLE));
}

#[test]
fn no_blocked_flow_is_passed_over_when_others_take_the_descriptors_first() {
    let mut w = World::new();
    let listener = w.listening(64);
    let mut flows: Vec<FlowId> = Vec::new();
    for at in 1..=40 {
        w.proxy.open(&w.now, label(at), listener);
        flows.push(w.accept(listener));
    }
    while w.app.write(w.now, flows[0], &[b"x"]).is_ok() {}
    // All writes fail; the first flow uses every descriptor that becomes free before the others are notified.
    let mut waiting: Vec<FlowId> = flows[1..].to_vec();
    waiting.iter().for_each(|f| assert!(w.app.write(w.now, *f, &[b"x"]).is_err()));
    while w.app.poll_ready().is_some() {}
    for _ in 0..200 {
        w.run();
        while w.app.write(w.now, flows[0], &[b"x"]).is_ok() {}
        while let Some(Handle::Flow(notified)) = w.app.poll_ready() {
            if w.app.readiness(Handle::Flow(notified)).contains(Readiness::WRITABLE) {
                let _ = w.app.write(w.now, notified, &[b"x"]); // blocked again, and to be notified again
            }
        }
    }
    for _ in 0..100 {
        w.run();
        while let Some(Handle::Flow(notified)) = w.app.poll_ready() {
            if w.app.write(w.now, notified, &[b"x"]).is_ok() {
                waiting.retain(|f| *f != notified);
            }
        }
    }
    assert_eq!(waiting, [], "notified of descriptors, and able to write in the end");
}

#[test]
fn credit_is_returned_as_the_program_reads() {
    let (mut w, flow) = World::with_flow();
    let mut buffer = vec![0; 16 * 1024];
    for _ in 0..4 {
        w.proxy.data(label(1), &buffer.clone());
        w.run();
        assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(16 * 1024));
    }
    w.run();
    let returned: u32 = w.proxy.take().iter().filter(|m| m.0 == Credit).map(|m| m.2).sum();
    assert_eq!(returned, WINDOW, "each quarter of the window was returned");
    let whole = vec![0; 16 * 1024];
    for _ in 0..5 {
        w.proxy.data(label(1), &whole);
    }
    w.run();
    assert_eq!(w.app.counters().protocol_violations, 1, "beyond the window");
}

#[test]
fn a_lost_proxy_resets_its_flows_and_receives_the_listeners_when_back() {
    let mut w = World::new();
    let listener = w.listening(4);
    w.proxy.open(&w.now, label(1), listener);
    w.proxy.open(&w.now, label(2), listener);
    let flow = w.accept(listener);
    w.proxy.data(label(1), b"bytes");
    w.run();
    w.proxy.restart(&w.fabric);
    w.run_for(5_000);
    let mut buffer = [0; 64];
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Ok(5), "delivered data first");
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Err(AppError::Broken(errno::ECONNRESET)));
    assert_eq!(w.app.accept(listener), Err(AppError::WouldBlock), "the other has returned to the proxy");
    let kinds: Vec<_> = w.proxy.take().iter().map(|m| (m.0, m.2)).collect();
    assert_eq!(kinds, [(Unlisten, 0), (Listen, 4), (AcceptCredit, 4)]);
    assert_eq!((w.app.counters().links_up, w.app.counters().links_lost), (2, 1));
    w.app.close(w.now, flow, false).unwrap();
    assert_eq!(w.app.flow_count(), 0);
}

#[test]
fn connect_gives_a_connection_or_the_reason() {
    let mut w = World::new();
    let to = "10.76.0.1:9000".parse().unwrap();
    let flow = w.app.connect(w.now, to, None).unwrap();
    w.run();
    let (kind, request, window, payload) = w.proxy.take().remove(0);
    assert_eq!((kind, window, payload.len()), (Connect, WINDOW, 20));
    let mut buffer = [0; 4];
    assert_eq!(w.app.write(w.now, flow, &[b"x"]), Err(AppError::WouldBlock));
    assert_eq!(w.app.read(w.now, flow, &mut buffer, false), Err(AppError::WouldBlock));
    assert!(!w.app.readiness(Handle::Flow(flow)).any());
    w.proxy.send(Connected, label(9).to_wire(), request, &open_payload());
    w.run();
    assert!(w.app.readiness(Handle::Flow(flow)).contains(Readiness::WRITABLE));
    assert_eq!(w.app.write(w.now, flow, &[b"x"]), Ok(1));
    let other = w.app.connect(w.now, to, None).unwrap();
    w.run();
    let request = w.proxy.take().last().unwrap().1;
    w.proxy.send(Refused, request, 110, &[]);
    w.run();
    assert!(w.app.readiness(Handle::Flow(other)).contains(Readiness::ERROR.with(Readiness::WRITABLE)));
    assert_eq!(w.app.take_error(other), Some(errno::ETIMEDOUT));
    let third = w.app.connect(w.now, to, None).unwrap();
    w.app.close(w.now, third, false).unwrap();
    w.run();
    let request = w.proxy.take().last().unwrap().1;
    w.proxy.send(Connected, label(10).to_wire(), request, &open_payload());
    w.run();
    assert_eq!(w.proxy.take()[0].0, Close, "the program has closed it");
}

#[test]
fn a_proxy_cannot_break_more_than_its_link() {
    // Every kind, to known and unknown labels, with invalid arguments.
    for kind in [Open, Connected, Refused, Data, Credit, Shutdown, Reset, Close, Option, Listen, Accepted] {
        for id in [1, 2, 0x4000_0001, 0x8000_0001] {
            for payload in [&[][..], &[1; 8], &[0xff; 44]] {
                let (mut w, flow) = World::with_flow();
                w.proxy.send(kind, id, u32::MAX, payload);
                w.run();
                w.app.close(w.now, flow, false).unwrap();
                w.run();
            }
        }
    }
}

fn label(n: u32) -> FlowLabel {
    FlowLabel::new(n, 0)
}

#[test]
fn a_process_has_a_link_once_it_knows_a_proxy() {
    let w = World::new();
    assert_eq!(w.app.endpoint().identity().role, Role::Process);
    assert_eq!(w.app.channels_up(), 1);
}

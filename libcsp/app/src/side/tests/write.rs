//! Writes that are collected, and writes that are made in place.

use csp_wire::channel::MessageKind::*;

use super::*;

#[test]
fn corked_writes_leave_together_and_before_anything_that_follows() {
    let (mut w, flow) = World::with_flow();
    w.app.set_corked(w.now, flow, true);
    assert_eq!(w.app.write(w.now, flow, &[b"head "]), Ok(5));
    assert_eq!(w.app.write(w.now, flow, &[b"body"]), Ok(4));
    w.run();
    assert_eq!(w.proxy.take(), []);
    w.app.set_corked(w.now, flow, false);
    w.run();
    assert_eq!(w.proxy.take(), [(Data, label(1).to_wire(), 0, b"head body".to_vec())]);
    w.app.set_corked(w.now, flow, true);
    w.app.write(w.now, flow, &[b"asleep"]).unwrap();
    w.app.arm().unwrap();
    w.run();
    assert_eq!(w.proxy.take().len(), 1, "corked bytes are sent before the program sleeps");
    let large = vec![1; 40_000];
    assert_eq!(w.app.write(w.now, flow, &[b"x", &large]), Ok(40_001));
    w.app.close(w.now, flow, false).unwrap();
    w.run();
    let sent = w.proxy.take();
    let kinds: Vec<_> = sent.iter().map(|m| m.0).collect();
    assert_eq!(kinds, [Data, Data, Data, Close]);
    assert_eq!(sent.iter().map(|m| m.3.len()).sum::<usize>(), 40_001);
}

/// What is large fills segments whatever follows: it is sent at once, behind what was collected.
#[test]
fn large_writes_of_a_corked_flow_are_not_collected() {
    let (mut w, flow) = World::with_flow();
    w.app.set_corked(w.now, flow, true);
    assert!(w.app.is_corked(flow));
    w.app.write(w.now, flow, &[b"head "]).unwrap();
    assert_eq!(w.app.write(w.now, flow, &[&[7; 5_000]]), Ok(5_000));
    w.app.write(w.now, flow, &[b"tail"]).unwrap();
    w.run();
    assert_eq!(w.proxy.take(), [(Data, label(1).to_wire(), 0, [&b"head "[..], &[7; 5_000]].concat())]);
    w.app.set_corked(w.now, flow, false);
    w.run();
    assert_eq!(w.proxy.take(), [(Data, label(1).to_wire(), 0, b"tail".to_vec())]);
    assert_eq!(w.app.in_flight(flow), 5_009);
}

#[test]
fn bytes_are_made_where_they_leave_from_behind_what_was_collected() {
    let (mut w, flow) = World::with_flow();
    let made = w.app.write_filled(w.now, flow, 100, &mut |place| {
        assert_eq!(place.len(), 100);
        assert!(place.write(0, b"file"));
        4
    });
    assert_eq!(made, Ok(4));
    w.app.set_corked(w.now, flow, true);
    w.app.write(w.now, flow, &[b"head "]).unwrap();
    assert_eq!(w.app.write_filled(w.now, flow, 100, &mut |_| 0), Ok(0), "nothing is made");
    w.run();
    assert_eq!(w.proxy.take(), [(Data, label(1).to_wire(), 0, b"file".to_vec())]);
    let made = w.app.write_filled(w.now, flow, usize::MAX, &mut |place| {
        let len = place.len();
        assert!(len > 16_000 && place.write(0, &vec![9; len]));
        len
    });
    w.run();
    let sent = w.proxy.take();
    assert_eq!((sent.len(), sent[0].3.len()), (1, 5 + made.unwrap()));
    assert!(sent[0].3.starts_with(b"head \x09"));
}

#[test]
fn nothing_is_made_without_room() {
    let (mut w, flow) = World::with_flow();
    let mut sent = 0;
    while sent < WINDOW as usize {
        let left = WINDOW as usize - sent;
        let made = w.app.write_filled(w.now, flow, usize::MAX, &mut |place| {
            assert!(place.len() <= left, "no more than the window");
            place.len()
        });
        sent += made.unwrap();
        w.run();
    }
    let made = w.app.write_filled(w.now, flow, 9, &mut |_| panic!("there is no room"));
    assert_eq!(made, Err(AppError::WouldBlock));
    while w.app.poll_ready().is_some() {}
    w.proxy.send(Credit, label(1).to_wire(), 10_000, &[]);
    w.run();
    assert_eq!(w.app.write_filled(w.now, flow, 9, &mut |place| place.len().min(9)), Ok(9));
    w.app.shutdown(w.now, flow, Directions { read: false, write: true }).unwrap();
    assert_eq!(w.app.write_filled(w.now, flow, 9, &mut |_| panic!("it is shut")), Err(AppError::Pipe));
}

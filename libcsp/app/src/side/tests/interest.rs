//! Connections at a listener that the program stops polling, briefly or for good.

use csp_types::Duration;
use csp_wire::channel::MessageKind;

use super::*;

const BACKLOG: u32 = 8;

/// A listener with two waiting connections, out of eight that were granted.
fn two_wait() -> (World, ListenerId) {
    let mut w = World::new();
    let listener = w.listening(BACKLOG);
    for n in 1..=2 {
        w.proxy.open(&w.now, label(n), listener);
    }
    w.run();
    (w, listener)
}

/// Kind, id and argument of the messages that the application sent.
fn sent(w: &mut World) -> Vec<(MessageKind, u32, u32)> {
    w.proxy.take().into_iter().map(|m| (m.0, m.1, m.2)).collect()
}

fn pause_and_wait(w: &mut World, listener: ListenerId) {
    w.app.set_interest(listener, false).unwrap();
    w.run_for(PAUSE_MAX.as_millis() as u64 + 2);
}

#[test]
fn a_listener_that_is_out_of_the_set_for_a_moment_keeps_what_waits() {
    let (mut w, listener) = two_wait();
    for _ in 0..1_000 {
        w.app.set_interest(listener, false).unwrap();
        w.run_for(1);
        w.app.set_interest(listener, true).unwrap();
    }
    assert_eq!((sent(&mut w), w.app.accept_queue_len(listener)), (vec![], 2));
    assert_eq!(w.app.paused.len(), 0);
    w.app.set_interest(listener, false).unwrap();
    w.proxy.open(&w.now, label(3), listener);
    w.run();
    assert_eq!((sent(&mut w), w.app.accept_queue_len(listener)), (vec![], 3), "offers still arrive");
    w.run_for(PAUSE_MAX.as_millis() as u64 - 12);
    let until = w.app.pause_deadline().unwrap();
    assert!(until > w.now && until <= w.now + Duration::from_millis(8), "the sleeper is woken in time");
    w.accept(listener);
    w.run_for(100);
    let kinds: Vec<_> = sent(&mut w).iter().map(|m| m.0).collect();
    assert_eq!(kinds, [Accepted], "accept(2) shows interest as well");
}

#[test]
fn a_listener_that_stays_out_returns_its_credit_and_then_what_waits_in_order() {
    let (mut w, listener) = two_wait();
    let id = listener.to_wire();
    pause_and_wait(&mut w, listener);
    let reason = errno::ECONNREFUSED as u32;
    let refused = |n| (Refused, label(n).to_wire(), reason);
    assert_eq!(sent(&mut w), [(AcceptCredit, id, 0), refused(1), refused(2)]);
    assert_eq!((w.app.flow_count(), w.app.counters().pauses_ended), (0, 1));
    // An offer that crossed the withdrawal is refused as well.
    w.proxy.open(&w.now, label(3), listener);
    w.proxy.send(AcceptCredit, id, BACKLOG - 3, &[]);
    w.run();
    assert_eq!(sent(&mut w), [refused(3)]);
    w.app.set_interest(listener, true).unwrap();
    w.run();
    assert_eq!(sent(&mut w), [(AcceptCredit, id, BACKLOG)]);
    assert_eq!(w.app.counters().protocol_violations, 0);
}

#[test]
fn interest_that_returns_before_the_proxy_s_answer_is_granted_after_it() {
    let (mut w, listener) = two_wait();
    let id = listener.to_wire();
    pause_and_wait(&mut w, listener);
    sent(&mut w);
    w.app.set_interest(listener, true).unwrap();
    w.run();
    assert_eq!(sent(&mut w), [], "six credits are still out");
    w.proxy.send(AcceptCredit, id, BACKLOG - 2, &[]);
    w.run();
    assert_eq!(sent(&mut w), [(AcceptCredit, id, BACKLOG)]);
    pause_and_wait(&mut w, listener);
    assert_eq!(sent(&mut w), [(AcceptCredit, id, 0)], "it can be withdrawn again");
}

#[test]
fn credit_that_was_never_granted_cannot_be_returned() {
    let mut w = World::new();
    let listener = w.listening(BACKLOG);
    pause_and_wait(&mut w, listener);
    w.proxy.send(AcceptCredit, listener.to_wire(), BACKLOG + 1, &[]);
    w.run();
    assert_eq!(w.app.counters().protocol_violations, 1);
}

#[test]
fn an_answer_from_before_the_listener_was_announced_anew_is_no_violation() {
    let (mut w, listener) = two_wait();
    let id = listener.to_wire();
    pause_and_wait(&mut w, listener);
    w.app.set_interest(listener, true).unwrap();
    w.app.announce(0); // a link of the pool is lost, and this one replaces it
    w.run();
    sent(&mut w);
    w.proxy.open(&w.now, label(3), listener); // by credit granted before
    w.proxy.send(AcceptCredit, id, BACKLOG - 3, &[]);
    w.run();
    assert_eq!(w.app.accept_queue_len(listener), 1);
    pause_and_wait(&mut w, listener);
    w.proxy.send(AcceptCredit, id, BACKLOG, &[]);
    w.run();
    assert_eq!(w.app.counters().protocol_violations, 0);
    w.app.set_interest(listener, true).unwrap();
    w.run();
    let granted = sent(&mut w).iter().filter(|m| m.0 == AcceptCredit && m.2 > 0).count();
    assert!(granted > 0, "the program gets connections again");
}

#[test]
fn credit_granted_between_two_withdrawals_is_withdrawn_after_the_first_answer() {
    let mut w = World::new();
    let listener = w.listening(BACKLOG);
    let id = listener.to_wire();
    for n in 1..=6 {
        w.proxy.open(&w.now, label(n), listener);
    }
    w.run();
    pause_and_wait(&mut w, listener);
    w.app.set_interest(listener, true).unwrap();
    w.run();
    sent(&mut w);
    pause_and_wait(&mut w, listener);
    assert_eq!(sent(&mut w), [], "the first withdrawal is unanswered");
    w.proxy.send(AcceptCredit, id, 2, &[]);
    w.run();
    assert_eq!(sent(&mut w), [(AcceptCredit, id, 0)]);
}

#[test]
fn an_owner_that_waits_again_is_notified_of_what_is_still_there() {
    let (mut w, listener) = two_wait();
    while w.app.poll_ready().is_some() {}
    w.app.set_interest(listener, false).unwrap();
    w.run();
    assert_eq!(w.app.poll_ready(), None);
    w.app.set_interest(listener, true).unwrap();
    assert_eq!(w.app.poll_ready(), Some(Handle::Listener(listener)));
}

#[test]
fn a_listener_that_is_closed_while_it_is_paused_is_removed() {
    let (mut w, listener) = two_wait();
    w.app.set_interest(listener, false).unwrap();
    w.app.close_listener(listener).unwrap();
    w.run_for(50);
    let other = w.listening(4);
    assert_eq!((w.app.paused.len(), w.app.pause_deadline(), w.app.counters().pauses_ended), (0, None, 0));
    w.proxy.open(&w.now, label(3), other);
    w.accept(other);
}

#[test]
fn a_full_table_of_flows_grants_nothing_until_a_flow_ends() {
    let mut w = World::with_flows(2);
    let listener = w.listening(1);
    let mut flows = Vec::new();
    for n in 1..=2 {
        w.proxy.open(&w.now, label(n), listener);
        flows.push(w.accept(listener));
    }
    assert!(sent(&mut w).iter().filter(|m| m.0 == AcceptCredit).count() == 1, "for the second one only");
    assert_eq!(w.app.accept(listener), Err(AppError::WouldBlock));
    w.run();
    assert_eq!(sent(&mut w), []);
    w.app.close(w.now, flows[0], false).unwrap();
    w.run();
    w.proxy.send(Close, label(1).to_wire(), 0, &[]);
    w.run();
    assert!(sent(&mut w).contains(&(AcceptCredit, listener.to_wire(), 1)));
    assert_eq!(w.app.counters().refused, 0);
}

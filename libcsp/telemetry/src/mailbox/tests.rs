//! Tests of the mailbox between tokio and a worker thread.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

enum Question {
    Double(u32, Reply<u32>),
    Ignore(Reply<u32>),
}

fn readable(mailbox: &Mailbox<Question>) -> bool {
    let mut descriptors = [PollFd::new(mailbox, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[tokio::test]
async fn a_sleeping_worker_is_woken_and_answers() {
    let (sender, mut mailbox) = mailbox(4).unwrap();
    let worker = std::thread::spawn(move || {
        // Sleeps until the descriptor is readable, like a worker in epoll.
        poll(&mut [PollFd::new(&mailbox, PollFlags::IN)], None).unwrap();
        mailbox.clear_wake();
        while let Some(question) = mailbox.poll() {
            match question {
                Question::Double(n, reply) => reply.send(2 * n),
                Question::Ignore(reply) => drop(reply),
            }
        }
        assert!(!readable(&mailbox), "a cleared mailbox must not keep the worker awake");
    });
    let answer = sender.ask(Duration::from_secs(10), |reply| Question::Double(21, reply)).await;
    assert_eq!(answer, Ok(42));
    worker.join().unwrap();
    let late = sender.ask(Duration::from_secs(10), |reply| Question::Double(1, reply)).await;
    assert_eq!(late, Err(MailboxError::Gone));
}

#[tokio::test(start_paused = true)]
async fn full_dropped_and_unanswered_questions_are_told_apart() {
    let (sender, mut mailbox) = mailbox(1).unwrap();
    let silence = sender.ask(Duration::from_secs(1), |reply| Question::Double(1, reply)).await;
    assert_eq!(silence, Err(MailboxError::Timeout));
    let full = sender.ask(Duration::from_secs(1), |reply| Question::Double(1, reply)).await;
    assert_eq!(full, Err(MailboxError::Full));
    assert!(readable(&mailbox));
    mailbox.clear_wake();
    while mailbox.poll().is_some() {}
    let asked = sender.ask(Duration::from_secs(1), Question::Ignore);
    let (dropped, ()) = tokio::join!(asked, async {
        tokio::task::yield_now().await;
        while mailbox.poll().is_some() {}
    });
    assert_eq!(dropped, Err(MailboxError::Gone));
}

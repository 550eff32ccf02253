//! The session, driven by the messages of an agent that the tests simulate.

use csp_wire::agent::{AttachedRepr, Proxy, emit_attached, emit_proxies, emit_refused, emit_token};

use super::*;

const UNIX_S: u64 = 1_000_000;

struct Stage {
    session: Session,
    now: Instant,
    unix_s: u64,
}

/// An action without its contents.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Did {
    Connect,
    /// The former id of ATTACH.
    Attach(String),
    Renew,
    Receive,
    HangUp,
    Wait,
}

impl Stage {
    fn new() -> Self {
        let session = Session::new(42, "php-fpm".parse().unwrap());
        Stage { session, now: Instant::from_nanos(1_000_000_000), unix_s: UNIX_S }
    }

    fn poll(&mut self) -> Did {
        match self.session.poll(self.now, self.unix_s, false) {
            Action::Connect => Did::Connect,
            Action::Receive => Did::Receive,
            Action::HangUp => Did::HangUp,
            Action::Wait => Did::Wait,
            Action::Send(bytes) => match AgentMessage::parse(bytes).unwrap() {
                AgentMessage::Attach(attach) => {
                    assert_eq!((attach.pid, attach.program), (42, "php-fpm".parse().unwrap()));
                    Did::Attach(String::from_utf8(attach.former.to_vec()).unwrap())
                }
                AgentMessage::Renew => Did::Renew,
                other => panic!("a process does not send {other:?}"),
            },
        }
    }

    fn expect(&mut self, expected: &[Did]) {
        for did in expected {
            assert_eq!(self.poll(), *did, "of {expected:?}");
        }
    }

    /// Connects and sends ATTACH.
    fn attach(&mut self, former: &str) {
        self.expect(&[Did::Connect]);
        self.session.connected();
        self.expect(&[Did::Attach(former.to_owned())]);
    }

    /// Delivers a message of the agent.
    fn message(&mut self, bytes: &[u8]) -> Result<Received, SessionError> {
        self.session.woken();
        self.expect(&[Did::Receive]);
        let received = self.session.received(bytes);
        self.session.empty();
        received
    }

    fn attached(&mut self, process: &str) -> Result<Received, SessionError> {
        let proxies = [proxy("/run/csp/pn-1.w0.sock", Some("10.77.0.2:7357"))];
        let message = AttachedRepr {
            node: "an-1".parse().unwrap(),
            process: process.as_bytes(),
            token: b"token",
            expires: self.unix_s + 3600,
            listen: Some(&[80]),
            connect: &[],
            loopback: true,
            proxies: &proxies,
        };
        let mut buffer = [0; 1024];
        let len = emit_attached(&mut buffer, &message).unwrap();
        self.message(&buffer[..len])
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

fn proxy<'a>(path: &'a str, direct: Option<&str>) -> Proxy<'a> {
    let direct = direct.map(|address| address.parse().unwrap());
    Proxy { node: "pn-1".parse().unwrap(), worker: 0, path: path.as_bytes(), direct, draining: false }
}

#[test]
fn a_process_attaches_and_knows_its_rules_and_proxies() {
    let mut stage = Stage::new();
    stage.attach("");
    assert!(!stage.session.is_attached());
    assert_eq!(stage.attached("php-fpm-42-1"), Ok(Received::Attached));
    assert!(stage.session.is_attached() && stage.session.offers_direct());
    let rules = stage.session.rules();
    assert!(rules.listens(80) && !rules.listens(81) && rules.loopback());
    assert!(rules.connects("127.0.0.1".parse().unwrap()) && !rules.connects("10.0.0.1".parse().unwrap()));
    let path = ViAddress::Path("/run/csp/pn-1.w0.sock".into());
    assert_eq!(stage.session.targets()[0].address, path);
    stage.session.use_direct();
    assert_eq!(stage.session.targets()[0].address, ViAddress::Ip("10.77.0.2:7357".parse().unwrap()));
    stage.expect(&[Did::Wait]);
    assert_eq!(stage.session.next_timeout(), None);
}

#[test]
fn the_socket_is_read_when_it_wakes_the_process_and_else_at_intervals() {
    let mut stage = Stage::new();
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    stage.expect(&[Did::Wait]);
    stage.pass(POLL_EVERY);
    stage.expect(&[Did::Receive, Did::Receive]);
    stage.session.empty();
    stage.expect(&[Did::Wait]);
    let mut buffer = [0; 256];
    let destination = Destination { prefix: "10.0.0.0/8".parse().unwrap(), except: false };
    let len = emit_proxies(&mut buffer, &[], &[destination]).unwrap();
    assert_eq!(stage.message(&buffer[..len]), Ok(Received::Other));
    assert!(stage.session.targets().is_empty());
    assert!(stage.session.rules().connects("10.0.0.1".parse().unwrap()));
}

#[test]
fn a_token_is_renewed_before_it_expires_and_the_request_is_repeated() {
    let mut stage = Stage::new();
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    stage.unix_s += 3600 - RENEW_BEFORE_S;
    stage.expect(&[Did::Renew, Did::Wait]);
    stage.pass(RENEW_EVERY);
    stage.expect(&[Did::Receive]);
    stage.session.empty();
    stage.expect(&[Did::Renew, Did::Wait]);
    let mut buffer = [0; 64];
    let len = emit_token(&mut buffer, b"another", stage.unix_s + 3600).unwrap();
    assert_eq!(stage.message(&buffer[..len]), Ok(Received::Other));
    assert!(stage.session.token == Token::from_bytes(b"another"));
    stage.expect(&[Did::Wait]);
}

#[test]
fn a_lost_agent_is_tried_again_and_the_process_keeps_its_id() {
    let mut stage = Stage::new();
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    stage.session.hung_up();
    stage.expect(&[Did::HangUp, Did::Wait]);
    assert_eq!(stage.session.next_timeout(), Some(stage.now + RETRY_EVERY));
    stage.pass(RETRY_EVERY);
    stage.expect(&[Did::Connect]);
    stage.session.hung_up();
    stage.expect(&[Did::HangUp, Did::Wait]);
    stage.pass(RETRY_EVERY);
    stage.attach("p-42-1");
    assert!(!stage.session.is_attached());
    assert_eq!(stage.attached("p-42-1"), Ok(Received::Attached));
    assert!(stage.session.is_attached());
}

#[test]
fn an_agent_that_assigns_another_id_is_left() {
    let mut stage = Stage::new();
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    stage.session.hung_up();
    stage.expect(&[Did::HangUp]);
    stage.pass(RETRY_EVERY);
    stage.attach("p-42-1");
    assert_eq!(stage.attached("p-42-2"), Err(SessionError::Answer("another process id")));
    assert!(!stage.session.is_attached());
    stage.expect(&[Did::HangUp, Did::Wait]);
}

#[test]
fn without_an_answer_or_with_a_wrong_one_there_is_no_session() {
    let mut stage = Stage::new();
    stage.attach("");
    assert_eq!(stage.session.next_timeout(), Some(stage.now + ANSWER_TIMEOUT));
    stage.pass(ANSWER_TIMEOUT);
    stage.expect(&[Did::HangUp, Did::Wait]);

    let mut buffer = [0; 256];
    let len = emit_refused(&mut buffer, "user 33 may not").unwrap();
    let check = |bytes: &[u8], expected: SessionError| {
        let mut stage = Stage::new();
        stage.attach("");
        assert_eq!(stage.message(bytes), Err(expected));
        stage.expect(&[Did::HangUp, Did::Wait]);
    };
    check(&buffer[..len], SessionError::Refused("user 33 may not".to_owned()));
    check(b"", SessionError::Answer("agent message header"));
    let len = emit_proxies(&mut buffer, &[], &[]).unwrap();
    check(&buffer[..len], SessionError::Answer("another kind of message"));
}

#[test]
fn a_failed_send_ends_an_attachment_but_no_session() {
    let mut stage = Stage::new();
    stage.attach("");
    stage.session.send_failed();
    stage.expect(&[Did::HangUp, Did::Wait]);
    stage.pass(RETRY_EVERY);
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    stage.unix_s += 3600;
    stage.expect(&[Did::Renew]);
    stage.session.send_failed();
    stage.expect(&[Did::Wait]);
    assert!(stage.session.is_attached());
}

#[test]
fn nonsense_of_an_agent_changes_nothing() {
    let mut stage = Stage::new();
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    for bytes in [&b""[..], &[0xff; 64], &[wire::VERSION, 6, 0, 0, 1, 0, 0, 0, 9]] {
        assert_eq!(stage.message(bytes), Ok(Received::Other));
    }
    assert!(stage.session.is_attached() && stage.session.rules().listens(80));
}

#[test]
fn a_connection_is_left_only_while_the_agent_is_there_and_only_if_its_proxy_has_it() {
    let mut stage = Stage::new();
    let label = csp_types::FlowLabel::new(7, 1);
    let mut flow = LeftFlow {
        held: Some(("pn-1".parse().unwrap(), 3, label)),
        local: "10.76.0.100:80".parse().unwrap(),
        remote: "192.0.2.1:4711".parse().unwrap(),
        unread: Vec::new(),
        peer_shutdown: false,
        write_shutdown: false,
        broken: false,
    };
    let ticket = Ticket([9; 16]);
    assert_eq!(stage.session.leave(&flow, ticket), None);
    stage.attach("");
    stage.attached("p-42-1").unwrap();
    let message = stage.session.leave(&flow, ticket).map(AgentMessage::parse);
    let Some(Ok(AgentMessage::Left(left))) = message else { panic!("{message:?}") };
    assert_eq!((left.worker, left.label, left.ticket, left.remote), (3, label, ticket, flow.remote));
    flow.held = None;
    assert_eq!(stage.session.leave(&flow, ticket), None);
}

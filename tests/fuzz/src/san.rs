//! The formats of the SAN and of the agent's socket. SAN messages have one encoding only: a message that
//! parses is emitted unchanged.

use csp_types::{FlowLabel, NodeId, Role};
use csp_wire::WireError;
use csp_wire::agent::{AgentMessage, emit_refused, emit_renew, emit_token};
use csp_wire::bytes::Writer;
use csp_wire::channel::{
    ConnectPayload, InfoPayload, ListenPayload, Message, MessageHeader, MessageKind, Messages, OpenPayload,
    OptionPayload, TakeOverPayload, TakenOverPayload,
};
use csp_wire::election::{self, Ballot, Beat, Condition, Election, GroupBallot, GroupBeat, Stage};
use csp_wire::link::{
    HELLO_LEN_MAX, Header, Hello, HelloAck, HelloRefused, Kind, Purpose, Resume, Sender, Versions,
};
use csp_wire::tunnel::{Record, RecordKind, Records};

use crate::{Target, check_error};

/// A message of a link.
pub static LINK: Target = Target::plain("link", link, link_examples);
/// A tunnel message.
pub static TUNNEL: Target = Target::plain("tunnel", tunnel, tunnel_examples);
/// A message of the election of addresses' owners.
pub static ELECTION: Target = Target::plain("election", election, election_examples);
/// A channel message.
pub static CHANNEL: Target = Target::plain("channel", channel, channel_examples);
/// A message between a process and its agent.
pub static AGENT: Target = Target::plain("agent", agent, agent_examples);

fn link_examples() -> Vec<Vec<u8>> {
    let sender = Sender {
        versions: Versions::SPOKEN,
        role: Role::Process,
        purpose: Purpose::Channel,
        worker: 1,
        pool_index: 0,
        pool_size: 2,
        receive_depth: 64,
        incarnation: 9,
        nonce: [3; 16],
        node_id: NodeId::parse(b"an-1").expect("it is a node's"),
        process_id: "nginx-17",
        resume: Some(Resume { session: [1; 16], received: 5, attempt: 2 }),
    };
    let hello = Hello { sender, token: &[7; 40], extension: b"later", proof: Some([9; 32]) };
    let ack = HelloAck { sender, extension: b"", proof: None };
    let message = |kind: Kind, body: &[u8]| {
        let header = Header { kind, credits: 3, body_len: body.len() as u32, sequence: 0 };
        [&header.emit()[..], body].concat()
    };
    let (mut first, mut second) = ([0; HELLO_LEN_MAX], [0; HELLO_LEN_MAX]);
    let hello_len = hello.emit(&mut first).expect("the longest hello fits");
    let ack_len = ack.emit(&mut second).expect("the longest hello fits");
    vec![
        message(Kind::Hello, &first[..hello_len]),
        message(Kind::HelloAck, &second[..ack_len]),
        message(Kind::Credit, b""),
        first[..hello_len].to_vec(),
    ]
}

fn tunnel_examples() -> Vec<Vec<u8>> {
    let mut out = [0; 256];
    let mut writer = Writer::new(&mut out);
    let end = Record::flow_end(FlowLabel::new(3, 1), 2);
    let segment =
        Record { kind: RecordKind::Segment, coalesced: 2, segment_size: 4, payload: b"abcdefg", ..end };
    for record in [segment, end, Record { payload: b"x", ..segment }] {
        record.emit_to(&mut writer).expect("the records are short");
    }
    vec![writer.written().to_vec()]
}

fn election_examples() -> Vec<Vec<u8>> {
    let node = |text: &str| text.parse::<NodeId>().expect("it is a node's");
    let condition = Condition { able: true, draining: false, well_ms: 1_500 };
    let beats = [
        GroupBeat { group: 1, epoch: 2, stage: Stage::Holds, successor: None },
        GroupBeat { group: 2, epoch: 3, stage: Stage::Yields, successor: Some(node("nn-2")) },
    ];
    let ballots = [
        GroupBallot { group: 1, epoch: 2, holder: Some(0), successor: None, candidates: 3 },
        GroupBallot { group: 2, epoch: 3, holder: None, successor: Some(1), candidates: 2 },
    ];
    let nodes = [(node("nn-1"), condition), (node("nn-2"), Condition::default())];
    let (mut first, mut second) = ([0; election::LEN_MAX], [0; election::LEN_MAX]);
    let beat_len = Beat::emit(condition, 9, beats.into_iter(), &mut first).expect("it is short");
    let ballot_len =
        Ballot::emit(9, nodes.into_iter(), ballots.into_iter(), &mut second).expect("it is short");
    vec![first[..beat_len].to_vec(), second[..ballot_len].to_vec()]
}

fn channel_examples() -> Vec<Vec<u8>> {
    let mut out = [0; 256];
    let mut writer = Writer::new(&mut out);
    let label = FlowLabel::new(9, 1);
    for (kind, argument, payload) in [
        (MessageKind::Accepted, 65_536, &b""[..]),
        (MessageKind::Data, 0, b"GET / HTTP/1.1"),
        (MessageKind::Credit, 4_096, b""),
        (MessageKind::Close, 0, b""),
    ] {
        let header = MessageHeader::of_flow(kind, label, argument, payload.len() as u32);
        Message { header, payload }.emit_to(&mut writer).expect("the messages are short");
    }
    vec![writer.written().to_vec()]
}

fn agent_examples() -> Vec<Vec<u8>> {
    let mut out = [0; 1_024];
    let mut written = |emit: &dyn Fn(&mut [u8]) -> Result<usize, WireError>| {
        let len = emit(&mut out).expect("the messages are short");
        out[..len].to_vec()
    };
    vec![
        written(&|out| emit_refused(out, "no such node")),
        written(&emit_renew),
        written(&|out| emit_token(out, &[5; 80], 1_700_000_000)),
    ]
}

/// The link header and the bodies of the HELLO messages.
fn link(bytes: &[u8]) {
    match Header::parse(bytes) {
        Ok((header, body)) => {
            assert_eq!([&header.emit()[..], body].concat(), bytes);
            hellos(body);
        }
        Err(error) => check_error(error, bytes),
    }
    hellos(bytes);
}

fn hellos(body: &[u8]) {
    let mut out = [0xaa; HELLO_LEN_MAX];
    match Hello::parse(body).map(|hello| hello.emit(&mut out)) {
        Ok(len) => assert_eq!(&out[..len.expect("the longest hello fits")], body),
        Err(error) => check_error(error, body),
    }
    match HelloAck::parse(body).map(|ack| ack.emit(&mut out)) {
        Ok(len) => assert_eq!(&out[..len.expect("the longest hello fits")], body),
        Err(error) => check_error(error, body),
    }
    match HelloRefused::parse(body) {
        Ok(refused) => {
            let len = refused.emit(&mut out).expect("the longest refusal fits");
            assert_eq!(HelloRefused::parse(&out[..len]), Ok(refused));
        }
        Err(error) => check_error(error, body),
    }
}

/// The records of a tunnel message.
fn tunnel(bytes: &[u8]) {
    let mut out = vec![0xaa; bytes.len()];
    let mut writer = Writer::new(&mut out);
    let mut whole = true;
    for record in Records::new(bytes) {
        match record {
            Ok(record) => record.emit_to(&mut writer).expect("what was read fits where it stood"),
            Err(error) => {
                whole = false;
                check_error(error, bytes);
            }
        }
    }
    assert!(bytes.starts_with(writer.written()));
    assert!(!whole || writer.len() == bytes.len());
}

/// A message of the election: what is read is written in the same way.
fn election(bytes: &[u8]) {
    let mut out = vec![0xaa; election::LEN_MAX];
    let written = match Election::parse(bytes) {
        Ok(Election::Beat(beat)) => {
            let groups: Vec<GroupBeat> = beat.groups().collect();
            Beat::emit(beat.condition, beat.sent, groups.into_iter(), &mut out)
        }
        Ok(Election::Ballot(ballot)) => {
            let nodes: Vec<(NodeId, Condition)> = ballot.nodes().collect();
            let groups: Vec<GroupBallot> = ballot.groups().collect();
            Ballot::emit(ballot.answers, nodes.into_iter(), groups.into_iter(), &mut out)
        }
        Err(error) => return check_error(error, bytes),
    };
    let len = written.expect("what was read is within its bounds");
    assert_eq!(&out[..len], bytes);
}

/// The messages of a channel message, and their payloads.
fn channel(bytes: &[u8]) {
    let mut out = vec![0xaa; bytes.len()];
    let mut writer = Writer::new(&mut out);
    let mut whole = true;
    for message in Messages::new(bytes) {
        match message {
            Ok(message) => {
                message.emit_to(&mut writer).expect("what was read fits where it stood");
                payloads(message.payload);
            }
            Err(error) => {
                whole = false;
                check_error(error, bytes);
            }
        }
    }
    assert!(bytes.starts_with(writer.written()));
    assert!(!whole || writer.len() == bytes.len());
    payloads(bytes);
}

fn payloads(payload: &[u8]) {
    match ListenPayload::parse(payload) {
        Ok(listen) => assert_eq!(listen.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match OpenPayload::parse(payload) {
        Ok(open) => assert_eq!(open.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match OptionPayload::parse(payload) {
        Ok(option) => assert_eq!(option.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match InfoPayload::parse(payload) {
        Ok(info) => assert_eq!(info.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match TakeOverPayload::parse(payload) {
        Ok(take) => assert_eq!(take.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match TakenOverPayload::parse(payload) {
        Ok(taken) => assert_eq!(taken.emit(), payload),
        Err(error) => check_error(error, payload),
    }
    match ConnectPayload::parse(payload) {
        Ok(connect) => {
            let mut out = [0xaa; ConnectPayload::LEN_MAX];
            assert_eq!(connect.emit(&mut out), Ok(payload.len()));
            assert_eq!(&out[..payload.len()], payload);
        }
        Err(error) => check_error(error, payload),
    }
}

/// Messages between a process and its agent.
fn agent(bytes: &[u8]) {
    if let Err(error) = AgentMessage::parse(bytes) {
        check_error(error, bytes);
    }
}

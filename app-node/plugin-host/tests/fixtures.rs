//! The fixtures of level 2 on level 3: the network node's graph knows the instances by their connections alone, the host's session runs
//! them. What comes out is the same.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[path = "../../../libcsp/plugins/tests/fixture/mod.rs"]
mod fixture;

use csp_classify::multifield::{Direction, InstanceId, Published, Worker};
use csp_plugin_host::{Session, SessionConfig, Sink};
use csp_plugins::remote::{RemoteAnswer, RemoteRow, read_answer, write_call, write_hosted};
use csp_plugins::{
    Answer, Binding, Command, EnvironmentId, Graph, Level, Manager, Metadata, Packet, Row, Settings, Value,
    Verdict,
};
use csp_types::Instant;
use csp_wire::packets::{Head, Kind};

use fixture::{Copies, Subject, run};

/// Keeps what the session puts out.
#[derive(Default)]
struct Out(Vec<(Head, Vec<u8>)>);

impl Sink for Out {
    fn put(&mut self, head: &Head, payload: &[u8]) -> bool {
        self.0.push((*head, payload.to_vec()));
        true
    }

    fn has_room(&self) -> bool {
        true
    }

    fn payload_len_max(&self) -> usize {
        1000
    }
}

struct HostLevel {
    near: Graph,
    classifier: Worker,
    session: Session,
    generation: u32,
    sequence: u32,
    names: Vec<(InstanceId, String)>,
}

impl HostLevel {
    fn new(published: Published) -> Self {
        HostLevel {
            near: Graph::new(256, 16),
            classifier: Worker::new(published, 1024, 64),
            session: Session::new(SessionConfig::default()),
            generation: 0,
            sequence: 0,
            names: Vec::new(),
        }
    }

    fn tell(&mut self, now: Instant, head: Head, text: &str) -> Vec<u8> {
        let mut out = Out::default();
        self.session.process(now, &head, &mut text.as_bytes().to_vec(), &mut out).unwrap();
        self.session.pump(now, &mut out);
        let answers = out.0.into_iter().filter(|(head, _)| head.kind != Kind::Counts);
        answers.flat_map(|(_, payload)| payload).collect()
    }
}

impl Subject for HostLevel {
    fn apply(&mut self, command: Command) {
        // No instance runs here.
        let command = match command {
            Command::Create { id, environment, .. } => {
                Command::Create { id, environment, level: Level::Host, plugin: None }
            }
            other => other,
        };
        self.near.apply(command);
    }

    fn changed(&mut self, now: Instant, manager: &Manager) {
        self.generation += 1;
        self.names = manager.instances().map(|(id, name, ..)| (id, name.to_owned())).collect();
        let text = write_hosted(manager, "workers").unwrap();
        let refused = self.tell(now, Head::new(Kind::Configure, self.generation), &text);
        assert_eq!(String::from_utf8(refused).unwrap(), "");
    }

    fn adopt(&mut self, published: Published) {
        self.classifier.adopt(published);
    }

    fn process(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        interface: u16,
        copies: &mut Copies,
    ) -> Option<Verdict> {
        let len = frame.len() as u32;
        let mut packet = Packet::new(frame, Metadata::new(interface, Direction::Ingress));
        let hit = self.classifier.classify(packet.fields()?, len)?;
        let verdict = self.near.enter(now, hit.rule, Binding::decode(hit.instance), &mut packet, copies);
        let Verdict::HandOver { instance, environment, level } = verdict else { return Some(verdict) };
        assert_eq!((environment, level), (EnvironmentId(0), Level::Host));
        self.sequence += 1;
        let rule = (hit.rule.slot, hit.rule.generation);
        let head = Head {
            instance: instance.0,
            rule,
            interface,
            coalesced: 1,
            ..Head::new(Kind::Packet, self.sequence)
        };
        let mut out = Out::default();
        self.session.process(now, &head, frame, &mut out).unwrap();
        let (answer, payload) = out.0.pop().unwrap();
        assert_eq!((answer.sequence, answer.rule), (self.sequence, rule));
        for (copy, payload) in out.0 {
            assert_eq!(copy.kind, Kind::Copy);
            copies.0.push((copy.interface, payload));
        }
        assert!(answer.kind == Kind::Drop || payload == frame);
        Some(match answer.kind {
            Kind::Pass => Verdict::Pass,
            Kind::Drop => Verdict::Drop,
            Kind::Transmit => Verdict::Transmit(answer.interface),
            other => panic!("{other:?}"),
        })
    }

    fn call(
        &mut self,
        now: Instant,
        id: InstanceId,
        operation: &str,
        arguments: &Settings,
    ) -> Result<Answer, String> {
        let text = |value: &Value| match value {
            Value::Duration(duration) => format!("{}ns", duration.as_nanos()),
            other => other.to_string(),
        };
        let arguments: Vec<(&str, String)> =
            arguments.iter().map(|(name, value)| (*name, text(value))).collect();
        let arguments: Vec<(&str, &str)> =
            arguments.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let head = Head { instance: id.0, ..Head::new(Kind::Call, 1) };
        match read_answer(&self.tell(now, head, &write_call(operation, &arguments))).unwrap() {
            RemoteAnswer::Done => Ok(Answer::Done),
            RemoteAnswer::Rows(rows) => Ok(Answer::Rows(rows.into_iter().map(row).collect())),
            RemoteAnswer::Bytes(bytes) => Ok(Answer::Bytes(bytes)),
            RemoteAnswer::Refused(reason) => Err(reason),
        }
    }
}

fn row(RemoteRow { key, note, numbers }: RemoteRow) -> Row {
    let number = |(name, value): (String, u64)| (&*name.leak(), value);
    Row { key, note: note.into(), numbers: numbers.into_iter().map(number).collect() }
}

#[test]
fn the_fixtures_give_the_same_packets_as_on_level_2() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../libcsp/plugins/tests/fixtures");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        run(&std::fs::read_to_string(path).unwrap(), HostLevel::new);
        files += 1;
    }
    assert!(files > 10);
}

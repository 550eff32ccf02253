//! The fixtures of level 2 on level 3: the network node's graph knows the instances by their connections
//! alone, the host's session runs them. What comes out is the same.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[path = "../../../libcsp/sandbox/tests/build/mod.rs"]
mod build;
#[path = "../../../libcsp/plugins/tests/fixture/mod.rs"]
mod fixture;

use std::sync::Arc;

use csp_classify::multifield::{Direction, InstanceId, Published, Worker};
use csp_plugin_host::{Session, SessionConfig, Sink};
use csp_plugin_modules::PluginModules;
use csp_plugins::remote::{RemoteAnswer, RemoteRow, read_answer, write_call, write_hosted, write_module};
use csp_plugins::{
    Answer, Binding, Command, EnvironmentId, Graph, HashKey, Level, Manager, ManagerConfig, Metadata, Packet,
    Plugin, PluginError, Row, Settings, Supply, Verdict, WORKERS, builtin,
};
use csp_types::Instant;
use csp_wire::packets::{Head, Kind, MatchedRule};

use build::{c, crate_dir, has_target, rust};
use fixture::{Copies, Subject, run, run_with};

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

/// What makes supplied plug-ins, and the modules that are sent to the host, each with its name.
type Modules = (Arc<PluginModules>, Vec<(String, Vec<u8>)>);

struct HostLevel {
    modules: Option<Modules>,
    near: Graph,
    classifier: Worker,
    session: Session,
    generation: u32,
    sequence: u32,
    names: Vec<(InstanceId, String)>,
}

impl HostLevel {
    fn new(published: Published) -> Self {
        HostLevel::with(published, None)
    }

    fn with(published: Published, modules: Option<Modules>) -> Self {
        let supply = modules.as_ref().map(|(supply, _)| supply.clone() as Arc<dyn Supply>);
        HostLevel {
            modules,
            near: Graph::new(256, 16),
            classifier: Worker::new(published, 1024, 64),
            session: Session::new(SessionConfig { supply, ..SessionConfig::default() }),
            generation: 0,
            sequence: 0,
            names: Vec::new(),
        }
    }

    fn tell(&mut self, now: Instant, head: Head, text: &str) -> Vec<u8> {
        let mut out = Out::default();
        self.session.process(now, &head, &mut text.as_bytes().to_vec(), &mut out).unwrap();
        // A configuration is answered when its modules are compiled.
        while !out.0.iter().any(|(answer, _)| answer.kind != Kind::Counts) {
            self.session.pump(now, &mut out);
        }
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
        let mut text = String::new();
        for (module, bytes) in self.modules.iter().flat_map(|(_, modules)| modules) {
            write_module(&mut text, module, bytes);
        }
        text += &write_hosted(manager, "workers").unwrap();
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
        let rule = MatchedRule { slot: hit.rule.slot, generation: hit.rule.generation };
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
        let arguments: Vec<(&str, String)> =
            arguments.iter().map(|(name, value)| (*name, value.exact())).collect();
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

/// Runs a fixture of `csp-sandbox` in which `word` stands for a module that the host is sent. Near the
/// network node the module is known by its declaration only.
fn run_supplied(file: &str, word: &str, bytes: Vec<u8>) {
    let path = crate_dir().join("tests/packets").join(file);
    let (near, hash) = (PluginModules::in_memory(None), csp_modules::sha256(&bytes));
    near.offer(&hash, bytes.clone());
    while !near.is_ready(&hash) {
        std::thread::yield_now();
    }
    let text = std::fs::read_to_string(path).unwrap().replace(word, &hash);
    let supply: Arc<dyn Supply> = near;
    let there = (PluginModules::in_memory(None), vec![(hash, bytes)]);
    run_with(&text, (WORKERS, Level::Worker), Some(supply), |published| {
        HostLevel::with(published, Some(there))
    });
}

#[test]
fn supplied_plug_ins_give_the_same_packets_as_on_level_2() {
    if let Some(bytes) = c(&crate_dir().join("modules/hop-limit.c"), 1 << 20) {
        run_supplied("hop-limit.txt", "HOP-LIMIT", bytes.clone());
        run_supplied("hop-limit-plain.txt", "HOP-LIMIT", bytes);
    }
    if has_target() {
        run_supplied("redact.txt", "REDACT", rust(&crate_dir().join("modules/redact.rs"), 1 << 20));
    }
}

/// A module that stops at the first packet.
const HOSTILE: &str = r#"(module (memory (export "memory") 1)
    (data (i32.const 16) "\18\00\00\00\01\00\00\00\40\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00")
    (func (export "csp_packet_abi") (result i32) i32.const 1)
    (func (export "csp_packet_declaration") (result i32) i32.const 16)
    (func (export "on_packet") (result i32) (loop (br 0)) unreachable))"#;

#[test]
fn a_stopped_plug_in_is_absent_so_that_the_rule_falls_back() {
    let bytes = wat::parse_str(HOSTILE).unwrap();
    let hash = csp_modules::sha256(&bytes);
    let supply: Arc<dyn Supply> = PluginModules::in_memory(None);
    let config = SessionConfig { supply: Some(supply), ..SessionConfig::default() };
    let (mut session, mut out) = (Session::new(config), Out::default());
    let mut text = String::new();
    write_module(&mut text, &hash, &bytes);
    text += &format!("instance 7 bad {hash}\n");
    session.process(Instant::ZERO, &Head::new(Kind::Configure, 1), &mut text.into_bytes(), &mut out).unwrap();
    while out.0.is_empty() {
        session.pump(Instant::ZERO, &mut out);
    }
    let (configured, refused) = out.0.remove(0);
    assert_eq!((configured.kind, String::from_utf8(refused).unwrap()), (Kind::Configured, String::new()));
    out.0.clear();
    let head = Head { instance: 7, hops: 1, coalesced: 1, ..Head::new(Kind::Packet, 5) };
    let mut frame = vec![7; 60];
    for hops in [2, 2] {
        session.process(Instant::ZERO, &head, &mut frame, &mut out).unwrap();
        let (answer, payload) = out.0.pop().unwrap();
        assert_eq!(
            (answer.kind, answer.sequence, answer.hops, payload),
            (Kind::Absent, 5, hops, vec![7; 60])
        );
    }
    // A module that is not what its name says is refused, and so is one that was not sent.
    for (at, text) in
        [format!("module {hash} 00\ninstance 7 bad {hash}\n"), format!("instance 7 bad {}\n", "1".repeat(64))]
            .iter()
            .enumerate()
    {
        let config =
            SessionConfig { supply: Some(PluginModules::in_memory(None)), ..SessionConfig::default() };
        let (mut session, mut out) = (Session::new(config), Out::default());
        session
            .process(Instant::ZERO, &Head::new(Kind::Configure, 1), &mut text.clone().into_bytes(), &mut out)
            .unwrap();
        while out.0.is_empty() {
            session.pump(Instant::ZERO, &mut out);
        }
        let refused = String::from_utf8(out.0.remove(0).1).unwrap();
        assert!(refused.contains(["have the SHA-256", "was not sent to this host"][at]), "{refused}");
    }
}

/// Modules that are never compiled.
#[derive(Debug)]
struct Never;

impl Supply for Never {
    fn outputs(&self, _: &str) -> Option<u8> {
        None
    }

    fn make(&self, _: &str, _: &str, _: &Settings) -> Result<Box<dyn Plugin>, PluginError> {
        Err(PluginError::Supplied("it is not compiled".to_owned()))
    }

    fn is_ready(&self, _: &str) -> bool {
        false
    }
}

#[test]
fn while_modules_are_compiled_a_number_does_not_mean_what_it_meant_before() {
    let config = SessionConfig { supply: Some(Arc::new(Never)), ..SessionConfig::default() };
    let (mut session, mut out, now) = (Session::new(config), Out::default(), Instant::ZERO);
    // Of those that stay, 2 leads elsewhere than before, 3 to that one, and 4 where it led before.
    let same = "instance 1 b no-op\ninstance 3 d no-op\noutput 0 2\ninstance 4 e no-op\noutput 0 9\n";
    let first = format!("{same}instance 0 a drop\ninstance 2 f no-op\noutput 0 9\n");
    let module = "1".repeat(64);
    let then = format!("module {module} 00\n{same}instance 0 c {module}\ninstance 2 f no-op\noutput 0 8\n");
    for (generation, text) in [(1, &first), (2, &then)] {
        let head = Head::new(Kind::Configure, generation);
        session.process(now, &head, &mut text.as_bytes().to_vec(), &mut out).unwrap();
        session.pump(now, &mut out);
    }
    out.0.clear();
    let mut answer = |instance| {
        let head = Head { instance, hops: 1, coalesced: 1, ..Head::new(Kind::Packet, 5) };
        session.process(now, &head, &mut [7; 60], &mut out).unwrap();
        out.0.pop().unwrap().0.kind
    };
    assert_eq!((answer(0), answer(1)), (Kind::Absent, Kind::Pass));
    assert_eq!((answer(2), answer(3), answer(4)), (Kind::Absent, Kind::Absent, Kind::Enter));
}

#[test]
fn instances_that_are_replaced_before_they_have_come_whole_are_forgotten() {
    let (mut session, mut out) = (Session::new(SessionConfig::default()), Out::default());
    let mut manager = Manager::new(ManagerConfig { rules_max: 1, ..ManagerConfig::new(1, HashKey(1, 2)) });
    manager.install(builtin::NO_OP).unwrap();
    manager.add_environment("h0", Level::Host).unwrap();
    manager.start("h0").unwrap();
    manager.create("far", "no-op", "h0", &[]).unwrap();
    let mut text = write_hosted(&manager, "h0").unwrap().into_bytes();
    let (now, half) = (Instant::ZERO, text.len() / 2);
    let first = Head { more: true, ..Head::new(Kind::Configure, 1) };
    session.process(now, &first, &mut text[..half], &mut out).unwrap();
    session.process(now, &Head::new(Kind::Configure, 2), &mut text, &mut out).unwrap();
    session.pump(now, &mut out);
    let (head, refused) = &out.0[0];
    assert_eq!((head.kind, head.sequence), (Kind::Configured, 2));
    assert_eq!((String::from_utf8_lossy(refused).as_ref(), session.instances()), ("", 1));
}

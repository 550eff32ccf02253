#![allow(clippy::unwrap_used)]

use csp_classify::multifield::{Direction, Match};
use csp_modules::sha256;
use csp_plugins::{DesiredInstance, DesiredRule, Fallback, Metadata, Packet};

use super::*;

/// A module with this body of `on_packet`, and two outputs.
fn module(body: &str) -> (String, Vec<u8>) {
    let declared = r"\18\00\00\00\02\00\00\00\40\00\00\00\00\01\00\00\00\00\00\00\00\00\00\00";
    let text = format!(
        r#"(module (memory (export "memory") 1 1) (data (i32.const 16) "{declared}")
        (func (export "csp_packet_abi") (result i32) i32.const 1)
        (func (export "csp_packet_declaration") (result i32) i32.const 16)
        (func (export "on_packet") (result i32) {body}))"#
    );
    let bytes = wat::parse_str(text).unwrap();
    (sha256(&bytes), bytes)
}

fn instance(name: &str, module: &str, level: Level) -> DesiredInstance {
    DesiredInstance { name: name.into(), module: module.into(), level, ..DesiredInstance::default() }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("csp-plugin-modules-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn modules_are_stored_checked_and_outlive_the_daemon() {
    let folder = folder("store");
    let modules = PluginModules::in_folder(folder.clone(), None, None);
    let (hash, bytes) = module("i32.const 0");
    assert!(modules.put(&hash, b"other bytes").unwrap_err().contains("have the SHA-256"));
    let junk = b"\0asm junk";
    let error = modules.put(&sha256(junk), junk).unwrap_err();
    assert!(error.contains("not valid"), "{error}");
    let policy = Desired { instances: vec![instance("a", &hash, Level::Worker)], rules: vec![] };
    let error = modules.check(&policy, 2).unwrap_err();
    assert_eq!(
        error,
        format!("plug-in a: module {hash} is not here; bring it with `cspctl plugin install FILE`")
    );
    assert!(!modules.have_come());
    modules.put(&hash, &bytes).unwrap();
    assert!(modules.have_come() && !modules.have_come());
    modules.check(&policy, 2).unwrap();
    assert_eq!(modules.stored(), [(hash.clone(), bytes.len() as u64)]);
    // Another process finds it, and keeps it while the policy names it.
    let modules = PluginModules::in_folder(folder.clone(), None, None);
    modules.check(&policy, 2).unwrap();
    modules.set_active(&policy);
    assert_eq!(modules.remove(&hash), Err(RemoveError::Used));
    modules.set_active(&Desired::default());
    let plugin = modules.make("a", &hash, &Settings::default()).unwrap();
    assert_eq!(modules.remove(&hash), Err(RemoveError::Used));
    drop(plugin);
    modules.remove(&hash).unwrap();
    assert_eq!(modules.remove(&hash), Err(RemoveError::Unknown));
    assert_eq!(modules.bytes("../../etc/passwd"), None);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_a_policy_asks_too_much_of_is_named() {
    let folder = folder("check");
    let modules = PluginModules::in_folder(folder.clone(), None, None);
    let (hash, bytes) = module("i32.const 0");
    modules.put(&hash, &bytes).unwrap();
    let mut wrong = instance("a", &hash, Level::Worker);
    wrong.settings = vec![("parameters".to_owned(), "x".to_owned())];
    let mut many = instance("b", &hash, Level::Host);
    many.outputs = vec![None, None, Some("a".to_owned())];
    let error = modules.check(&Desired { instances: vec![wrong, many], rules: vec![] }, 1).unwrap_err();
    assert_eq!(
        error,
        "plug-in a: parameters: the module has no parameters, and got `x`; plug-in b: its module has 2 outputs, and 3 are connected"
    );
    let all = (0..65).map(|at| instance(&format!("p{at}"), &hash, Level::Worker)).collect();
    let policy = Desired { instances: all, rules: vec![] };
    modules.check(&policy, 3).unwrap();
    let error = modules.check(&policy, 4).unwrap_err();
    assert!(error.contains("need 260 instances with 17039360 bytes"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_host_compiles_what_it_is_sent_beside_the_traffic() {
    let modules = PluginModules::in_memory(None);
    let (hash, bytes) = module("unreachable");
    assert!(modules.make("a", &hash, &Settings::default()).is_err());
    modules.offer(&hash, bytes.clone());
    modules.offer(&hash, bytes.clone());
    let bad = "0".repeat(64);
    modules.offer(&bad, bytes);
    while !modules.is_ready(&hash) || !modules.is_ready(&bad) {
        std::thread::yield_now();
    }
    assert_eq!(modules.outputs(&hash), Some(2));
    let error = modules.make("a", &bad, &Settings::default()).err().unwrap().to_string();
    assert!(error.contains("have the SHA-256"), "{error}");
    let mut plugins: Vec<_> =
        (0..2).map(|_| modules.make("a", &hash, &Settings::default()).unwrap()).collect();
    let mut frame = [0; 60];
    let metadata = Metadata::new(0, csp_classify::multifield::Direction::Ingress);
    for _ in 0..2 {
        let mut packet = Packet::new(&mut frame, metadata);
        plugins[0].process(csp_types::Instant::ZERO, &mut packet, &mut Nothing);
    }
    let [status] = &modules.status()[..] else { panic!() };
    assert_eq!((&*status.instance, status.state, status.not_run), ("a", "waiting", 1));
    assert_eq!(status.stops, [Stop { reason: "trap", total: 1 }]);
    modules.log_stops();
    drop(plugins);
    assert_eq!(modules.status(), []);
}

struct Nothing;

impl csp_plugins::Effects for Nothing {
    fn copy(&mut self, _: u16, _: &[u8]) {}
    fn call(&mut self, _: csp_plugins::Call) -> bool {
        false
    }
}

/// Stands for the kernel: an object is its outputs, and a word for it.
#[derive(Debug)]
struct Kernel;

impl Objects for Kernel {
    fn read(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String> {
        Ok(ObjectDeclaration { outputs: bytes[4], has_parameters: true, numbers: Some((1, 255)) })
    }
    fn verify(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String> {
        if bytes.ends_with(b"bad") { Err("the verifier's log".to_owned()) } else { self.read(bytes) }
    }
}

#[test]
fn objects_are_of_level_1_and_nothing_else_is() {
    let folder = folder("objects");
    let modules = PluginModules::in_folder(folder.clone(), Some(Arc::new(Kernel)), None);
    let bad = b"\x7fELF\x01bad";
    assert_eq!(modules.put(&sha256(bad), bad), Err("the verifier's log".to_owned()));
    let bytes = b"\x7fELF\x02good";
    let hash = sha256(bytes);
    modules.put(&hash, bytes).unwrap();
    assert_eq!((modules.stored().len(), modules.outputs(&hash)), (1, Some(2)));
    assert_eq!(modules.levels(&hash), Some(OBJECT_LEVELS));
    let error = PluginModules::in_folder(folder.clone(), None, None).levels(&hash);
    assert_eq!(error, None, "without packet processors");
    let (wasm, wasm_bytes) = module("i32.const 0");
    modules.put(&wasm, &wasm_bytes).unwrap();
    let check = |instances: Vec<DesiredInstance>, rules: Vec<DesiredRule>| {
        modules.check(&Desired { instances, rules }, 1).err().unwrap_or_default()
    };
    let object = |outputs: &[&str]| DesiredInstance {
        outputs: outputs.iter().map(|to| Some((*to).to_owned())).collect(),
        ..instance("own", &hash, Level::Driver)
    };
    assert_eq!(check(vec![object(&[])], vec![]), "");
    let at = |level| check(vec![instance("own", &hash, level)], vec![]);
    assert!(at(Level::Worker).ends_with("is an eBPF object, which runs at level 1 only, not at level 2"));
    assert!(at(Level::Host).ends_with("is an eBPF object, which runs at level 1 only, not at level 3"));
    let auto = DesiredInstance { auto: Some(csp_plugins::Auto::default()), ..object(&[]) };
    assert!(check(vec![auto], vec![]).ends_with("runs at level 1 only, not at level auto"));
    let error = check(vec![instance("own", &wasm, Level::Driver)], vec![]);
    assert!(error.ends_with("is WebAssembly, which runs at levels 2 and 3, not at level 1"), "{error}");
    let settings = vec![("parameters".to_owned(), "256".to_owned())];
    let error = check(vec![DesiredInstance { settings, ..object(&[]) }], vec![]);
    assert_eq!(error, "plug-in own: parameters: `256` is no number from 1 to 255");
    // Graphs and rules with which it would never run.
    let far = || instance("far", "no-op", Level::Worker);
    let between = || DesiredInstance {
        outputs: vec![Some("far".to_owned())],
        ..instance("between", "no-op", Level::Driver)
    };
    let error = check(vec![object(&["between"]), between(), far()], vec![]);
    assert!(error.contains("plug-in own: packets can reach far at level 2 from there"), "{error}");
    let front = DesiredInstance { outputs: vec![Some("own".to_owned())], ..far() };
    let error = check(vec![object(&[]), front], vec![]);
    assert!(error.contains("plug-in far is at level 2 and leads to own"), "{error}");
    let auto = || DesiredInstance { auto: Some(csp_plugins::Auto::default()), ..far() };
    let error = check(vec![object(&["far"]), auto()], vec![]);
    assert!(error.contains("plug-in own: packets can reach far at level auto from there"), "{error}");
    let front = DesiredInstance { outputs: vec![Some("own".to_owned())], ..auto() };
    let error = check(vec![object(&[]), front], vec![]);
    assert!(error.contains("plug-in far is at level auto and leads to own"), "{error}");
    let near = || instance("near", "no-op", Level::Driver);
    assert_eq!(check(vec![object(&["near"]), near()], vec![]), "");
    let rule = |direction| DesiredRule {
        name: "all".to_owned(),
        priority: 1,
        fields: Match { direction, ..Match::ANY },
        instance: "own".to_owned(),
        fallback: Fallback::Drop,
    };
    assert_eq!(check(vec![object(&[])], vec![rule(Some(Direction::Ingress))]), "");
    let error = check(vec![object(&[])], vec![rule(None)]);
    assert!(error.starts_with("rule all: it also matches packets that are transmitted"), "{error}");
    // In a worker there is a stand-in for it.
    let mut plugin = modules.make("own", &hash, &Settings::default()).unwrap();
    let mut frame = [0; 60];
    let mut packet = Packet::new(&mut frame, Metadata::new(0, Direction::Ingress));
    let action = plugin.process(csp_types::Instant::ZERO, &mut packet, &mut Nothing);
    let status = modules.status();
    assert_eq!((action, status[0].not_run, status[0].calls), (csp_plugins::Action::FallBack, 1, 0));
    std::fs::remove_dir_all(folder).unwrap();
}

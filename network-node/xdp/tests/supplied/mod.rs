//! Supplied programs: the examples in the language of fixtures, what is refused, replacement, take-over.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csp_plugins::{
    InDriverOnly, Level, OBJECT_LEVELS, ObjectDeclaration, Plugin, PluginError, Settings, Supply,
};
use csp_support::{bpf_object, bpf_object_of};

use super::*;

/// Objects by SHA-256, as the daemon has them.
#[derive(Debug)]
pub struct Supplied(HashMap<String, ObjectDeclaration>);

impl Supplied {
    pub fn of(objects: &HashMap<String, Vec<u8>>) -> Arc<dyn Supply> {
        let declared =
            |(hash, bytes): (&String, &Vec<u8>)| (hash.clone(), csp_xdp::read_object(bytes).unwrap());
        Arc::new(Supplied(objects.iter().map(declared).collect()))
    }
}

impl Supply for Supplied {
    fn outputs(&self, module: &str) -> Option<u8> {
        self.0.get(module).map(|declaration| declaration.outputs)
    }
    fn levels(&self, _module: &str) -> Option<&'static [Level]> {
        Some(OBJECT_LEVELS)
    }
    fn make(
        &self,
        _instance: &str,
        module: &str,
        settings: &Settings,
    ) -> Result<Box<dyn Plugin>, PluginError> {
        Ok(Box::new(InDriverOnly::new(self.0[module], settings)?))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn example(name: &str) -> Vec<u8> {
    bpf_object(&root(), &root().join("network-node/xdp/modules").join(name))
}

fn program(text: &str) -> Vec<u8> {
    bpf_object_of(&root(), text)
}

/// A stand-in for the SHA-256: 64 digits.
fn digits(digit: char) -> String {
    digit.to_string().repeat(64)
}

/// A driver whose maps are pinned in a file system of the test's own.
fn pinned() -> Option<(Driver, Mount)> {
    if !csp_support::is_root("the test loads a BPF program") {
        return None;
    }
    let mount = Mount::new();
    Some((open(Some(&mount.0.join("node")))?, mount))
}

fn run_example(source: &str, word: &str, text: &str) {
    let Some((driver, _mount)) = pinned() else { return };
    let hash = digits('a');
    let text = text.replace(word, &hash);
    let seen = run_at_level1(driver, &text, HashMap::from([(hash, example(source))]));
    assert!(seen > 0);
}

#[test]
fn hop_limit_does_what_the_webassembly_one_does() {
    run_example(
        "hop-limit.c",
        "HOP-LIMIT",
        include_str!("../../../../libcsp/sandbox/tests/packets/hop-limit-plain.txt"),
    );
}

#[test]
fn packets_that_are_not_plain_get_the_fallback() {
    run_example("hop-limit.c", "HOP-LIMIT", include_str!("hop-limit.txt"));
}

#[test]
fn a_program_has_state_counters_and_two_outputs() {
    run_example("dns-length.c", "DNS-LENGTH", include_str!("dns-length.txt"));
}

/// A node with instances at level 1 and their objects.
struct Node {
    driver: Driver,
    manager: Manager,
    objects: HashMap<String, Vec<u8>>,
}

impl Node {
    fn new(driver: Driver, objects: &[(char, Vec<u8>)]) -> Self {
        let objects = objects.iter().map(|(digit, bytes)| (digits(*digit), bytes.clone())).collect();
        let mut manager = manager(16);
        manager.set_supply(Supplied::of(&objects));
        Node { driver, manager, objects }
    }

    fn apply(&mut self) {
        for (_, name, module, _) in self.manager.instances() {
            if let Some(object) = self.objects.get(module) {
                let parameters = self.manager.settings_of(name).unwrap().1.text("parameters");
                self.driver.load(name, module, parameters, || Ok(object.clone())).unwrap();
            }
        }
        let table = self.manager.publish_rules().table;
        let plan = Plan::new(&self.manager, &table, self.driver.slots()).unwrap();
        assert_eq!((plan.demoted.as_slice(), plan.idle.is_empty()), (&[][..], true), "{:?}", plan.idle);
        self.driver.apply(&plan, Instant::ZERO, &HashMap::new()).unwrap();
    }

    fn run(&mut self, description: &str) -> (u32, Vec<u8>) {
        let words: Vec<&str> = description.split_whitespace().collect();
        let frame = fixture::build(&words).0;
        at_port(&mut self.driver, 0, &frame);
        let (verdict, out, _) = self.driver.test_run(&frame, 1).unwrap();
        (verdict, out)
    }

    fn read(&mut self, name: &str, number: &str) -> u64 {
        let (_, read, none) = self.manager.prepare_call(name, "read", &[]).unwrap();
        let answer = self.driver.call(Instant::ZERO, name, "", read, &none).unwrap();
        let Some(Answer::Rows(rows)) = answer else { panic!("rows") };
        rows[0].numbers.iter().find(|(name, _)| *name == number).unwrap().1
    }
}

const TCP: &str = "ipv4 192.0.2.1 > 198.51.100.2 tcp 1000 > 80 S ttl 9";

#[test]
fn actions_that_a_program_returns_itself_end_the_graph() {
    let Some((driver, _mount)) = pinned() else { return };
    let returns = |action: &str| {
        program(&format!("CSP_XDP(1);\nSEC(\"xdp\") int f(struct xdp_md *context) {{ return {action}; }}"))
    };
    let objects = [('1', returns("XDP_DROP")), ('2', returns("XDP_PASS")), ('3', returns("XDP_TX"))];
    let mut node = Node::new(driver, &objects);
    for (name, port) in [("1", "1"), ("2", "2"), ("3", "3")] {
        let module = name.repeat(64);
        node.manager.create(name, &module, DRIVER, &[]).unwrap();
        node.manager.create(&format!("behind{name}"), "drop", DRIVER, &[]).unwrap();
        node.manager.connect(name, 0, &format!("behind{name}")).unwrap();
        let fields = csp_plugins::text::parse_match(&["dport", port]).unwrap();
        node.manager.add_rule(name, 1, fields, name, Fallback::Drop).unwrap();
    }
    node.apply();
    for (name, action) in [("1", XDP_DROP), ("2", XDP_PASS), ("3", 3)] {
        let packet = format!("ipv4 192.0.2.1 > 198.51.100.2 tcp 1000 > {name} S");
        assert_eq!(node.run(&packet).0, action);
        assert_eq!((node.read(name, "given_packets"), node.read(name, "ended_packets")), (1, 1));
    }
}

#[test]
fn a_chain_of_eight_programs_fits_the_kernel_s_bound_of_tail_calls() {
    let Some((driver, _mount)) = pinned() else { return };
    // Each writes its number behind the addresses, and leaves by its last output.
    let text = "CSP_XDP(8);\nCSP_PARAMETERS\n
        SEC(\"xdp\") int f(struct xdp_md *context) {
            __u8 *data = (void *)(long)context->data;
            const struct csp_parameters *parameters = csp_read_parameters();
            if (!parameters || (void *)(data + 54) > (void *)(long)context->data_end) return XDP_DROP;
            data[44] = data[44] * 3 + parameters->numbers[0];
            return csp_next(context, 7);
        }";
    let mut node = Node::new(driver, &[('c', program(text))]);
    for at in (0..8).rev() {
        let number = at.to_string();
        node.manager.create(&format!("p{at}"), &digits('c'), DRIVER, &[("parameters", &number)]).unwrap();
        if at < 7 {
            node.manager.connect(&format!("p{at}"), 7, &format!("p{}", at + 1)).unwrap();
        }
    }
    node.manager.add_rule("all", 1, Match::ANY, "p0", Fallback::Drop).unwrap();
    node.apply();
    let (verdict, out) = node.run(TCP);
    let right = (0..8).fold(0u8, |sum, at| sum.wrapping_mul(3).wrapping_add(at));
    assert_eq!((verdict, out[44]), (XDP_PASS, right));
    assert_eq!(node.driver.counts().unwrap().totals.broken, 0);
}

#[test]
fn a_packet_that_the_next_instance_cannot_process_is_dropped_and_counted() {
    let Some((driver, _mount)) = pinned() else { return };
    let text = "CSP_XDP(1);\nSEC(\"xdp\") int f(struct xdp_md *context) {
            __u8 *data = (void *)(long)context->data;
            if ((void *)(data + 14) > (void *)(long)context->data_end) return XDP_DROP;
            data[12] = 0x86;
            data[13] = 0xdd;
            return bpf_xdp_adjust_tail(context, -12) ? XDP_DROP : csp_next(context, 0);
        }";
    let mut node = Node::new(driver, &[('d', program(text))]);
    node.manager.create("breaks", &digits('d'), DRIVER, &[]).unwrap();
    node.manager.create("behind", "no-op", DRIVER, &[]).unwrap();
    node.manager.add_rule("all", 1, Match::ANY, "breaks", Fallback::Pass).unwrap();
    node.apply();
    assert_eq!(node.run(TCP).0, XDP_PASS, "out of the graph it is the kernel's");
    node.manager.connect("breaks", 0, "behind").unwrap();
    node.apply();
    assert_eq!(node.run(TCP).0, XDP_ABORTED);
    assert_eq!(node.driver.counts().unwrap().totals.broken, 1);
}

#[test]
fn another_version_and_another_daemon_take_over_between_two_packets() {
    let Some((driver, mount)) = pinned() else { return };
    let counting = |verdict: &str| {
        program(&format!(
            "CSP_XDP(1);\nCSP_COUNTERS(1)\nSEC(\"xdp\") int f(struct xdp_md *context) {{ csp_count(0); return {verdict}; }}"
        ))
    };
    let objects = [('1', counting("csp_drop(context)")), ('2', counting("csp_next(context, 0)"))];
    let mut node = Node::new(driver, &objects);
    node.manager.create("own", &digits('1'), DRIVER, &[]).unwrap();
    node.manager.add_rule("all", 1, Match::ANY, "own", Fallback::Pass).unwrap();
    node.apply();
    assert_eq!(node.run(TCP).0, XDP_DROP);
    // Another daemon, without a gap and with the state: it loads nothing.
    drop(node.driver);
    node.driver = open(Some(&mount.0.join("node"))).unwrap();
    assert_eq!(node.run(TCP).0, XDP_DROP, "before any rule was set");
    let object = node.objects.remove(&digits('1')).unwrap();
    node.driver.load("own", &digits('1'), "", || panic!("the program runs already")).unwrap();
    node.apply();
    assert_eq!(node.run(TCP).0, XDP_DROP);
    assert_eq!(node.read("own", "given_packets"), 3);
    node.objects.insert(digits('1'), object);
    // Another version begins with its own state.
    node.manager.remove_rule("all").unwrap();
    node.manager.remove("own").unwrap();
    node.manager.create("own", &digits('2'), DRIVER, &[]).unwrap();
    node.manager.add_rule("all", 1, Match::ANY, "own", Fallback::Pass).unwrap();
    node.apply();
    assert_eq!(node.run(TCP).0, XDP_PASS);
    assert_eq!(node.read("own", "given_packets"), 1);
    let pins = std::fs::read_dir(mount.0.join("node/v2")).unwrap();
    let counters = pins.flatten().filter(|pin| pin.file_name().to_string_lossy().starts_with("counters-"));
    assert_eq!(counters.count(), 1, "the former version's are gone");
    node.driver.detach().unwrap();
}

fn refusal(bytes: &[u8]) -> String {
    csp_xdp::verify_object(bytes).expect_err("it is refused").to_string()
}

#[test]
fn what_is_refused_says_why() {
    if open(None).is_none() {
        return;
    }
    let body = "SEC(\"xdp\") int f(struct xdp_md *context) { return csp_next(context, 0); }";
    let with = |text: &str| refusal(&program(&format!("{text}\n{body}")));
    let map = |kind: &str, rest: &str| {
        with(&format!(
            "CSP_XDP(1);\nstruct {{ __uint(type, {kind}); __type(key, __u32); __type(value, __u64); {rest} }} own SEC(\".maps\");"
        ))
    };
    let cases = [
        (refusal(b"\0asm"), "it is no eBPF object"),
        (refusal(b""), "it is no eBPF object"),
        (with(""), "it has no section `csp`"),
        (with("CSP_XDP(9);"), "it declares 9 outputs; 1 to 8 are possible"),
        (with("CSP_XDP_NUMBERS(1, 9, 3);"), "it declares parameters from 9 to 3"),
        (with("CSP_XDP(1);\nSEC(\"xdp\") int g(struct xdp_md *c) { return 1; }"), "it has 2 programs"),
        (
            refusal(&program("CSP_XDP(1);\nSEC(\"classifier\") int g(void *c) { return 1; }")),
            "a program of another section",
        ),
        (map("BPF_MAP_TYPE_RINGBUF", "__uint(max_entries, 4096);"), "map own: its type is none of array"),
        (map("BPF_MAP_TYPE_PROG_ARRAY", "__uint(max_entries, 4);"), "map own: its type is none of array"),
        (map("BPF_MAP_TYPE_ARRAY", "__uint(max_entries, 4); __uint(pinning, 1);"), "it is pinned by name"),
        (map("BPF_MAP_TYPE_ARRAY", "__uint(max_entries, 4); __uint(map_flags, 2048);"), "flags 0x800"),
        (map("BPF_MAP_TYPE_ARRAY", "__uint(max_entries, 9000000);"), "its maps need 72000"),
        (with("CSP_XDP(1);\nCSP_COUNTERS(65)"), "map csp_counters: it is an array"),
        // The verifier: a read behind what was checked, and a loop without an end.
        (
            refusal(&program(
                "CSP_XDP(1);\nSEC(\"xdp\") int f(struct xdp_md *c) { return *(__u8 *)(long)c->data; }",
            )),
            "invalid access to packet",
        ),
        (
            refusal(&program(
                "CSP_XDP(1);\nSEC(\"xdp\") int f(struct xdp_md *c) { for (;;) asm volatile(\"\" ::: \"memory\"); return 1; }",
            )),
            "the kernel's verifier refuses the program",
        ),
    ];
    for (error, part) in cases {
        assert!(error.contains(part) && error.len() < 900, "{error:?} does not contain {part:?}");
    }
    csp_xdp::verify_object(&example("hop-limit.c")).unwrap();
}

#[test]
fn without_capabilities_the_refusal_says_so() {
    if open(None).is_none() {
        return;
    }
    let object = example("hop-limit.c");
    csp_xdp::verify_object(&object).unwrap();
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).unwrap();
    let error = refusal(&object);
    assert!(error.starts_with("BPF is not permitted here: Operation not permitted"), "{error}");
    csp_xdp::read_object(&object).unwrap();
}

/// Whatever an object's bytes are, it is read or refused.
#[test]
fn no_object_makes_the_reader_panic() {
    let objects = [example("hop-limit.c"), example("dns-length.c")];
    let mut random = Random::new(seed());
    let (mut read, mut refused) = (0, 0);
    for round in 0..20_000 {
        let mut bytes = objects[round % 2].clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = random.number() as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at.max(64)),
                _ => {
                    // Numbers at the places where tables have them.
                    let at = at & !7;
                    let value = [0, 1, u64::MAX, 1 << 32, random.number()][random.below(5) as usize];
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                }
            }
        }
        match csp_xdp::read_object(&bytes) {
            Ok(_) => read += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(read > 1_000 && refused > 1_000, "{read} {refused}");
}

/// The same with the kernel: what is loaded is dropped again, what is refused is refused with a reason.
#[test]
fn objects_with_changed_bytes_are_verified_or_refused() {
    if open(None).is_none() {
        return;
    }
    let objects = [example("hop-limit.c"), example("dns-length.c")];
    let mut random = Random::new(seed());
    let mut refused = 0;
    for round in 0..300 {
        let mut bytes = objects[round % 2].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        if let Err(error) = csp_xdp::verify_object(&bytes) {
            assert!(error.to_string().len() < 1_024);
            refused += 1;
        }
    }
    assert!(refused > 30, "{refused}");
}

//! Handlers that programs bring, from the policy's text over real modules to what subscribers get.

use std::sync::Arc;

use csp_services::RequestNotice;
use csp_types::FlowLabel;
use serde_json::{Value, json};

use super::requests::{policy, world};
use super::*;

/// What a module does with the message in its buffer, whose length is the local `$len`; `memory` are the
/// limits of its memory in pages.
fn module(memory: &str, work: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "csp" "emit_same" (func $same (param i32) (result i32)))
            (import "csp" "emit" (func $emit (param i32 i32 i32 i32) (result i32)))
            (import "csp" "parameters" (func $parameters (param i32 i32 i32) (result i32)))
            (import "csp" "state_read" (func $state_read (param i32 i32 i32) (result i32)))
            (import "csp" "state_write" (func $state_write (param i32 i32 i32)))
            (memory (export "memory") {memory})
            (data (i32.const 0) "\28\00\00\00\01\00\00\00\40\00\00\00\00\00\00\00\00\01\00\00\40\00\00\00\01\00\00\00\04\00\00\00\01\00\00\00\00\00\00\00")
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "csp_declaration") (result i32) i32.const 0)
            (func (export "configure") (param i32) (result i32) (i32.gt_u (local.get 0) (i32.const 1)))
            (func (export "on_message") (param $format i32) (param $len i32) (param $frames i32) (result i32) {work}))"#
    );
    wat::parse_str(text).unwrap()
}

/// Emits the letter that is its parameter, and how many messages the stage has had.
fn counting(more: &str) -> Vec<u8> {
    module(
        "1 1",
        &format!(
            "(drop (call $state_read (i32.const 0) (i32.const 4) (i32.const 512)))
             (i32.store (i32.const 512) (i32.add (i32.load (i32.const 512)) (i32.const 1)))
             (call $state_write (i32.const 0) (i32.const 4) (i32.const 512))
             (drop (call $parameters (i32.const 0) (i32.const 1) (i32.const 600)))
             (i32.store8 (i32.const 601) (i32.add (i32.load (i32.const 512)) (i32.const 48))) {more}
             (call $emit (i32.const 0) (local.get $format) (i32.const 600) (i32.const 2))"
        ),
    )
}

const FORWARD: &str = "(call $same (i32.const 0))";
const ENDLESS: &str = "(loop $on (br $on)) (i32.const 0)";

/// A world whose policy lets anyone bring handlers; what makes them.
fn supply(more: &str) -> (World, Arc<Modules>) {
    let w = world(&format!(", handlers: {{anyone: true, each: 2{more}}}"));
    (w, Modules::new("none".into()))
}

impl World {
    fn bring(&mut self, modules: &Modules, n: u32, handler: &Value, module: &[u8]) -> Value {
        let request = json!({"handler": handler}).to_string();
        self.arrive(n, &message(&[b"", request.as_bytes(), module]));
        while let Some(job) = self.broker.poll_handler_job() {
            let made = modules.make_for_client(&job);
            self.broker.handler_made(self.now, job.ticket, made);
        }
        self.settle();
        let answers = self.texts(n);
        assert_eq!(answers.len(), 1, "{answers:?}");
        serde_json::from_str(&answers[0]).unwrap()
    }

    /// What a subscriber has got behind the topic.
    fn got(&mut self, n: u32) -> Vec<String> {
        self.taken(n).iter().map(|m| String::from_utf8_lossy(m.last().unwrap()).into_owned()).collect()
    }
}

#[test]
fn a_module_runs_is_given_parameters_and_is_replaced_with_its_state() {
    let (mut w, modules) = supply("");
    let (first, second) = (counting(""), counting("(i32.store8 (i32.const 600) (i32.const 33))"));
    let answer = w.bring(&modules, 2, &json!({"name": "count", "parameters": "a"}), &first);
    assert_eq!(answer["handler"], "flights.1", "{answer}");
    w.connect(3, "flights.1", "SUB");
    // Of a format, of none, and behind a topic.
    w.arrive(1, &message(&[&record(1, "EWR", 11, 1)]));
    w.arrive(1, &message(&[b"of no format"]));
    assert_eq!(w.got(3), ["a1", "a2"]);
    // Parameters alone: the module is known by its SHA-256.
    let handler = json!({"name": "count", "module": answer["module"], "parameters": "b"});
    let request = json!({ "handler": handler }).to_string();
    w.arrive(2, &message(&[b"", request.as_bytes()]));
    let job = w.broker.poll_handler_job().unwrap();
    assert_eq!(job.module, None);
    w.broker.handler_made(w.now, job.ticket, modules.make_for_client(&job));
    w.settle();
    assert!(w.texts(2)[0].contains(r#""swapped":true"#));
    w.arrive(1, &message(&[b"topic", b"x"]));
    assert_eq!(w.got(3), ["b3"]);
    let refused = w.bring(&modules, 2, &json!({"name": "count", "parameters": "too long"}), &first);
    assert!(refused["error"].as_str().unwrap().contains("refuses them with 1"), "{refused}");
    w.arrive(1, &message(&[b"x"]));
    assert_eq!(w.got(3), ["b4"], "the former parameters stay");
    let swapped = w.bring(&modules, 2, &json!({"name": "count", "parameters": "c"}), &second);
    assert_eq!((&swapped["topic"], &swapped["swapped"]), (&answer["topic"], &json!(true)));
    w.arrive(1, &message(&[b"x"]));
    assert_eq!(w.got(3), ["!5"], "other code, the same state");
    let [shown] = &modules.describe_stages()[..] else { panic!("one runs") };
    assert_eq!((&*shown.channel, &*shown.of, &*shown.by), ("flights.1", "flights", "10.0.0.2"));
    assert_eq!((shown.lease_s, &*shown.module), (20, swapped["module"].as_str().unwrap()));
    // The code is forgotten with the last that runs it.
    w.ask(2, &json!({"release": "count"}));
    assert_eq!(modules.describe_stages(), []);
    let gone = |w: &mut World| {
        w.arrive(2, &message(&[b"", json!({ "handler": handler }).to_string().as_bytes()]));
        let job = w.broker.poll_handler_job().unwrap();
        let made = modules.make_for_client(&job);
        let forgotten = made.as_ref().is_err_and(|error| error.contains("is not here: bring its bytes"));
        w.broker.handler_made(w.now, job.ticket, Err("no".to_owned()));
        w.settle();
        w.texts(2);
        forgotten
    };
    // A thread of the engine releases what is over.
    while !gone(&mut w) {
        std::thread::yield_now();
    }
}

#[test]
fn what_is_asked_and_what_is_allowed_is_said() {
    let (mut w, modules) = supply(", module_kib: 1, memory_kib: 64, fuel: 5000");
    let mut ask = |module: &[u8]| {
        let answer = w.bring(&modules, 2, &json!({"name": "mine"}), module);
        answer["error"].as_str().map(str::to_owned)
    };
    for (module, expected) in [
        (&b"no module"[..], "the module is not valid"),
        (&[0; 1025], "has 1025 bytes, and may have 1024"),
        (&module("1", FORWARD), "may grow to 4194304 bytes of memory, and may have 65536"),
        (&module("1 2", FORWARD), "may grow to 131072 bytes of memory, and may have 65536"),
        (&wat::parse_str(r#"(module (import "env" "open" (func)))"#).unwrap(), "imports `env.open`"),
    ] {
        let error = ask(module).unwrap();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(ask(&module("1 1", FORWARD)), None);
}

#[test]
fn a_hostile_module_is_stopped_within_the_policy_s_fuel_and_nobody_else_loses_a_message() {
    for (on_stop, state, passed) in [("restart", "waiting", 0), ("pass", "passed-by", 9), ("end", "ended", 0)]
    {
        let (mut w, modules) = supply(&format!(", fuel: 5000, on_stop: {on_stop}"));
        let answer = w.bring(&modules, 2, &json!({"name": "endless"}), &module("1 1", ENDLESS));
        assert_eq!(answer["handler"], "flights.1", "{answer}");
        assert_eq!(w.bring(&modules, 2, &json!({"name": "good"}), &module("1 1", FORWARD))["name"], "good");
        w.connect(3, "flights.1", "SUB");
        w.connect(4, "flights", "SUB");
        w.connect(5, "flights.2", "SUB");
        (0..10).for_each(|_| w.arrive(1, &message(&[b"x"])));
        assert_eq!((w.got(3).len(), w.got(4).len(), w.got(5).len()), (passed, 10, 10), "{on_stop}");
        let stages = modules.describe_stages();
        let stage = stages.iter().find(|stage| &*stage.handler == "endless").unwrap();
        assert_eq!(&*stage.state, state);
        let stops: Vec<_> = stage.stops.iter().map(|stops| (&*stops.reason, stops.total)).collect();
        assert_eq!(stops, [("fuel", 1)]);
        assert!(stage.fuel_max <= 5_000, "{}", stage.fuel_max);
    }
}

#[test]
fn a_channel_without_formats_has_handlers_and_others_end_theirs_with_the_policy() {
    let text = "apiVersion: csp/v1\nchannels:\n  - {name: raw, vip: 10.76.0.100, port: 5601, requests: {port: 5620, queries: 1, lease_s: 5, \
                handlers: {anyone: true}}}\n";
    let mut w = World::new("");
    w.apply(text, "");
    w.connect(1, "raw", "PUB");
    w.connect(2, "raw", "REQ");
    let modules = Modules::new("none".into());
    assert_eq!(w.bring(&modules, 2, &json!({"name": "same"}), &module("1 1", FORWARD))["handler"], "raw.1");
    w.connect(3, "raw.1", "SUB");
    // As long as messages of the channel may be.
    let long = vec![7; 1 << 20];
    w.arrive(1, &message(&[&long]));
    assert_eq!(w.taken(3)[0][1].len(), 1 << 20);
    let query = w.query(2, "SELECT a FROM raw");
    assert!(query["error"].is_string(), "{query}");
    w.apply(&text.replace("anyone: true", "anyone: true, fuel: 5000"), "");
    let notices: Vec<_> = std::iter::from_fn(|| w.broker.poll_request_notice()).collect();
    let Some(RequestNotice::Released { why, .. }) = notices.last() else { panic!("{notices:?}") };
    assert!(why.contains("bring it again"), "{why}");
    assert!(w.broker.requested().is_empty());
    w.broker.gone(w.now, FlowLabel::new(3, 0));
    assert_eq!(policy("").matches("handlers").count(), 0, "nobody brings any unless it is said");
}

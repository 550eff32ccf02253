//! Paths of supplied handlers: what the check of a policy accepts, workers run.

use std::path::PathBuf;

use csp_api::events::What;
use csp_sandbox::Sha256;
use csp_support::Random;

use super::*;

/// What a module declares.
struct Declared {
    outputs: u32,
    new_len_max: u32,
    period_ms: u32,
    state_len: u32,
}

/// A module that forwards messages.
fn module(declared: &Declared) -> Vec<u8> {
    let Declared { outputs, new_len_max, period_ms, state_len } = declared;
    let kind = u32::from(*state_len > 0);
    let numbers = [40, *outputs, *new_len_max, *period_ms, 256, 64, kind, *state_len, 1, 0u32];
    let bytes: String =
        numbers.iter().flat_map(|n| n.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    let timer = r#"(func (export "on_timer") (result i32) i32.const 0)"#;
    let timer = if *period_ms > 0 { timer } else { "" };
    let text = format!(
        r#"(module (import "csp" "emit_same" (func $same (param i32) (result i32)))
            (memory (export "memory") 1 1) (data (i32.const 0) "{bytes}")
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "csp_declaration") (result i32) i32.const 0) {timer}
            (func (export "on_message") (param i32 i32 i32) (result i32) (call $same (i32.const 0))))"#
    );
    wat::parse_str(text).unwrap()
}

struct Store(PathBuf, Arc<Modules>);

impl Store {
    fn new(name: &str) -> Store {
        let folder = std::env::temp_dir().join(format!("csp-{name}-{}", std::process::id()));
        Store(folder.clone(), Modules::new(folder))
    }

    fn put(&self, declared: &Declared) -> String {
        let bytes = module(declared);
        let hash = Sha256::of(&bytes).to_string();
        self.1.put(&hash, &bytes).unwrap();
        hash
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A policy with a channel for each path, of which each names supplied handlers by their numbers, with their
/// contexts.
fn policy(hashes: &[String], paths: &[Vec<(usize, String)>]) -> Planned {
    let handlers: Vec<String> =
        hashes.iter().enumerate().map(|(at, hash)| format!("{{name: h{at}, module: {hash}}}")).collect();
    let channel = |(at, path): (usize, &Vec<(usize, String)>)| {
        let stages: Vec<String> = path
            .iter()
            .map(|(handler, context)| format!("{{handler: h{handler}, context: {context}}}"))
            .collect();
        format!(
            "  - {{name: ch{at}, vip: 10.76.0.100, port: {}, path: [{}]}}\n",
            5600 + at,
            stages.join(", ")
        )
    };
    let channels: String = paths.iter().enumerate().map(channel).collect();
    let text = format!("apiVersion: csp/v1\nhandlers: [{}]\nchannels:\n{channels}", handlers.join(", "));
    Planned::parse_yaml(&text, "p.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_handler_with_two_outputs_is_refused_by_the_check() {
    let store = Store::new("two-outputs");
    let hash = store.put(&Declared { outputs: 2, new_len_max: 0, period_ms: 0, state_len: 0 });
    let error = store.1.check(&policy(&[hash], &[vec![(0, "c0".to_owned())]])).unwrap_err();
    assert_eq!(error, "handler h0 on channel ch0: stage 0 has 1 outputs, and its handler has 2");
}

#[test]
fn a_channel_whose_path_cannot_be_passes_nothing_on() {
    let store = Store::new("no-path");
    let hash = store.put(&Declared { outputs: 2, new_len_max: 0, period_ms: 0, state_len: 0 });
    let mut w = World::new("");
    let wrong = w.apply_with(&policy(&[hash], &[vec![(0, "c0".to_owned())], vec![]]), &store.1);
    assert!(wrong.unwrap_err().to_string().contains("the path of channel ch0"));
    let tuple = FourTuple { local: ([10, 76, 0, 100], 1).into(), remote: ([10, 0, 0, 2], 9).into() };
    let mut connects = |channel: &str, n| {
        let number = w.numbers.of(channel);
        w.broker.connected(w.now, FlowLabel::new(n, 0), number, tuple)
    };
    assert!(!connects("ch0", 1), "its messages would reach receivers unprocessed");
    assert!(connects("ch1", 2));
}

#[test]
fn workers_run_what_the_check_of_a_policy_accepts() {
    let store = Store::new("checked");
    let mut hashes = Vec::new();
    for outputs in [1, 2] {
        for (new_len_max, period_ms, state_len) in
            [(0, 0, 0), (4096, 0, 64), (0, 10, 65_536), (1 << 20, 0, 65_536)]
        {
            hashes.push(store.put(&Declared { outputs, new_len_max, period_ms, state_len }));
        }
    }
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut draw = |below: usize| random.below(below as u64) as usize;
        let paths: Vec<Vec<(usize, String)>> = (0..1 + draw(4))
            .map(|_| {
                (0..draw(4))
                    // Most of them have one output.
                    .map(|_| {
                        (
                            if draw(8) == 0 { draw(hashes.len()) } else { draw(hashes.len() / 2) },
                            format!("c{}", draw(8)),
                        )
                    })
                    .collect()
            })
            .collect();
        let policy = policy(&hashes, &paths);
        // A thread releases instances of the world before.
        while store.1.instances() > 0 {
            std::thread::yield_now();
        }
        match store.1.check(&policy) {
            Ok(()) => {
                accepted += 1;
                let applied = World::new("").apply_with(&policy, &store.1);
                assert!(applied.is_ok(), "seed {seed}: {applied:?}: {paths:?}");
            }
            Err(error) => {
                refused += 1;
                assert!(
                    World::new("").apply_with(&policy, &store.1).is_err(),
                    "seed {seed}: {error}: {paths:?}"
                );
            }
        }
    }
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_handler_that_refuses_the_state_before_it_is_counted_and_reported() {
    let (store, mut reported) = (Store::new("state-refused"), Vec::new());
    let mut w = World::new("");
    // Another module each time, and how many have refused the state of the one before.
    for (new_len_max, state_len, refused) in
        [(0, 64, 0), (4096, 64, 0), (0, 128, 1), (4096, 128, 1), (0, 64, 2), (0, 0, 3), (0, 64, 3)]
    {
        let hash = store.put(&Declared { outputs: 1, new_len_max, period_ms: 0, state_len });
        w.apply_with(&policy(&[hash], &[vec![(0, "c0".to_owned())]]), &store.1).unwrap();
        w.settle();
        while let Some(notice) = w.broker.poll_context_notice() {
            reported.push(crate::daemon::events::what_of(notice));
        }
        let mut out = csp_telemetry::MetricWriter::default();
        crate::daemon::contexts::collect(&mut out, &crate::daemon::contexts::of_worker(&w.broker), "0");
        let (text, what) = (out.render(), format!("{new_len_max} {state_len}"));
        let line = format!("csp_handler_state_refused_total{{handler=\"h0\",worker=\"0\"}} {refused}\n");
        assert!(text.contains(&line), "{what}: {text}");
        let expected = What::HandlerStateRefused { channel: "ch0".into(), handler: "h0".into() };
        assert_eq!(reported, vec![expected; refused], "{what}");
    }
}

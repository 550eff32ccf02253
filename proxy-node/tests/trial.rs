//! Trials of modules in processes of the proxy's own program: what a module makes the compiler use is used
//! there, within bounds.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csp_daemon::trial::{Bounds, Trial};
use csp_sandbox::{Confinement, Engine, Limits, Module, ModuleError};

const USUAL: &str = r#"(module (memory (export "memory") 1 1)
    (func (export "csp_abi") (result i32) i32.const 1)
    (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0))"#;

/// Loops within loops, in the innermost of which all locals are changed: each loop has as many parameters as
/// there are locals. The module has a few hundred KiB, and the compiler needs memory for the product.
fn nested(locals: usize, loops: usize) -> Vec<u8> {
    let mut text = format!("(module (func (export \"f\") (param i32) (local{})", " i32".repeat(locals));
    text.push_str(&"(loop ".repeat(loops));
    for local in 1..=locals {
        write!(text, "(local.set {local} (i32.add (local.get {local}) (local.get 0)))").unwrap();
    }
    text.push_str(&"(br_if 0 (local.get 0)))".repeat(loops));
    text.push_str("))");
    wat::parse_str(&text).unwrap()
}

fn engine(bounds: Bounds, confinement: Confinement) -> Engine {
    let trial = Trial::of(Path::new(env!("CARGO_BIN_EXE_csp-proxy-node")), bounds);
    Engine::with_trial(Limits { confinement, ..Limits::default() }, Some(trial.shared())).unwrap()
}

#[test]
fn a_module_that_takes_the_compiler_too_much_is_refused_and_harms_nobody() {
    let (short, small) = (
        Bounds { processor_s_max: 1, memory_max: 3 << 30, ..Bounds::default() },
        Bounds { memory_max: 128 << 20, ..Bounds::default() },
    );
    let compile = |bounds, confinement, bytes: &[u8]| Module::compile(&engine(bounds, confinement), bytes);
    let usual = wat::parse_str(USUAL).unwrap();
    let hungry = nested(6_000, 2_000);
    assert!(hungry.len() < 256 << 10, "clients may bring it: {} bytes", hungry.len());
    for confinement in [Confinement::Compared, Confinement::Guarded] {
        assert!(compile(Bounds::default(), confinement, &usual).is_ok());
        let error = compile(small, confinement, &hungry).unwrap_err();
        let expected = "the compiler needed more than 128 MiB of memory for the module";
        assert_eq!(error, ModuleError::Trial(expected.to_owned()));
        let error = compile(Bounds::default(), confinement, b"\0asm\x01\0\0\0junk").unwrap_err().to_string();
        assert!(error.starts_with("the module is not valid: "), "{error}");
    }
    let slow = nested(2_000, 400);
    let error = compile(short, Confinement::Compared, &slow).unwrap_err();
    let expected = "the compiler needed more than 1 s of processor time for the module";
    assert_eq!(error, ModuleError::Trial(expected.to_owned()));
    let bounds = Bounds { time_max: Duration::ZERO, ..Bounds::default() };
    let error = compile(bounds, Confinement::Compared, &usual).unwrap_err();
    assert_eq!(error, ModuleError::Trial("the compiler had not finished after 0ns".to_owned()));
}

/// Functions as compilers make them, so many that the module is as long as an operator's may be.
#[test]
fn a_module_of_usual_functions_may_be_as_long_as_any() {
    let mut text = String::from(
        r#"(module (memory (export "memory") 1 1) (func (export "csp_abi") (result i32) i32.const 1)"#,
    );
    text.push_str(r#"(func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0)"#);
    for at in 0..9_200 {
        write!(
            text,
            "(func (param $p i32) (result i32) (local $sum i32) (local $n i32)
               (loop $on
                 (local.set $sum (i32.add (local.get $sum) (i32.mul (i32.load offset={at} (local.get $p)) (i32.const {at}))))
                 (if (i32.gt_u (local.get $sum) (i32.const {at}))
                   (then (i32.store offset=8 (local.get $p) (local.get $sum)))
                   (else (i64.store offset=16 (local.get $p) (i64.extend_i32_u (local.get $n)))))
                 (local.set $p (i32.add (local.get $p) (i32.const 4)))
                 (local.set $n (i32.xor (i32.shl (local.get $n) (i32.const 3)) (i32.load8_u (local.get $p))))
                 (br_if $on (i32.lt_u (local.get $n) (i32.const 1000))))
               (if (result i32) (local.get $n) (then (call {} (local.get $sum))) (else (local.get $n))))",
            2 + at / 2
        )
        .unwrap();
    }
    text.push(')');
    let bytes = wat::parse_str(&text).unwrap();
    assert!((900 << 10..=1 << 20).contains(&bytes.len()), "{}", bytes.len());
    let compiled = Module::compile(&engine(Bounds::default(), Confinement::Guarded), &bytes);
    assert!(compiled.is_ok(), "{:?}", compiled.err());
}

/// One compiles in trials of several threads at a time, as a daemon does with an operator's modules and a
/// client's.
#[test]
fn trials_of_several_threads_are_independent() {
    let usual: Arc<[u8]> = wat::parse_str(USUAL).unwrap().into();
    let hungry: Arc<[u8]> = nested(6_000, 2_000).into();
    let bounds = Bounds { memory_max: 64 << 20, ..Bounds::default() };
    let engine = engine(bounds, Confinement::Compared);
    std::thread::scope(|scope| {
        for at in 0..6 {
            let (engine, bytes) = (engine.clone(), if at % 2 == 0 { usual.clone() } else { hungry.clone() });
            scope.spawn(move || assert_eq!(Module::compile(&engine, &bytes).is_ok(), at % 2 == 0));
        }
    });
}

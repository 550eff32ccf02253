//! A port that records what is emitted, and modules from text.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

use std::sync::Arc;

use csp_handlers::{Handler, State, Stop};
use csp_sandbox::{Engine, Limits, Module, ModuleError, NoFields, StopPolicy, Supplied};

pub mod port;

pub use port::{FakePort, at, send, tick};

pub fn engine() -> Engine {
    Engine::new(Limits::default()).unwrap()
}

pub fn compile(engine: &Engine, text: &str) -> Result<Arc<Module>, ModuleError> {
    Module::compile(engine, &wat::parse_str(text).unwrap())
}

/// Text of a module with one page of memory that follows the ABI, beside `rest`.
pub fn with(rest: &str) -> String {
    let imports = rest.find("(import").map_or("", |_| rest.split("(;end;)").next().unwrap());
    let rest = &rest[imports.len()..];
    format!(
        r#"(module {imports} (memory (export "memory") 1)
        (func (export "csp_abi") (result i32) i32.const 1) {rest})"#
    )
}

/// Text of a declaration at address 16.
pub fn declaration(numbers: [u32; 10]) -> String {
    let bytes: String =
        numbers.iter().flat_map(|it| it.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect();
    format!(r#"(data (i32.const 16) "{bytes}") (func (export "csp_declaration") (result i32) i32.const 16)"#)
}

/// A module that emits every message as it is.
pub fn no_op() -> String {
    with(
        r#"(import "csp" "emit_same" (func $same (param i32) (result i32)))(;end;)
        (func (export "on_message") (param i32 i32 i32) (result i32) i32.const 0 call $same)"#,
    )
}

pub struct Fixture {
    pub handler: Supplied,
    pub state: State,
}

impl Fixture {
    pub fn new(engine: &Engine, text: &str, on_stop: impl Into<StopPolicy>, parameters: &str) -> Self {
        let module = compile(engine, text).unwrap();
        let handler = Supplied::new(&module, Arc::new(NoFields), on_stop, parameters).unwrap();
        let state = State::new(&handler.needs());
        Fixture { handler, state }
    }

    pub fn send(&mut self, port: &mut FakePort, millis: u64) -> Result<(), Stop> {
        send(&mut self.handler, &mut self.state, port, at(millis))
    }
}

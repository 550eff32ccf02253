//! Built-in operators specialised to WebAssembly: code made for one plan and one format, with offsets and
//! constants folded in.
//!
//! ```text
//!   Plan ─▶ Condition, Image ─▶ generate ─▶ module ─ compiled on a background thread ─▶ Row: Program ─▶ the operator that asked
//! ```
//! A specialised module is not a supplied one. The host makes it, so that it needs no bound: it has no loop,
//! no import and one page of memory. It has one function without parameters, which reads a row that the host
//! has copied to the same offsets of its memory, and leaves the result's bytes behind it. What the operator
//! does around a row (frames, slices, counters, state, what is written behind the root block) stays in the
//! operator ([`csp_operators::Program`]), which is also what runs where a module cannot say something.
//!
//! A module yields what the plan's own [`Condition`] and [`Image`] yield over the same row, or is not made:
//! [`Declined`] names the reason.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]

mod builder;
mod expressions;
mod loads;
mod result;
mod row;
mod workshop;

use csp_queries::{Condition, Image, Plan};
use thiserror::Error;
use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, ExportKind, ExportSection, FunctionSection, MemorySection,
    MemoryType, Module, TypeSection, ValType,
};

use builder::Builder;
pub use row::Row;
pub use workshop::{PROGRAMS_MAX, Standing, WAITING_MAX, Work, Workshop};

/// Bytes of a row, and of a result: each has half a page.
pub const HALF: usize = 32 << 10;
/// Instructions of a module. Cranelift takes a few milliseconds for so many.
pub const INSTRUCTIONS_MAX: usize = 20_000;

/// Ranges of a row that are at most so far apart are copied as one.
const GAP: usize = 64;

/// What a module's function returns.
pub(crate) const REFUSED: i32 = 0;
/// The row is accepted, and its result written if there is one.
pub(crate) const DONE: i32 = 1;
/// A value of the condition has to be looked at by the plan.
pub(crate) const UNSAID: i32 = 2;
/// The row is accepted, and a value of the result has to be looked at by the plan.
pub(crate) const ACCEPTED: i32 = 3;

/// Why no module is made for a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Declined {
    /// It has more than one source, or looks at more than one message.
    #[error("only what looks at one message at a time is specialised")]
    Stateful,
    /// The condition reads what has no fixed place or no short value.
    #[error("the condition reads variable data, a group, a long text or LIKE, which are not specialised")]
    Condition,
    /// There is no condition, and the result has no value at a fixed place.
    #[error("the result has no values at fixed places")]
    Result,
    /// An operator that WebAssembly does not have.
    #[error("the remainder of floating-point numbers is not specialised")]
    FloatRemainder,
    /// A function whose value takes a decision.
    #[error("CASE, COALESCE, ABS and CAST are not specialised")]
    Function,
    /// Types that have nothing in common.
    #[error("a value has a type that its place in the result does not have")]
    Type,
    /// A row or result beyond half a page.
    #[error("a row or result of more than {HALF} bytes is not specialised")]
    Long,
    /// More code than it is worth.
    #[error("a query of more than {INSTRUCTIONS_MAX} instructions is not specialised")]
    Large,
}

/// The engine cannot be made; contains what the runtime reports.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("WebAssembly cannot run here: {0}")]
pub struct NoEngine(pub String);

/// A module, and what the host has to know of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Specialised {
    /// The module's bytes.
    pub wasm: Vec<u8>,
    /// What it reads of a row: begin and end.
    pub reads: Vec<(usize, usize)>,
    /// Length of the result that it writes: header and root block. `None`: it only looks at the condition.
    pub writes: Option<usize>,
}

/// Makes the module of a plan of one source, or only of its condition.
///
/// # Errors
/// Why the plan's own way is the only one.
pub fn generate(plan: &Plan, condition_only: bool) -> Result<Specialised, Declined> {
    if plan.sources.len() != 1 || plan.join.is_some() || plan.window.is_some() {
        return Err(Declined::Stateful);
    }
    let condition = Condition::new(plan, &plan.filter).ok_or(Declined::Condition)?;
    let image = if condition_only { None } else { Image::new(plan) };
    if condition.terms().is_empty() && image.is_none() {
        return Err(Declined::Result);
    }
    let mut builder = Builder::default();
    builder.condition(&condition)?;
    if let Some(image) = &image {
        builder.result(image)?;
    }
    let reads = joined(builder.reads());
    let writes = image.as_ref().map(|image| image.empty().len());
    if reads.last().is_some_and(|read| read.1 > HALF) || writes.is_some_and(|len| len > HALF) {
        return Err(Declined::Long);
    }
    if builder.len() > INSTRUCTIONS_MAX {
        return Err(Declined::Large);
    }
    let wasm = module(builder, image.as_ref().map_or(&[], |image| image.empty()));
    Ok(Specialised { wasm, reads, writes })
}

/// Ranges in order, those close to each other as one.
fn joined(mut ranges: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    ranges.sort_unstable();
    let mut all: Vec<(usize, usize)> = Vec::new();
    for (begin, end) in ranges {
        match all.last_mut() {
            Some(last) if begin <= last.1 + GAP => last.1 = last.1.max(end),
            _ => all.push((begin, end)),
        }
    }
    all
}

fn module(builder: Builder, empty: &[u8]) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([], [ValType::I32]);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut memories = MemorySection::new();
    let (minimum, maximum) = (1, Some(1));
    memories.memory(MemoryType { minimum, maximum, memory64: false, shared: false, page_size_log2: None });
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0).export("row", ExportKind::Func, 0);
    let mut code = CodeSection::new();
    code.function(&builder.finish());
    let mut data = DataSection::new();
    data.active(0, &ConstExpr::i32_const(HALF as i32), empty.iter().copied());
    let mut module = Module::new();
    module
        .section(&types)
        .section(&functions)
        .section(&memories)
        .section(&exports)
        .section(&code)
        .section(&data);
    module.finish()
}

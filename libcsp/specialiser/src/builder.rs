//! The function that is being made: its instructions and locals, and what it reads of a row.

use csp_formats::Load;
use wasm_encoder::{BlockType, Function, Instruction, MemArg, MemArgTarget, ValType};

use crate::{DONE, UNSAID};

/// What a local has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nothing: the value is null.
    Null,
    /// `i32`, 0 or 1, and 0 if it is null.
    Truth,
    /// `i64`.
    Int,
    /// `f64`.
    Float,
    /// `i64` without sign, as [`csp_formats::Cell::Text`] has it.
    Text,
    /// `i64`.
    Enum,
    /// `i64`.
    Set,
}

/// A value in locals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    pub kind: Kind,
    pub local: u32,
    /// An `i32` that is 1 if the value is null, else 0. `None`: it never is.
    pub null: Option<u32>,
    /// Least and greatest number that an `Int` can be, whether it is null or not.
    pub range: (i64, i64),
}

impl Value {
    pub fn new(kind: Kind, local: u32, null: Option<u32>) -> Self {
        Value { kind, local, null, range: (i64::MIN, i64::MAX) }
    }

    pub const NULL: Value = Value { kind: Kind::Null, local: 0, null: None, range: (0, 0) };
}

/// A function without parameters that returns an `i32`.
#[derive(Debug)]
pub(super) struct Builder {
    code: Vec<Instruction<'static>>,
    locals: Vec<ValType>,
    reads: Vec<(usize, usize)>,
    /// Values that were read already.
    pub loaded: Vec<(Load, Value)>,
    /// What is returned where a value has to be looked at by the plan.
    pub on_unsaid: i32,
    /// Places at which it may be.
    pub unsaid: usize,
}

impl Default for Builder {
    fn default() -> Self {
        let (code, locals, reads, loaded) = Default::default();
        Builder { code, locals, reads, loaded, on_unsaid: UNSAID, unsaid: 0 }
    }
}

/// An address, which is constant: bounds are then checked by the compiler.
pub(super) fn at(offset: usize) -> MemArg {
    MemArg { offset: offset as u64, align: 0, target: MemArgTarget::Memory(0), ordering: None }
}

impl Builder {
    pub fn op(&mut self, instruction: Instruction<'static>) {
        self.code.push(instruction);
    }

    pub fn ops<const N: usize>(&mut self, instructions: [Instruction<'static>; N]) {
        self.code.extend(instructions);
    }

    pub fn get(&mut self, local: u32) {
        self.op(Instruction::LocalGet(local));
    }

    pub fn int(&mut self, number: i64) {
        self.op(Instruction::I64Const(number));
    }

    /// A local of what lies on the stack, which is taken off it.
    pub fn set(&mut self, kind: ValType) -> u32 {
        let local = self.locals.len() as u32;
        self.locals.push(kind);
        self.op(Instruction::LocalSet(local));
        local
    }

    /// Records that bytes of the row are read.
    pub fn read(&mut self, begin: usize, len: usize) {
        self.reads.push((begin, begin + len));
    }

    /// A local that is 1 if one of two is.
    pub fn either(&mut self, one: Option<u32>, other: Option<u32>) -> Option<u32> {
        match (one, other) {
            (Some(one), Some(other)) if one != other => {
                self.ops([Instruction::LocalGet(one), Instruction::LocalGet(other), Instruction::I32Or]);
                Some(self.set(ValType::I32))
            }
            (one, other) => one.or(other),
        }
    }

    /// Clears the `i32` on the stack if a local is 1.
    pub fn unless(&mut self, local: Option<u32>) {
        if let Some(local) = local {
            self.ops([Instruction::LocalGet(local), Instruction::I32Eqz, Instruction::I32And]);
        }
    }

    /// Leaves the row to the plan if the `i32` on the stack is not 0.
    pub fn unsaid_if(&mut self) {
        self.unsaid += 1;
        self.return_if(self.on_unsaid);
    }

    pub fn return_if(&mut self, code: i32) {
        self.ops([
            Instruction::If(BlockType::Empty),
            Instruction::I32Const(code),
            Instruction::Return,
            Instruction::End,
        ]);
    }

    pub fn len(&self) -> usize {
        self.code.len()
    }

    /// Puts the last instructions, from `end` on, before the one at `place`.
    pub fn move_before(&mut self, place: usize, end: usize) {
        let count = self.code.len() - end;
        self.code[place..].rotate_right(count);
    }

    pub fn reads(&self) -> Vec<(usize, usize)> {
        self.reads.clone()
    }

    pub fn finish(self) -> Function {
        let mut function = Function::new_with_locals_types(self.locals);
        for instruction in &self.code {
            function.instruction(instruction);
        }
        function.instruction(&Instruction::I32Const(DONE)).instruction(&Instruction::End);
        function
    }
}

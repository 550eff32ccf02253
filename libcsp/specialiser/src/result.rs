//! Results: bytes that are copied, and values that are computed, behind the row in the second half of the
//! page.
//!
//! What no message changes (header, constants, nulls of columns that are always null) is in the module's data
//! and stays there.

use csp_queries::{Computed, How, Image, Move, Store};
use wasm_encoder::{Instruction as I, ValType};

use crate::builder::{Builder, Kind, Value, at};
use crate::{ACCEPTED, Declined, HALF};

/// Bytes that are copied by loads and stores; more are copied by one instruction.
const UNROLLED_MAX: usize = 256;

impl Builder {
    /// Writes header and root block of a result.
    pub fn result(&mut self, image: &Image) -> Result<(), Declined> {
        self.on_unsaid = ACCEPTED;
        for part in image.moves() {
            self.read(part.from, part.len);
            match part.how {
                How::Plain => self.copy(part),
                How::Text => self.copy_text(part),
                How::NotNull(load) => {
                    if let Some(null) = self.load(&load).null {
                        self.get(null);
                        self.unsaid_if();
                    }
                    self.copy(part);
                }
            }
        }
        for computed in image.computed() {
            self.computed(computed, image.empty())?;
        }
        Ok(())
    }

    fn copy(&mut self, part: &Move) {
        let mut done = 0;
        while done < part.len {
            let (from, to) = (at(part.from + done), at(HALF + part.to + done));
            self.ops([I::I32Const(0), I::I32Const(0)]);
            let (load, store, count) = match part.len - done {
                UNROLLED_MAX.. => {
                    self.ops([I::Drop, I::Drop]);
                    let (from, to) = ((part.from + done) as i32, (HALF + part.to + done) as i32);
                    self.ops([I::I32Const(to), I::I32Const(from), I::I32Const((part.len - done) as i32)]);
                    return self.op(I::MemoryCopy { src_mem: 0, dst_mem: 0 });
                }
                16.. => (I::V128Load(from), I::V128Store(to), 16),
                8.. => (I::I64Load(from), I::I64Store(to), 8),
                4.. => (I::I32Load(from), I::I32Store(to), 4),
                2.. => (I::I32Load16U(from), I::I32Store16(to), 2),
                _ => (I::I32Load8U(from), I::I32Store8(to), 1),
            };
            self.ops([load, store]);
            done += count;
        }
    }

    /// Copies a text, and NULs behind its first one.
    fn copy_text(&mut self, part: &Move) {
        // Ones until a NUL was seen.
        let mut keep: Option<u32> = None;
        let mut done = 0;
        while done < part.len {
            let (from, to) = (at(part.from + done), at(HALF + part.to + done));
            self.op(I::I32Const(0));
            let (load, store, count) = match part.len - done {
                8.. => (I::I64Load(from), I::I64Store(to), 8),
                4.. => (I::I64Load32U(from), I::I64Store32(to), 4),
                2.. => (I::I64Load16U(from), I::I64Store16(to), 2),
                _ => (I::I64Load8U(from), I::I64Store8(to), 1),
            };
            self.op(load);
            let word = self.set(ValType::I64);
            let (before, _) = self.before_nul(word);
            self.op(I::I32Const(0));
            self.ops([I::LocalGet(word), I::LocalGet(before), I::I64And]);
            if let Some(keep) = keep {
                self.ops([I::LocalGet(keep), I::I64And]);
            }
            self.op(store);
            done += count;
            if done < part.len {
                // All bytes of the word are there if it has no NUL; the mask covers as many.
                let mask = (u64::MAX >> (64 - 8 * count)) as i64;
                self.ops([I::I64Const(-1), I::I64Const(0)]);
                self.ops([
                    I::LocalGet(before),
                    I::I64Const(mask),
                    I::I64And,
                    I::I64Const(mask),
                    I::I64Eq,
                    I::Select,
                ]);
                if let Some(keep) = keep {
                    self.ops([I::LocalGet(keep), I::I64And]);
                }
                keep = Some(self.set(ValType::I64));
            }
        }
    }

    fn computed(&mut self, computed: &Computed, empty: &[u8]) -> Result<(), Declined> {
        let value = self.value(&computed.code)?;
        let place = at(HALF + computed.to);
        let null_bytes = |len: usize| empty.get(computed.to..computed.to + len).ok_or(Declined::Type);
        match (computed.kind, value.kind) {
            // It is in the data, and nothing else is written there.
            (_, Kind::Null) => {}
            (Store::Boolean, Kind::Truth) => {
                self.op(I::I32Const(0));
                match value.null {
                    None => self.get(value.local),
                    Some(null) => {
                        let byte = i32::from(null_bytes(1)?[0]);
                        self.ops([I::I32Const(byte), I::LocalGet(value.local), I::LocalGet(null), I::Select]);
                    }
                }
                self.op(I::I32Store8(place));
            }
            (Store::Int, Kind::Int) | (Store::Float, Kind::Int | Kind::Float) => {
                let null = self.null_of_number(value);
                let word = null_bytes(8)?.first_chunk().ok_or(Declined::Type)?;
                self.op(I::I32Const(0));
                if null.is_some() {
                    self.int(i64::from_le_bytes(*word));
                }
                if computed.kind == Store::Int {
                    self.get(value.local);
                } else {
                    self.float(value);
                    self.op(I::I64ReinterpretF64);
                }
                if computed.big {
                    self.swap(8);
                }
                if let Some(null) = null {
                    self.ops([I::LocalGet(null), I::Select]);
                }
                self.op(I::I64Store(place));
            }
            _ => return Err(Declined::Type),
        }
        Ok(())
    }

    /// What says that a number is null: the least whole one stands for null too.
    fn null_of_number(&mut self, value: Value) -> Option<u32> {
        if value.kind != Kind::Int || value.range.0 > i64::MIN {
            return value.null;
        }
        self.ops([I::LocalGet(value.local), I::I64Const(i64::MIN), I::I64Eq]);
        let least = self.set(ValType::I32);
        self.either(value.null, Some(least))
    }
}

//! How values are read from a row, which lies at the begin of the memory.

use csp_formats::{Load, Primitive, What};
use wasm_encoder::{Ieee64, Instruction as I, ValType};

use crate::builder::{Builder, Kind, Value, at};

/// A byte of each that is 1, and the highest bit of each.
const ONES: i64 = 0x0101_0101_0101_0101;
const HIGHS: i64 = 0x8080_8080_8080_8080_u64 as i64;

impl Builder {
    /// A value of the row.
    pub fn load(&mut self, load: &Load) -> Value {
        if let Some((_, value)) = self.loaded.iter().find(|(known, _)| known == load) {
            return *value;
        }
        let value = self.load_anew(load);
        self.loaded.push((*load, value));
        value
    }

    fn load_anew(&mut self, load: &Load) -> Value {
        let integer = |primitive| (Kind::Int, primitive);
        let (kind, primitive) = match load.what() {
            What::Int32 => integer(Primitive::Int32),
            What::UInt32 => integer(Primitive::UInt32),
            What::Int64 => integer(Primitive::Int64),
            What::Number(primitive @ (Primitive::Float | Primitive::Double)) => {
                return self.load_float(load, primitive);
            }
            What::Number(primitive) => integer(primitive),
            What::Enum(primitive) => (Kind::Enum, primitive),
            What::Set(primitive) => (Kind::Set, primitive),
            What::Text4 => return self.load_text(load, 4),
            What::Text(len) => return self.load_text(load, len as usize),
        };
        self.whole(load, primitive);
        let local = self.set(ValType::I64);
        let null = load.null().filter(|_| kind != Kind::Set).map(|null| {
            self.ops([I::LocalGet(local), I::I64Const(null as i64), I::I64Eq]);
            self.set(ValType::I32)
        });
        if primitive == Primitive::UInt64 && kind != Kind::Set {
            // A number of more than 63 bits is no cell.
            self.ops([I::LocalGet(local), I::I64Const(0), I::I64LtS]);
            self.unless(null);
            self.unsaid_if();
        }
        Value { range: range(primitive), ..Value::new(kind, local, null) }
    }

    /// Puts an integer on the stack as an `i64`.
    fn whole(&mut self, load: &Load, primitive: Primitive) {
        let place = at(load.at());
        self.read(load.at(), primitive.size() as usize);
        self.op(I::I32Const(0));
        if primitive.size() == 1 {
            return self.op(match primitive {
                Primitive::Int8 => I::I64Load8S(place),
                _ => I::I64Load8U(place),
            });
        }
        if !load.is_big_endian() {
            return self.op(match primitive {
                Primitive::Int16 => I::I64Load16S(place),
                Primitive::UInt16 => I::I64Load16U(place),
                Primitive::Int32 => I::I64Load32S(place),
                Primitive::UInt32 => I::I64Load32U(place),
                _ => I::I64Load(place),
            });
        }
        match primitive {
            Primitive::Int16 | Primitive::UInt16 => {
                self.op(I::I64Load16U(place));
                self.swap(2);
                if primitive == Primitive::Int16 {
                    self.op(I::I64Extend16S);
                }
            }
            Primitive::Int32 | Primitive::UInt32 => {
                self.op(I::I64Load32U(place));
                self.swap(4);
                if primitive == Primitive::Int32 {
                    self.op(I::I64Extend32S);
                }
            }
            _ => {
                self.op(I::I64Load(place));
                self.swap(8);
            }
        }
    }

    /// Turns the lowest bytes of the `i64` on the stack around; the others are zero.
    pub fn swap(&mut self, size: u32) {
        let local = self.set(ValType::I64);
        self.get(local);
        for (shift, mask) in [(8, 0x00ff_00ff_00ff_00ff), (16, 0x0000_ffff_0000_ffff)] {
            let word = self.set(ValType::I64);
            self.ops([I::LocalGet(word), I::I64Const(mask), I::I64And, I::I64Const(shift), I::I64Shl]);
            self.ops([
                I::LocalGet(word),
                I::I64Const(shift),
                I::I64ShrU,
                I::I64Const(mask),
                I::I64And,
                I::I64Or,
            ]);
        }
        self.ops([I::I64Const(32), I::I64Rotl, I::I64Const(i64::from(64 - 8 * size)), I::I64ShrU]);
    }

    fn load_float(&mut self, load: &Load, primitive: Primitive) -> Value {
        let place = at(load.at());
        self.read(load.at(), primitive.size() as usize);
        self.op(I::I32Const(0));
        match (primitive, load.is_big_endian()) {
            (Primitive::Float, false) => self.ops([I::F32Load(place), I::F64PromoteF32]),
            (Primitive::Float, true) => {
                self.op(I::I64Load32U(place));
                self.swap(4);
                self.ops([I::I32WrapI64, I::F32ReinterpretI32, I::F64PromoteF32]);
            }
            (_, false) => self.op(I::F64Load(place)),
            (_, true) => {
                self.op(I::I64Load(place));
                self.swap(8);
                self.op(I::F64ReinterpretI64);
            }
        }
        let local = self.set(ValType::F64);
        self.ops([I::LocalGet(local), I::LocalGet(local), I::F64Ne]);
        if let Some(null) = load.null() {
            self.ops([I::LocalGet(local), I::F64Const(Ieee64::new(null)), I::F64Eq, I::I32Or]);
        }
        let null = self.set(ValType::I32);
        Value::new(Kind::Float, local, Some(null))
    }

    /// The bytes of a text with the first as the lowest, and zeros behind them; with what says whether it is
    /// null.
    pub fn raw_text(&mut self, load: &Load, len: usize) -> (u32, Option<u32>) {
        self.op(I::I32Const(0));
        let end = load.at() + len;
        // Short ones are read as a whole word that ends with the text: the header lies before it.
        match (len, end.checked_sub(8)) {
            (4, _) => {
                self.read(load.at(), 4);
                self.op(I::I64Load32U(at(load.at())));
            }
            (_, Some(begin)) => {
                self.read(begin, 8);
                self.ops([I::I64Load(at(begin)), I::I64Const(64 - 8 * len as i64), I::I64ShrU]);
            }
            // `Load::read` says nothing then, and the plan has the row.
            (_, None) => {
                self.ops([I::I64Load8U(at(load.at())), I::I32Const(1)]);
                self.unsaid_if();
            }
        }
        let word = self.set(ValType::I64);
        let null = load.null().map(|null| {
            self.ops([I::LocalGet(word), I::I64Const(0xff), I::I64And, I::I64Const(null as i64), I::I64Eq]);
            self.set(ValType::I32)
        });
        (word, null)
    }

    fn load_text(&mut self, load: &Load, len: usize) -> Value {
        let (word, null) = self.raw_text(load, len);
        let before = self.before_nul(word).0;
        self.ops([I::LocalGet(word), I::LocalGet(before), I::I64And]);
        self.swap(8);
        let local = self.set(ValType::I64);
        Value::new(Kind::Text, local, null)
    }

    /// Ones in the bytes before the first NUL of a word, and a word that is 0 if it has none.
    pub fn before_nul(&mut self, word: u32) -> (u32, u32) {
        self.ops([I::LocalGet(word), I::I64Const(ONES), I::I64Sub]);
        self.ops([I::LocalGet(word), I::I64Const(-1), I::I64Xor, I::I64And, I::I64Const(HIGHS), I::I64And]);
        let nul = self.set(ValType::I64);
        self.op(I::I64Const(-1));
        self.ops([I::LocalGet(nul), I::LocalGet(nul), I::I64Const(1), I::I64Sub, I::I64Xor]);
        self.ops([I::I64Const(8), I::I64ShrU, I::LocalGet(nul), I::I64Eqz, I::Select]);
        (self.set(ValType::I64), nul)
    }
}

fn range(primitive: Primitive) -> (i64, i64) {
    match primitive {
        Primitive::Char | Primitive::UInt8 => (0, i64::from(u8::MAX)),
        Primitive::Int8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        Primitive::Int16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        Primitive::UInt16 => (0, i64::from(u16::MAX)),
        Primitive::Int32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        Primitive::UInt32 => (0, i64::from(u32::MAX)),
        Primitive::Int64 | Primitive::UInt64 | Primitive::Float | Primitive::Double => (i64::MIN, i64::MAX),
    }
}

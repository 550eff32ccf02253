//! Conditions and expressions: the same values as [`csp_queries::Code`] has, with types known when the code
//! is made.

use csp_formats::{Cell, Load, What};
use csp_queries::{Code, Condition, Operator, Relation};
use wasm_encoder::{Ieee64, Instruction as I, ValType};

use crate::builder::{Builder, Kind, Value};
use crate::{Declined, REFUSED};

/// Terms that are looked at before the first of them can refuse a row: a jump that is mispredicted costs more
/// than some terms.
const TERMS: usize = 4;

impl Builder {
    /// Returns from the function if a condition is not true.
    pub fn condition(&mut self, condition: &Condition) -> Result<(), Declined> {
        // The terms so far that have not refused yet, and how many.
        let (mut all, mut count) = (None, 0);
        for term in condition.terms() {
            let (begin, unsaid) = (self.len(), self.unsaid);
            let value = self.value(term)?;
            if self.unsaid > unsaid {
                // Terms before it refuse first.
                let end = self.len();
                self.refuse_unless(all.take());
                self.move_before(begin, end);
                count = 0;
            }
            match value.kind {
                Kind::Truth => self.get(value.local),
                _ => self.op(I::I32Const(0)),
            }
            if let Some(all) = all {
                self.ops([I::LocalGet(all), I::I32And]);
            }
            all = Some(self.set(ValType::I32));
            count += 1;
            if count == TERMS {
                self.refuse_unless(all.take());
                count = 0;
            }
        }
        self.refuse_unless(all);
        Ok(())
    }

    fn refuse_unless(&mut self, all: Option<u32>) {
        if let Some(all) = all {
            self.ops([I::LocalGet(all), I::I32Eqz]);
            self.return_if(REFUSED);
        }
    }

    /// The value of an expression.
    pub fn value(&mut self, code: &Code) -> Result<Value, Declined> {
        Ok(match code {
            Code::Constant(cell) => self.constant(*cell),
            Code::Load(_, load) => self.load(load),
            Code::Test(_, load, relation, cell) => self.test(load, *relation, *cell),
            Code::Compare(comparison, sides) => {
                let (left, right) = (self.value(&sides[0])?, self.value(&sides[1])?);
                self.compare(left, right, Relation::new(*comparison))
            }
            Code::Arithmetic(operator, sides) => {
                let (left, right) = (self.value(&sides[0])?, self.value(&sides[1])?);
                self.arithmetic(*operator, left, right)?
            }
            Code::And(sides) => {
                let (left, right) = (self.truth(&sides[0])?, self.truth(&sides[1])?);
                self.and(left, right)
            }
            Code::Or(sides) => {
                let (left, right) = (self.truth(&sides[0])?, self.truth(&sides[1])?);
                self.or(left, right)
            }
            Code::Not(inner) => {
                let inner = self.truth(inner)?;
                self.get(inner.local);
                if let Some(null) = inner.null {
                    self.ops([I::LocalGet(null), I::I32Or]);
                }
                self.op(I::I32Eqz);
                self.truth_of_stack(inner.null)
            }
            Code::IsNull(inner) => match self.value(inner)? {
                Value { kind: Kind::Null, .. } => self.constant(Cell::True),
                Value { null: None, .. } => self.constant(Cell::False),
                Value { null: Some(null), .. } => Value::new(Kind::Truth, null, None),
            },
            Code::Has(inner, bit) => match self.value(inner)? {
                Value { kind: Kind::Set, local, .. } => {
                    self.ops([I::LocalGet(local), I::I64Const(i64::from(*bit)), I::I64ShrU, I::I32WrapI64]);
                    self.ops([I::I32Const(1), I::I32And]);
                    self.truth_of_stack(None)
                }
                _ => Value::NULL,
            },
            Code::If(_) | Code::Coalesce(_) | Code::Absolute(_) | Code::Cast(..) => {
                return Err(Declined::Function);
            }
        })
    }

    fn constant(&mut self, cell: Cell) -> Value {
        let (kind, number) = match cell {
            Cell::Null => return Value::NULL,
            Cell::False | Cell::True => {
                self.op(I::I32Const(i32::from(cell == Cell::True)));
                return self.truth_of_stack(None);
            }
            Cell::Float(bits) => {
                self.op(I::F64Const(Ieee64::new(bits)));
                return Value::new(Kind::Float, self.set(ValType::F64), None);
            }
            Cell::Int(number) => (Kind::Int, number),
            Cell::Enum(number) => (Kind::Enum, number),
            Cell::Text(word) => (Kind::Text, word as i64),
            Cell::Set(bits) => (Kind::Set, bits as i64),
        };
        self.int(number);
        Value { range: (number, number), ..Value::new(kind, self.set(ValType::I64), None) }
    }

    fn truth_of_stack(&mut self, null: Option<u32>) -> Value {
        Value::new(Kind::Truth, self.set(ValType::I32), null)
    }

    /// An expression as a truth value; what is none is null.
    fn truth(&mut self, code: &Code) -> Result<Value, Declined> {
        Ok(match self.value(code)? {
            value @ Value { kind: Kind::Truth, .. } => value,
            _ => {
                self.op(I::I32Const(0));
                let value = self.set(ValType::I32);
                self.op(I::I32Const(1));
                Value::new(Kind::Truth, value, Some(self.set(ValType::I32)))
            }
        })
    }

    fn and(&mut self, left: Value, right: Value) -> Value {
        self.ops([I::LocalGet(left.local), I::LocalGet(right.local), I::I32And]);
        let both = self.set(ValType::I32);
        // Null unless one side is false: neither true nor null.
        let Some(null) = self.either(left.null, right.null) else {
            return Value::new(Kind::Truth, both, None);
        };
        self.get(null);
        for side in [left, right] {
            self.get(side.local);
            if let Some(null) = side.null {
                self.ops([I::LocalGet(null), I::I32Or]);
            }
            self.op(I::I32And);
        }
        let null = self.set(ValType::I32);
        Value::new(Kind::Truth, both, Some(null))
    }

    fn or(&mut self, left: Value, right: Value) -> Value {
        self.ops([I::LocalGet(left.local), I::LocalGet(right.local), I::I32Or]);
        let one = self.set(ValType::I32);
        let Some(null) = self.either(left.null, right.null) else {
            return Value::new(Kind::Truth, one, None);
        };
        self.get(null);
        self.unless(Some(one));
        let null = self.set(ValType::I32);
        Value::new(Kind::Truth, one, Some(null))
    }

    /// A comparison of a value of the row with a constant.
    fn test(&mut self, load: &Load, relation: Relation, cell: Cell) -> Value {
        let len = match load.what() {
            What::Text4 => Some(4),
            What::Text(len) => Some(len as usize),
            _ => None,
        };
        if let (Some(len), Cell::Text(word)) = (len, cell)
            && relation.less == relation.greater
        {
            return self.test_text(load, len, relation, word);
        }
        let (left, right) = (self.load(load), self.constant(cell));
        self.compare(left, right, relation)
    }

    /// Whether a text is, or is not, a constant one: as many bytes are equal as that has, and a NUL follows.
    fn test_text(&mut self, load: &Load, len: usize, relation: Relation, word: u64) -> Value {
        let bytes = word.to_be_bytes();
        let count = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let (text, null) = self.raw_text(load, len);
        if count > len {
            self.op(I::I32Const(0));
        } else {
            let looked_at = (count + 1).min(len);
            let mask = u64::MAX >> (64 - 8 * looked_at);
            self.ops([I::LocalGet(text), I::I64Const(mask as i64), I::I64And]);
            self.ops([I::I64Const(i64::from_le_bytes(bytes)), I::I64Eq]);
        }
        match (relation.equal, relation.less) {
            (true, false) => {}
            (false, true) => self.op(I::I32Eqz),
            (all, _) => self.ops([I::Drop, I::I32Const(i32::from(all))]),
        }
        self.unless(null);
        self.truth_of_stack(null)
    }

    fn compare(&mut self, left: Value, right: Value, relation: Relation) -> Value {
        let null = self.either(left.null, right.null);
        let [less, less_equal, equal, greater_equal, greater] = match (left.kind, right.kind) {
            (Kind::Int, Kind::Int) | (Kind::Enum, Kind::Enum) => {
                self.ops([I::LocalGet(left.local), I::LocalGet(right.local)]);
                [I::I64LtS, I::I64LeS, I::I64Eq, I::I64GeS, I::I64GtS]
            }
            (Kind::Text, Kind::Text) => {
                self.ops([I::LocalGet(left.local), I::LocalGet(right.local)]);
                [I::I64LtU, I::I64LeU, I::I64Eq, I::I64GeU, I::I64GtU]
            }
            (Kind::Truth, Kind::Truth) => {
                self.ops([I::LocalGet(left.local), I::LocalGet(right.local)]);
                [I::I32LtU, I::I32LeU, I::I32Eq, I::I32GeU, I::I32GtU]
            }
            (Kind::Int | Kind::Float, Kind::Int | Kind::Float) => {
                self.float(left);
                self.float(right);
                [I::F64Lt, I::F64Le, I::F64Eq, I::F64Ge, I::F64Gt]
            }
            _ => return Value::NULL,
        };
        match (relation.less, relation.equal, relation.greater) {
            (true, false, false) => self.op(less),
            (true, true, false) => self.op(less_equal),
            (false, true, false) => self.op(equal),
            (false, true, true) => self.op(greater_equal),
            (false, false, true) => self.op(greater),
            (true, false, true) => self.ops([equal, I::I32Eqz]),
            (all, ..) => self.ops([equal, I::Drop, I::I32Const(i32::from(all))]),
        }
        self.unless(null);
        self.truth_of_stack(null)
    }

    /// Puts a number on the stack as a floating-point one.
    pub fn float(&mut self, value: Value) {
        self.get(value.local);
        if value.kind == Kind::Int {
            self.op(I::F64ConvertI64S);
        }
    }

    fn arithmetic(&mut self, operator: Operator, left: Value, right: Value) -> Result<Value, Declined> {
        let is_number = |value: Value| matches!(value.kind, Kind::Int | Kind::Float);
        if !is_number(left) || !is_number(right) {
            return Ok(Value::NULL);
        }
        let null = self.either(left.null, right.null);
        let both_whole = left.kind == Kind::Int && right.kind == Kind::Int;
        Ok(match operator {
            Operator::Remainder if both_whole => self.remainder(left, right, null),
            Operator::Remainder => return Err(Declined::FloatRemainder),
            Operator::Divide => {
                self.float(left);
                self.float(right);
                self.op(I::F64Div);
                let quotient = self.set(ValType::F64);
                self.float(right);
                self.ops([I::F64Const(Ieee64::new(0)), I::F64Eq]);
                let zero = self.set(ValType::I32);
                let null = self.either(null, Some(zero));
                self.nan_is_null(quotient, null)
            }
            _ if both_whole => self.whole_arithmetic(operator, left, right, null),
            _ => {
                self.float(left);
                self.float(right);
                self.op(match operator {
                    Operator::Add => I::F64Add,
                    Operator::Subtract => I::F64Sub,
                    _ => I::F64Mul,
                });
                let result = self.set(ValType::F64);
                self.nan_is_null(result, null)
            }
        })
    }

    fn nan_is_null(&mut self, local: u32, null: Option<u32>) -> Value {
        self.ops([I::LocalGet(local), I::LocalGet(local), I::F64Ne]);
        let nan = self.set(ValType::I32);
        let null = self.either(null, Some(nan));
        Value::new(Kind::Float, local, null)
    }

    /// A sum, difference or product. One beyond 64 bits is left to the plan, unless it is null.
    fn whole_arithmetic(
        &mut self,
        operator: Operator,
        left: Value,
        right: Value,
        null: Option<u32>,
    ) -> Value {
        let range = bounds(operator, left.range, right.range);
        self.ops([I::LocalGet(left.local), I::LocalGet(right.local)]);
        self.op(match operator {
            Operator::Add => I::I64Add,
            Operator::Subtract => I::I64Sub,
            _ => I::I64Mul,
        });
        let result = self.set(ValType::I64);
        if range.is_none() {
            match operator {
                Operator::Multiply => self.check_product(left, right, result, null),
                _ => {
                    // The sign of the result is neither that of the left side nor the one that the right side
                    // explains.
                    self.ops([I::LocalGet(left.local), I::LocalGet(result), I::I64Xor]);
                    let other = if operator == Operator::Add { result } else { left.local };
                    self.ops([I::LocalGet(right.local), I::LocalGet(other), I::I64Xor, I::I64And]);
                    self.ops([I::I64Const(0), I::I64LtS]);
                    self.unless(null);
                    self.unsaid_if();
                }
            }
        }
        let range = range.unwrap_or((i64::MIN, i64::MAX));
        Value { range, ..Value::new(Kind::Int, result, null) }
    }

    /// Leaves the row to the plan if a product is not what it should be. Factors of 32 bits need no division.
    fn check_product(&mut self, left: Value, right: Value, product: u32, null: Option<u32>) {
        for side in [left, right] {
            self.ops([I::LocalGet(side.local), I::LocalGet(side.local), I::I64Extend32S, I::I64Ne]);
        }
        self.op(I::I32Or);
        self.unless(null);
        self.op(I::If(wasm_encoder::BlockType::Empty));
        let (a, b) = (left.local, right.local);
        // Divided by the left side, the product is the right one; the divisor is neither 0 nor -1.
        self.ops([I::LocalGet(product), I::I64Const(1), I::LocalGet(a)]);
        self.ops([
            I::LocalGet(a),
            I::I64Const(1),
            I::I64Add,
            I::I64Const(1),
            I::I64LeU,
            I::Select,
            I::I64DivS,
        ]);
        self.ops([I::LocalGet(b), I::I64Ne]);
        self.ops([I::LocalGet(a), I::I64Const(1), I::I64Add, I::I64Const(1), I::I64GtU, I::I32And]);
        // The least number has no opposite.
        self.ops([
            I::LocalGet(a),
            I::I64Const(-1),
            I::I64Eq,
            I::LocalGet(b),
            I::I64Const(i64::MIN),
            I::I64Eq,
        ]);
        self.ops([I::I32And, I::I32Or]);
        self.unsaid_if();
        self.op(I::End);
    }

    fn remainder(&mut self, left: Value, right: Value, null: Option<u32>) -> Value {
        self.ops([I::LocalGet(right.local), I::I64Eqz]);
        let zero = self.set(ValType::I32);
        let null = self.either(null, Some(zero));
        let may_overflow = left.range.0 == i64::MIN && right.range.0 <= -1 && right.range.1 >= -1;
        if may_overflow {
            self.ops([I::LocalGet(left.local), I::I64Const(i64::MIN), I::I64Eq]);
            self.ops([I::LocalGet(right.local), I::I64Const(-1), I::I64Eq, I::I32And]);
            self.unless(null);
            self.unsaid_if();
        }
        self.ops([
            I::LocalGet(left.local),
            I::I64Const(1),
            I::LocalGet(right.local),
            I::LocalGet(zero),
            I::Select,
        ]);
        self.op(I::I64RemS);
        Value::new(Kind::Int, self.set(ValType::I64), null)
    }
}

/// The bounds of a result. `None`: they are beyond 64 bits.
fn bounds(operator: Operator, left: (i64, i64), right: (i64, i64)) -> Option<(i64, i64)> {
    let ends = |sides: [(i64, i64); 4], of: fn(i128, i128) -> i128| {
        let all = sides.map(|(a, b)| of(a.into(), b.into()));
        let least = all.iter().copied().fold(i128::MAX, i128::min);
        let most = all.iter().copied().fold(i128::MIN, i128::max);
        Some((i64::try_from(least).ok()?, i64::try_from(most).ok()?))
    };
    let sides = [(left.0, right.0), (left.0, right.1), (left.1, right.0), (left.1, right.1)];
    match operator {
        Operator::Add => ends(sides, |a, b| a + b),
        Operator::Subtract => ends(sides, |a, b| a - b),
        Operator::Multiply => ends(sides, |a, b| a * b),
        Operator::Divide | Operator::Remainder => None,
    }
}

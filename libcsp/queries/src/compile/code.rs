//! Expressions over cells.

use core::cmp::Ordering;

use csp_formats::{Cell, Load};

use crate::convert;
use crate::plan::{Cast, ColumnPlace, Comparison, Expr, Literal, Operator, Plan};

/// A condition: terms that are all true of what it accepts.
#[derive(Clone, Debug)]
pub struct Condition(Box<[Code]>);

/// An expression over rows, each of which is header and block of a source's message.
#[derive(Clone, Debug)]
pub enum Code {
    /// A constant.
    Constant(Cell),
    /// A column, of a source.
    Load(usize, Load),
    /// A comparison of a column with a constant; the order is that of the column to the constant.
    Test(usize, Load, Relation, Cell),
    /// A comparison.
    Compare(Comparison, Box<[Code; 2]>),
    /// Arithmetic.
    Arithmetic(Operator, Box<[Code; 2]>),
    /// Both.
    And(Box<[Code; 2]>),
    /// Either.
    Or(Box<[Code; 2]>),
    /// Negation of a truth value.
    Not(Box<Code>),
    /// Whether a value is null.
    IsNull(Box<Code>),
    /// Whether a set has a bit.
    Has(Box<Code>, u8),
    /// The second if the first is true, else the third.
    If(Box<[Code; 3]>),
    /// The first unless it is null, else the second.
    Coalesce(Box<[Code; 2]>),
    /// A number without its sign.
    Absolute(Box<Code>),
    /// A number or truth value as another number.
    Cast(Box<Code>, Cast),
}

/// What a comparison accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// What is less than the other.
    pub less: bool,
    /// What is equal to it.
    pub equal: bool,
    /// What is greater.
    pub greater: bool,
}

impl Condition {
    /// A condition of all terms. `None`: one of them is not of cells.
    #[must_use]
    pub fn new<'e>(plan: &Plan, terms: impl IntoIterator<Item = &'e Expr>) -> Option<Self> {
        let mut code = Vec::new();
        terms.into_iter().try_for_each(|term| conjuncts(plan, term, &mut code))?;
        // What is true of all rows need not be looked at.
        code.retain(|term| !matches!(term, Code::Constant(Cell::True)));
        Some(Condition(code.into_boxed_slice()))
    }

    /// The terms, in the order in which they are tried: the first that is not true refuses the rows.
    #[must_use]
    pub fn terms(&self) -> &[Code] {
        &self.0
    }

    /// Whether rows, one of each source, are accepted.
    #[must_use]
    #[inline]
    pub fn accepts(&self, rows: &[&[u8]]) -> Option<bool> {
        for term in &self.0 {
            if term.run(rows)? != Cell::True {
                return Some(false);
            }
        }
        Some(true)
    }
}

fn conjuncts(plan: &Plan, term: &Expr, code: &mut Vec<Code>) -> Option<()> {
    if let Expr::And(left, right) = term {
        conjuncts(plan, left, code)?;
        return conjuncts(plan, right, code);
    }
    code.push(Code::new(plan, term)?);
    Some(())
}

impl Code {
    /// An expression of a plan. `None`: it reads what is no cell.
    #[must_use]
    pub fn new(plan: &Plan, expr: &Expr) -> Option<Self> {
        let new = |expr| Self::new(plan, expr);
        let both = |left, right| Some(Box::new([new(left)?, new(right)?]));
        let code = match expr {
            Expr::Literal(literal) => Code::Constant(constant(literal)?),
            Expr::Column(index) => column(plan, *index)?,
            Expr::Aggregate(_) | Expr::Like(..) => return None,
            Expr::Arithmetic(operator, left, right) => Code::Arithmetic(*operator, both(left, right)?),
            Expr::Compare(comparison, left, right) => comparing(*comparison, [new(left)?, new(right)?]),
            Expr::And(left, right) => Code::And(both(left, right)?),
            Expr::Or(left, right) => Code::Or(both(left, right)?),
            Expr::Not(inner) => Code::Not(Box::new(new(inner)?)),
            Expr::IsNull(inner) => Code::IsNull(Box::new(new(inner)?)),
            Expr::Has(inner, bit) => Code::Has(Box::new(new(inner)?), *bit),
            Expr::If(parts) => Code::If(Box::new([new(&parts[0])?, new(&parts[1])?, new(&parts[2])?])),
            Expr::Coalesce(first, second) => Code::Coalesce(both(first, second)?),
            Expr::Absolute(inner) => Code::Absolute(Box::new(new(inner)?)),
            Expr::Cast(inner, cast) => Code::Cast(Box::new(new(inner)?), *cast),
        };
        // Without rows only constants have a value.
        Some(code.run(&[]).map_or(code, Code::Constant))
    }

    /// The value over rows, one of each source. `None`: it is no cell, or a row ends before a column.
    #[must_use]
    #[inline]
    pub fn run(&self, rows: &[&[u8]]) -> Option<Cell> {
        match self {
            Code::Load(source, load) => load.read(rows.get(*source)?),
            Code::Test(source, load, relation, constant) => {
                Some(relation.of(compare(load.read(rows.get(*source)?)?, *constant)))
            }
            _ => self.deep(rows),
        }
    }

    fn deep(&self, rows: &[&[u8]]) -> Option<Cell> {
        Some(match self {
            Code::Constant(cell) => *cell,
            Code::Load(..) | Code::Test(..) => return self.run(rows),
            Code::Compare(comparison, sides) => {
                Relation::new(*comparison).of(compare(sides[0].run(rows)?, sides[1].run(rows)?))
            }
            Code::Arithmetic(operator, sides) => {
                arithmetic(*operator, sides[0].run(rows)?, sides[1].run(rows)?)?
            }
            Code::And(sides) => match (sides[0].run(rows)?, sides[1].run(rows)?) {
                (Cell::False, _) | (_, Cell::False) => Cell::False,
                (Cell::True, second) => second,
                _ => Cell::Null,
            },
            Code::Or(sides) => match (sides[0].run(rows)?, sides[1].run(rows)?) {
                (Cell::True, _) | (_, Cell::True) => Cell::True,
                (Cell::False, second) => second,
                _ => Cell::Null,
            },
            Code::Not(inner) => match inner.run(rows)? {
                Cell::True => Cell::False,
                Cell::False => Cell::True,
                _ => Cell::Null,
            },
            Code::IsNull(inner) => truth(inner.run(rows)? == Cell::Null),
            Code::Has(inner, bit) => match inner.run(rows)? {
                Cell::Set(bits) => truth(bits >> bit & 1 == 1),
                _ => Cell::Null,
            },
            Code::If(parts) => match parts[0].run(rows)? {
                Cell::True => parts[1].run(rows)?,
                _ => parts[2].run(rows)?,
            },
            Code::Coalesce(sides) => match sides[0].run(rows)? {
                Cell::Null => sides[1].run(rows)?,
                value => value,
            },
            Code::Absolute(inner) => match inner.run(rows)? {
                Cell::Int(number) => Cell::Int(number.checked_abs()?),
                Cell::Float(bits) => Cell::float(f64::from_bits(bits).abs()),
                _ => Cell::Null,
            },
            Code::Cast(inner, cast) => cast_to(inner.run(rows)?, *cast)?,
        })
    }
}

/// `None`: it has to be looked at.
fn cast_to(cell: Cell, cast: Cast) -> Option<Cell> {
    Some(match (cast, cell) {
        (_, Cell::Null) => Cell::Null,
        (_, Cell::Text(_) | Cell::Set(_) | Cell::Enum(_)) => return None,
        (Cast::Integer, Cell::True | Cell::False) => Cell::Int(i64::from(cell == Cell::True)),
        (Cast::Integer, Cell::Float(bits)) => {
            convert::whole(f64::from_bits(bits)).map_or(Cell::Null, Cell::Int)
        }
        (Cast::Integer, Cell::Int(_)) | (Cast::Float, Cell::Float(_)) => cell,
        (Cast::Float, Cell::Int(number)) => Cell::float(number as f64),
        (Cast::Float, Cell::True | Cell::False) => Cell::float(f64::from(u8::from(cell == Cell::True))),
    })
}

fn constant(literal: &Literal) -> Option<Cell> {
    Some(match literal {
        Literal::Null => Cell::Null,
        Literal::Boolean(value) => truth(*value),
        Literal::Integer(number) => Cell::Int(i64::try_from(*number).ok()?),
        Literal::Float(number) => Cell::float(*number),
        Literal::Text(text) => Cell::text(text)?,
        Literal::Enum(number) => Cell::enumeration(*number)?,
    })
}

fn column(plan: &Plan, index: usize) -> Option<Code> {
    let column = plan.columns.get(index)?;
    let ColumnPlace::Field(field) = &column.place else { return None };
    if field.constant.is_some() {
        return Some(Code::Constant(Cell::constant(field)?));
    }
    let schema = &plan.sources[column.source].schema;
    let load = Load::new(field, schema.header.length as usize, schema.byte_order)?;
    Some(Code::Load(column.source, load))
}

fn comparing(comparison: Comparison, sides: [Code; 2]) -> Code {
    let relation = Relation::new(comparison);
    match sides {
        [Code::Load(source, load), Code::Constant(cell)] => Code::Test(source, load, relation, cell),
        [Code::Constant(cell), Code::Load(source, load)] => {
            let turned = Relation { less: relation.greater, greater: relation.less, ..relation };
            Code::Test(source, load, turned, cell)
        }
        sides => Code::Compare(comparison, Box::new(sides)),
    }
}

impl Relation {
    /// What a comparison accepts.
    #[must_use]
    pub fn new(comparison: Comparison) -> Self {
        Relation {
            less: comparison != Comparison::Equal,
            equal: comparison != Comparison::Less,
            greater: false,
        }
    }

    #[inline]
    fn of(self, order: Option<Ordering>) -> Cell {
        match order {
            None => Cell::Null,
            Some(Ordering::Less) => truth(self.less),
            Some(Ordering::Equal) => truth(self.equal),
            Some(Ordering::Greater) => truth(self.greater),
        }
    }
}

#[inline]
fn truth(value: bool) -> Cell {
    if value { Cell::True } else { Cell::False }
}

#[inline]
fn compare(left: Cell, right: Cell) -> Option<Ordering> {
    match (left, right) {
        (Cell::Int(left), Cell::Int(right)) | (Cell::Enum(left), Cell::Enum(right)) => Some(left.cmp(&right)),
        // A text that is shorter has zeros there.
        (Cell::Text(left), Cell::Text(right)) => Some(left.cmp(&right)),
        (Cell::True | Cell::False, Cell::True | Cell::False) => {
            Some((left == Cell::True).cmp(&(right == Cell::True)))
        }
        (left, right) => as_float(left)?.partial_cmp(&as_float(right)?),
    }
}

fn as_float(cell: Cell) -> Option<f64> {
    match cell {
        Cell::Int(number) => Some(number as f64),
        Cell::Float(bits) => Some(f64::from_bits(bits)),
        _ => None,
    }
}

/// `None`: the whole number is beyond 64 bits.
fn arithmetic(operator: Operator, left: Cell, right: Cell) -> Option<Cell> {
    if let (Cell::Int(left), Cell::Int(right)) = (left, right) {
        return match operator {
            Operator::Add => left.checked_add(right).map(Cell::Int),
            Operator::Subtract => left.checked_sub(right).map(Cell::Int),
            Operator::Multiply => left.checked_mul(right).map(Cell::Int),
            Operator::Remainder | Operator::Divide if right == 0 => Some(Cell::Null),
            Operator::Remainder => left.checked_rem(right).map(Cell::Int),
            Operator::Divide => Some(Cell::float(left as f64 / right as f64)),
        };
    }
    let (Some(left), Some(right)) = (as_float(left), as_float(right)) else { return Some(Cell::Null) };
    Some(match operator {
        Operator::Add => Cell::float(left + right),
        Operator::Subtract => Cell::float(left - right),
        Operator::Multiply => Cell::float(left * right),
        Operator::Divide | Operator::Remainder if right == 0.0 => Cell::Null,
        Operator::Divide => Cell::float(left / right),
        Operator::Remainder => Cell::float(left % right),
    })
}

//! A checked query.

use std::sync::Arc;

use csp_formats::{Charset, Constant, EnumType, Field, Group, Message, Name, Scalar, Schema, SetType, Type};

use crate::derive::Derived;
use crate::error::QueryError;
use crate::like::Pattern;
use crate::{bind, syntax};

/// Most nodes of a plan's expressions.
pub const NODES_MAX: usize = 4096;
/// Most LIKE of a query: each reads its text once.
pub const LIKES_MAX: usize = 16;
/// Most places in a query where variable data is read that lies behind groups whose entries have to be passed
/// one by one.
pub const PASSES_MAX: usize = 64;

/// The channels that a query can name.
pub trait Catalog {
    /// The schema and message of a channel.
    fn format(&self, channel: &str) -> Option<(Arc<Schema>, Name)>;

    /// The names of all channels, for errors.
    fn channels(&self) -> Vec<String>;
}

/// A checked query.
#[derive(Debug)]
pub struct Plan {
    /// The channels, one or two.
    pub sources: Vec<Source>,
    /// How the second is joined to the first.
    pub join: Option<Join>,
    /// What is read from messages, each once.
    pub columns: Vec<Column>,
    /// Which messages, or pairs of them, are of interest.
    pub filter: Option<Expr>,
    /// The window of aggregates.
    pub window: Option<Window>,
    /// What rows of a window are grouped by.
    pub group_by: Vec<Expr>,
    /// Which groups are of interest, when their window closes.
    pub having: Option<Expr>,
    /// The aggregates that outputs use.
    pub aggregates: Vec<Aggregate>,
    /// The result's columns.
    pub outputs: Vec<Output>,
    /// The result's format.
    pub derived: Derived,
}

/// A channel of a query.
#[derive(Clone, Debug)]
pub struct Source {
    /// The channel's name.
    pub channel: String,
    /// What the query calls it.
    pub alias: String,
    /// The channel's schema.
    pub schema: Arc<Schema>,
    /// The message's name in it.
    pub message: Name,
}

/// An inner join of two channels.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// Pairs of columns that are equal: of the first source, of the second.
    pub keys: Vec<(usize, usize)>,
    /// How far apart the times of two rows may be, in microseconds.
    pub within_us: u64,
}

/// What is read from a message.
#[derive(Clone, Debug)]
pub struct Column {
    /// The index of the source.
    pub source: usize,
    /// The path in the message.
    pub path: String,
    /// Where it lies.
    pub place: ColumnPlace,
    /// Its type.
    pub kind: Kind,
}

/// Where a column lies.
#[derive(Clone, Debug)]
pub enum ColumnPlace {
    /// A field of the root block.
    Field(Field),
    /// Variable data of the root, by index.
    Data(usize),
    /// A group of the root, by index. It can only be a column of the result as a whole.
    Group(usize),
}

/// The type of an expression.
#[derive(Clone, Debug)]
pub enum Kind {
    /// The literal NULL.
    Null,
    /// True, false or null.
    Boolean,
    /// A whole number.
    Integer,
    /// A floating-point number.
    Float,
    /// Text in an encoding.
    Text(Charset),
    /// A value of an enumeration.
    Enum(Arc<EnumType>),
    /// Bits.
    Set(Arc<SetType>),
    /// Bytes, an array, a composite or a group: a column of the result, and nothing else.
    Opaque(&'static str),
}

/// A typed expression. Null follows SQL: operands that are null make null, AND and OR are of three values.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A constant.
    Literal(Literal),
    /// A column of the plan.
    Column(usize),
    /// An aggregate of the plan.
    Aggregate(usize),
    /// Arithmetic.
    Arithmetic(Operator, Box<Expr>, Box<Expr>),
    /// A comparison.
    Compare(Comparison, Box<Expr>, Box<Expr>),
    /// Both.
    And(Box<Expr>, Box<Expr>),
    /// Either.
    Or(Box<Expr>, Box<Expr>),
    /// Negation of a truth value.
    Not(Box<Expr>),
    /// Whether a value is null.
    IsNull(Box<Expr>),
    /// Whether a set has a bit.
    Has(Box<Expr>, u8),
    /// Whether a text matches a pattern of `%` and `_`.
    Like(Box<Expr>, Arc<Pattern>),
    /// The second if the first is true, else the third.
    If(Box<[Expr; 3]>),
    /// The first unless it is null, else the second.
    Coalesce(Box<Expr>, Box<Expr>),
    /// A number without its sign.
    Absolute(Box<Expr>),
    /// A value as another type; null where it has none there.
    Cast(Box<Expr>, Cast),
}

/// The type that a value is converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// A whole number: the nearest, of two the even one; null beyond 64 bits.
    Integer,
    /// A floating-point number.
    Float,
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// NULL.
    Null,
    /// TRUE or FALSE.
    Boolean(bool),
    /// A whole number.
    Integer(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// Text, in the encoding of what it is compared with.
    Text(Arc<[u8]>),
    /// The number of an enumeration's value.
    Enum(Scalar),
}

/// An arithmetic operator. Whole numbers give whole numbers but for `Divide`; division by zero gives null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Comparison {
    Equal,
    Less,
    LessOrEqual,
}

/// When a window closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Windows of equal length, in microseconds of the channel's time.
    Time {
        /// The length.
        length_us: u64,
        /// The time between the begins of two: the length, or a part of it, so that a row is in several.
        every_us: u64,
    },
    /// So many rows of each group.
    Rows {
        /// How many.
        count: u64,
    },
}

/// An aggregate over the rows of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// Which.
    pub function: AggregateFunction,
    /// Over what; `None` for `COUNT(*)`.
    pub argument: Option<Expr>,
}

/// An aggregate's function. Nulls are passed over; all but counts are null without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are SQL's")]
pub enum AggregateFunction {
    Count,
    Sum,
    Average,
    Minimum,
    Maximum,
    Last,
    /// When the window begins; no row adds to it.
    WindowStart,
    /// When the window ends; no row adds to it.
    WindowEnd,
}

/// A column of the result.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its name in the derived format.
    pub name: String,
    /// Its value.
    pub expr: Expr,
    /// Its type.
    pub kind: Kind,
    /// The column whose type it keeps; of other expressions the type follows from `kind`.
    pub like: Option<usize>,
    /// Most bytes of a text that is computed; 0 for other columns.
    pub text_len: u32,
}

impl Plan {
    /// Parses a query and checks it against the formats of the channels it names.
    ///
    /// `schema_id` is the id of the derived schema.
    ///
    /// # Errors
    /// The first thing that is wrong, with its position and, for names, the nearest.
    pub fn new(sql: &str, catalog: &dyn Catalog, schema_id: u16) -> Result<Self, QueryError> {
        bind::plan(syntax::statement(sql)?, catalog, schema_id)
    }
}

impl Expr {
    /// The expressions that it is made of.
    pub fn children(&self) -> impl Iterator<Item = &Expr> {
        let children: [Option<&Expr>; 3] = match self {
            Expr::Literal(_) | Expr::Column(_) | Expr::Aggregate(_) => [None; 3],
            Expr::Not(inner)
            | Expr::IsNull(inner)
            | Expr::Has(inner, _)
            | Expr::Like(inner, _)
            | Expr::Absolute(inner)
            | Expr::Cast(inner, _) => [Some(inner), None, None],
            Expr::Arithmetic(_, left, right)
            | Expr::Compare(_, left, right)
            | Expr::And(left, right)
            | Expr::Or(left, right)
            | Expr::Coalesce(left, right) => [Some(left), Some(right), None],
            Expr::If(parts) => parts.each_ref().map(Some),
        };
        children.into_iter().flatten()
    }

    /// How many nodes it has.
    #[must_use]
    pub fn size(&self) -> usize {
        1 + self.children().map(Expr::size).sum::<usize>()
    }
}

impl Column {
    /// Whether the entries of groups before it are passed one by one whenever it is read.
    pub(crate) fn is_behind_entries(&self, source: &Source) -> bool {
        let one_by_one = |group: &Group| !(group.block.groups.is_empty() && group.block.data.is_empty());
        matches!(self.place, ColumnPlace::Data(_)) && source.format().block.groups.iter().any(one_by_one)
    }

    /// The most bytes of a text; `None`: it has any length.
    pub(crate) fn text_len(&self) -> Option<u32> {
        let ColumnPlace::Field(field) = &self.place else { return None };
        match (&field.constant, &field.kind) {
            (Some(Constant::Text(text)), _) => u32::try_from(text.len()).ok(),
            (_, Type::Encoded(encoded)) => Some(encoded.size()),
            _ => Some(0),
        }
    }
}

impl Source {
    /// The format of the source's messages.
    #[must_use]
    pub fn format(&self) -> &Message {
        // The catalogue named a message of its schema: `bind` has checked that.
        self.schema.message(&self.message).unwrap_or(&self.schema.messages[0])
    }
}

impl Kind {
    /// What it is called in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a truth value",
            Self::Integer => "a whole number",
            Self::Float => "a number",
            Self::Text(Charset::Latin1) => "text in ISO-8859-1",
            Self::Text(_) => "text",
            Self::Enum(kind) => &kind.name,
            Self::Set(_) => "a set",
            Self::Opaque(what) => what,
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Integer | Self::Float | Self::Null)
    }

    pub(crate) fn is_truth(&self) -> bool {
        matches!(self, Self::Boolean | Self::Null)
    }
}

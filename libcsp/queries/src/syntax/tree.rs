//! A query as it is written. The tree has what the language has and no more: a part that is read is bound, or
//! does not compile.

use crate::error::Position;

/// A query.
pub(crate) struct Statement {
    pub select: Vec<Item>,
    pub from: Table,
    pub join: Option<JoinClause>,
    pub filter: Option<Node>,
    pub group_by: Vec<Node>,
    pub having: Option<Node>,
    pub window: Option<WindowClause>,
}

/// An item of the SELECT list.
pub(crate) enum Item {
    Expression {
        value: Node,
        alias: Option<String>,
    },
    /// `*` or `channel.*`.
    All {
        of: Option<String>,
        but: Exceptions,
        at: Position,
    },
}

/// What is different from `*`. Names are of columns, as paths.
#[derive(Default)]
pub(crate) struct Exceptions {
    pub left_out: Vec<Path>,
    pub replaced: Vec<(Node, Path)>,
    pub renamed: Vec<(Path, String)>,
}

/// A name with points, and where it stands.
pub(crate) struct Path {
    pub parts: Vec<String>,
    pub at: Position,
}

pub(crate) struct Table {
    pub channel: String,
    pub alias: Option<String>,
    pub at: Position,
}

pub(crate) struct JoinClause {
    pub table: Table,
    pub on: Node,
    pub within_us: u64,
}

pub(crate) enum WindowClause {
    Time { length_us: u64, every_us: u64 },
    Rows { count: u64 },
}

/// An expression and where it begins.
pub(crate) struct Node {
    pub kind: Ast,
    pub at: Position,
}

pub(crate) enum Ast {
    Name(Vec<String>),
    Null,
    Boolean(bool),
    Number(String),
    Text(String),
    Unary(Unary, Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    IsNull { value: Box<Node>, negated: bool },
    Between { value: Box<Node>, low: Box<Node>, high: Box<Node>, negated: bool },
    In { value: Box<Node>, list: Vec<Node>, negated: bool },
    Like { value: Box<Node>, pattern: Box<Node>, negated: bool },
    Call { name: String, arguments: Arguments },
    Case { operand: Option<Box<Node>>, arms: Vec<(Node, Node)>, otherwise: Option<Box<Node>> },
    Cast { value: Box<Node>, to: CastTo },
}

pub(crate) enum Arguments {
    /// `*`.
    All,
    List(Vec<Node>),
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Unary {
    Not,
    Minus,
    Plus,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// The type behind CAST.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum CastTo {
    Integer,
    Float,
}

impl Binary {
    /// The operator as it is written.
    pub fn sign(self) -> &'static str {
        match self {
            Binary::Or => "OR",
            Binary::And => "AND",
            Binary::Equal => "=",
            Binary::NotEqual => "<>",
            Binary::Less => "<",
            Binary::LessOrEqual => "<=",
            Binary::Greater => ">",
            Binary::GreaterOrEqual => ">=",
            Binary::Add => "+",
            Binary::Subtract => "-",
            Binary::Multiply => "*",
            Binary::Divide => "/",
            Binary::Remainder => "%",
        }
    }
}

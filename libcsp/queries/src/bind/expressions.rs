//! Expressions: from the tree to typed ones.

use csp_formats::nearest;

use super::literals::{self, coerce, comparable, wrong_type};
use crate::columns::Columns;
use crate::error::{Position, QueryError, QueryProblem};
use crate::like::Pattern;
use crate::plan::{Aggregate, Comparison, Expr, Kind, LIKES_MAX, Literal, NODES_MAX, Operator};
use crate::syntax::{Ast, Binary, Node, Unary};

pub(super) struct Binder {
    columns: Columns,
    pub(super) aggregates: Vec<Aggregate>,
    /// Why an aggregate cannot stand here; `None` if it can.
    pub(super) refused: Option<&'static str>,
    /// Whether rows go into windows of time.
    pub(super) has_timed_window: bool,
    nodes: usize,
    likes: usize,
}

pub(super) const NO_AGGREGATE: &str = "stands in the SELECT list and in HAVING only";
const NO_WINDOW: &str = "needs a window: add WINDOW INTERVAL '1' HOUR or WINDOW 100 ROWS";

/// A typed expression, and where it stands.
#[derive(Clone)]
pub(super) struct Bound {
    pub expr: Expr,
    pub kind: Kind,
    pub at: Position,
}

pub(super) type Binding = Result<(Expr, Kind), QueryError>;

impl Binder {
    pub(super) fn new(columns: Columns, has_timed_window: bool) -> Self {
        let refused = Some(NO_AGGREGATE);
        Self { columns, aggregates: Vec::new(), refused, has_timed_window, nodes: 0, likes: 0 }
    }

    pub(super) fn aggregates_allowed(&mut self, window: bool) {
        self.refused = (!window).then_some(NO_WINDOW);
    }

    pub(super) fn into_parts(self) -> (Columns, Vec<Aggregate>) {
        (self.columns, self.aggregates)
    }

    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    pub(super) fn sources(&self) -> usize {
        self.columns.sources.len()
    }

    pub(super) fn source_of(&self, column: usize) -> usize {
        self.columns.columns[column].source
    }

    pub(super) fn path_of(&self, column: usize) -> &str {
        &self.columns.columns[column].path
    }

    pub(super) fn source_named(&self, name: &str, at: Position) -> Result<usize, QueryError> {
        let aliases = || self.columns.sources.iter().map(|source| source.alias.as_str());
        aliases().position(|alias| alias == name).ok_or_else(|| {
            let nearest = nearest(name, aliases());
            QueryError::new(at, QueryProblem::Unknown { what: "channel", name: name.to_owned(), nearest })
        })
    }

    /// The names of all that the message of a source has.
    pub(super) fn members(&self, source: usize) -> Vec<String> {
        let block = &self.columns.sources[source].format().block;
        let fields = block.fields.iter().map(|field| field.name.to_string());
        let groups = block.groups.iter().map(|group| group.name.to_string());
        fields.chain(groups).chain(block.data.iter().map(|data| data.name.to_string())).collect()
    }

    pub(super) fn column(&mut self, source: usize, path: &str, at: Position) -> Binding {
        match self.columns.column(source, path, at)? {
            Some(column) => Ok(self.of_column(column)),
            None => Err(QueryError::new(
                at,
                QueryProblem::Unknown { what: "column", name: path.to_owned(), nearest: None },
            )),
        }
    }

    /// Counts nodes of the plan.
    pub(super) fn spend(&mut self, count: usize, at: Position) -> Result<(), QueryError> {
        self.nodes = self.nodes.saturating_add(count);
        if self.nodes > NODES_MAX {
            let problem = QueryProblem::TooMany { what: "operations", max: NODES_MAX };
            return Err(QueryError::new(at, problem));
        }
        Ok(())
    }

    /// The same expression once more.
    pub(super) fn copied(&mut self, bound: &Bound) -> Result<Bound, QueryError> {
        self.spend(bound.expr.size(), bound.at)?;
        Ok(bound.clone())
    }

    /// An expression that is true, false or null.
    pub(super) fn truth(&mut self, node: &Node, operation: &str) -> Result<Expr, QueryError> {
        let Bound { expr, kind, at } = self.bound(node)?;
        if kind.is_truth() { Ok(expr) } else { Err(wrong_type(at, operation, "a truth value", &kind)) }
    }

    pub(super) fn bound(&mut self, node: &Node) -> Result<Bound, QueryError> {
        let (expr, kind) = self.expression(node)?;
        Ok(Bound { expr, kind, at: node.at })
    }

    pub(super) fn expression(&mut self, node: &Node) -> Binding {
        self.spend(1, node.at)?;
        match &node.kind {
            Ast::Name(parts) => self.name(parts, node.at),
            Ast::Null => Ok((Expr::Literal(Literal::Null), Kind::Null)),
            Ast::Boolean(value) => Ok((Expr::Literal(Literal::Boolean(*value)), Kind::Boolean)),
            Ast::Number(digits) => literals::number(digits, node.at),
            Ast::Text(text) => Ok(literals::text(text)),
            Ast::Unary(Unary::Not, inner) => {
                Ok((Expr::Not(Box::new(self.truth(inner, "NOT")?)), Kind::Boolean))
            }
            Ast::Unary(Unary::Plus, inner) => self.number(inner, "+"),
            Ast::Unary(Unary::Minus, inner) => self.negative(inner),
            Ast::Binary(operator, left, right) => self.binary(*operator, left, right),
            Ast::IsNull { value, negated } => Ok((negate(self.is_null(value)?, *negated), Kind::Boolean)),
            Ast::Between { value, low, high, negated } => self.between(value, [low, high], *negated),
            Ast::In { value, list, negated } => self.in_list(value, list, *negated),
            Ast::Like { value, pattern, negated } => {
                let bound = self.like(value, pattern)?;
                Ok((negate(bound, *negated), Kind::Boolean))
            }
            Ast::Call { name, arguments } => self.call(name, arguments, node.at),
            Ast::Case { operand, arms, otherwise } => {
                self.case(operand.as_deref(), arms, otherwise.as_deref(), node.at)
            }
            Ast::Cast { value, to } => self.cast(value, *to),
        }
    }

    fn name(&mut self, parts: &[String], at: Position) -> Binding {
        if let Some(bound) = self.window_column(parts, at)? {
            return Ok(bound);
        }
        let column = self.columns.named(parts, at)?;
        Ok(self.of_column(column))
    }

    fn of_column(&self, column: usize) -> (Expr, Kind) {
        (Expr::Column(column), self.columns.columns[column].kind.clone())
    }

    pub(super) fn number(&mut self, node: &Node, operation: &str) -> Binding {
        let (bound, kind) = self.expression(node)?;
        if kind.is_number() {
            Ok((bound, kind))
        } else {
            Err(wrong_type(node.at, operation, "a number", &kind))
        }
    }

    fn negative(&mut self, node: &Node) -> Binding {
        let (bound, kind) = self.number(node, "-")?;
        Ok(match bound {
            Expr::Literal(Literal::Integer(number)) => (Expr::Literal(Literal::Integer(-number)), kind),
            Expr::Literal(Literal::Float(number)) => (Expr::Literal(Literal::Float(-number)), kind),
            bound => {
                let zero = Box::new(Expr::Literal(Literal::Integer(0)));
                (Expr::Arithmetic(Operator::Subtract, zero, Box::new(bound)), kind)
            }
        })
    }

    fn is_null(&mut self, node: &Node) -> Result<Expr, QueryError> {
        let (bound, kind) = self.expression(node)?;
        match kind {
            Kind::Opaque(_) => {
                Err(wrong_type(node.at, "IS NULL", "a number, text, set or enumeration", &kind))
            }
            _ => Ok(Expr::IsNull(Box::new(bound))),
        }
    }

    fn binary(&mut self, operator: Binary, left: &Node, right: &Node) -> Binding {
        let arithmetic = match operator {
            Binary::Add => Operator::Add,
            Binary::Subtract => Operator::Subtract,
            Binary::Multiply => Operator::Multiply,
            Binary::Divide => Operator::Divide,
            Binary::Remainder => Operator::Remainder,
            Binary::And | Binary::Or => {
                let name = operator.sign();
                let (left, right) = (Box::new(self.truth(left, name)?), Box::new(self.truth(right, name)?));
                let both =
                    if operator == Binary::And { Expr::And(left, right) } else { Expr::Or(left, right) };
                return Ok((both, Kind::Boolean));
            }
            Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessOrEqual
            | Binary::Greater
            | Binary::GreaterOrEqual => {
                let (left, right) = (self.bound(left)?, self.bound(right)?);
                return Ok((compare(left, operator, right)?, Kind::Boolean));
            }
        };
        let name = operator.sign();
        let ((left, left_kind), (right, right_kind)) = (self.number(left, name)?, self.number(right, name)?);
        let whole = matches!((&left_kind, &right_kind), (Kind::Integer, Kind::Integer));
        let kind = if whole && arithmetic != Operator::Divide { Kind::Integer } else { Kind::Float };
        Ok((Expr::Arithmetic(arithmetic, Box::new(left), Box::new(right)), kind))
    }

    /// The value is bound once and compared twice.
    fn between(&mut self, value: &Node, [low, high]: [&Node; 2], negated: bool) -> Binding {
        let value = self.bound(value)?;
        let (low, high) = (self.bound(low)?, self.bound(high)?);
        let least = compare(self.copied(&value)?, Binary::GreaterOrEqual, low)?;
        let most = compare(value, Binary::LessOrEqual, high)?;
        Ok((negate(Expr::And(Box::new(least), Box::new(most)), negated), Kind::Boolean))
    }

    fn in_list(&mut self, value: &Node, list: &[Node], negated: bool) -> Binding {
        let value = self.bound(value)?;
        let mut any: Option<Expr> = None;
        for element in list {
            let element = self.bound(element)?;
            let equal = compare(self.copied(&value)?, Binary::Equal, element)?;
            any = Some(match any {
                Some(any) => Expr::Or(Box::new(any), Box::new(equal)),
                None => equal,
            });
        }
        Ok((negate(any.unwrap_or(Expr::Literal(Literal::Boolean(false))), negated), Kind::Boolean))
    }

    fn like(&mut self, value: &Node, pattern: &Node) -> Result<Expr, QueryError> {
        let (bound, kind) = self.expression(value)?;
        let Kind::Text(_) = kind else { return Err(wrong_type(value.at, "LIKE", "text", &kind)) };
        let mut text = self.bound(pattern)?;
        coerce(&mut text, &kind)?;
        self.likes += 1;
        if self.likes > LIKES_MAX {
            let problem = QueryProblem::TooMany { what: "LIKE", max: LIKES_MAX };
            return Err(QueryError::new(value.at, problem));
        }
        match text.expr {
            Expr::Literal(Literal::Text(bytes)) => {
                let pattern = Pattern::new(&bytes).map_err(|problem| QueryError::new(text.at, problem))?;
                Ok(Expr::Like(Box::new(bound), pattern.into()))
            }
            _ => Err(wrong_type(text.at, "LIKE", "a pattern in quotes", &text.kind)),
        }
    }
}

pub(super) fn compare(mut left: Bound, operator: Binary, mut right: Bound) -> Result<Expr, QueryError> {
    coerce(&mut left, &right.kind)?;
    coerce(&mut right, &left.kind)?;
    let is_enum = matches!(left.kind, Kind::Enum(_)) || matches!(right.kind, Kind::Enum(_));
    let same = match (&left.expr, &right.expr) {
        // Literals were converted, or refused.
        (Expr::Literal(Literal::Enum(_)), _) | (_, Expr::Literal(Literal::Enum(_))) => true,
        (Expr::Literal(Literal::Text(_)), _) | (_, Expr::Literal(Literal::Text(_))) => {
            matches!((&left.kind, &right.kind), (Kind::Text(_) | Kind::Null, Kind::Text(_) | Kind::Null))
        }
        _ => comparable(&left.kind, &right.kind),
    };
    if !same {
        return Err(wrong_type(right.at, operator.sign(), left.kind.name(), &right.kind));
    }
    let (comparison, swapped, negated) = match operator {
        Binary::NotEqual => (Comparison::Equal, false, true),
        Binary::Less => (Comparison::Less, false, false),
        Binary::Greater => (Comparison::Less, true, false),
        Binary::LessOrEqual => (Comparison::LessOrEqual, false, false),
        Binary::GreaterOrEqual => (Comparison::LessOrEqual, true, false),
        _ => (Comparison::Equal, false, false),
    };
    if is_enum && comparison != Comparison::Equal {
        return Err(wrong_type(left.at, operator.sign(), "numbers or text", &left.kind));
    }
    let (first, second) = if swapped { (right.expr, left.expr) } else { (left.expr, right.expr) };
    Ok(negate(Expr::Compare(comparison, Box::new(first), Box::new(second)), negated))
}

fn negate(expr: Expr, negated: bool) -> Expr {
    if negated { Expr::Not(Box::new(expr)) } else { expr }
}

//! Expressions: from sqlparser's tree to typed ones.

use std::sync::Arc;

use csp_formats::{Charset, EnumType, nearest};
use sqlparser::ast::{
    BinaryOperator, Expr as Ast, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, InTarget,
    Spanned, UnaryOperator, Value,
};
use sqlparser::tokenizer::Span;

use crate::columns::Columns;
use crate::error::{QueryError, QueryProblem};
use crate::functions::{HAS, aggregate, nearest_function};
use crate::plan::{Aggregate, AggregateFunction, Comparison, Expr, Kind, Literal, Operator};

pub(super) struct Binder {
    columns: Columns,
    aggregates: Vec<Aggregate>,
    /// Why an aggregate cannot stand here; `None` if it can.
    refused: Option<&'static str>,
}

const NO_AGGREGATE: &str = "stands in the SELECT list only";
const NO_WINDOW: &str = "needs a window: add WINDOW INTERVAL '1' HOUR or WINDOW 100 ROWS";
const NESTED: &str = "stands within another aggregate";

type Bound = Result<(Expr, Kind), QueryError>;

impl Binder {
    pub(super) fn new(columns: Columns) -> Self {
        Self { columns, aggregates: Vec::new(), refused: Some(NO_AGGREGATE) }
    }

    pub(super) fn aggregates_allowed(&mut self, window: bool) {
        self.refused = (!window).then_some(NO_WINDOW);
    }

    pub(super) fn into_parts(self) -> (Columns, Vec<Aggregate>) {
        (self.columns, self.aggregates)
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

    pub(super) fn source_named(&self, name: &str, span: Span) -> Result<usize, QueryError> {
        let aliases = || self.columns.sources.iter().map(|source| source.alias.as_str());
        aliases().position(|alias| alias == name).ok_or_else(|| {
            let nearest = nearest(name, aliases());
            QueryError::at(span, QueryProblem::Unknown { what: "channel", name: name.to_owned(), nearest })
        })
    }

    /// The names of all that the message of a source has.
    pub(super) fn members(&self, source: usize) -> Vec<String> {
        let block = &self.columns.sources[source].format().block;
        let fields = block.fields.iter().map(|field| field.name.to_string());
        let groups = block.groups.iter().map(|group| group.name.to_string());
        fields.chain(groups).chain(block.data.iter().map(|data| data.name.to_string())).collect()
    }

    pub(super) fn column(&mut self, source: usize, path: &str, span: Span) -> Bound {
        match self.columns.column(source, path, span)? {
            Some(column) => Ok(self.of_column(column)),
            None => Err(QueryError::at(
                span,
                QueryProblem::Unknown { what: "column", name: path.to_owned(), nearest: None },
            )),
        }
    }

    /// What a column of the result is called without AS.
    pub(super) fn name_of(&self, expr: &Expr, index: usize) -> String {
        let own = |column: usize| self.path_of(column).rsplit('.').next().unwrap_or_default().to_owned();
        match expr {
            Expr::Column(column) => own(*column),
            Expr::Aggregate(aggregate) => {
                let Aggregate { function, argument } = &self.aggregates[*aggregate];
                match argument {
                    Some(Expr::Column(column)) => {
                        format!("{}_{}", function.name().to_lowercase(), own(*column))
                    }
                    _ => function.name().to_lowercase(),
                }
            }
            _ => format!("column{}", index + 1),
        }
    }

    /// An expression that is true, false or null.
    pub(super) fn truth(&mut self, expr: &Ast, operation: &str) -> Result<Expr, QueryError> {
        let (bound, kind) = self.expression(expr)?;
        if kind.is_truth() {
            Ok(bound)
        } else {
            Err(wrong_type(expr.span(), operation, "a truth value", &kind))
        }
    }

    pub(super) fn expression(&mut self, expr: &Ast) -> Bound {
        match expr {
            Ast::Nested(inner) => self.expression(inner),
            Ast::Identifier(name) => self.name(core::slice::from_ref(name)),
            Ast::CompoundIdentifier(parts) => self.name(parts),
            Ast::Value(value) => literal(&value.value, value.span),
            Ast::BinaryOp { left, op, right } => self.binary(left, op, right, expr.span()),
            Ast::UnaryOp { op: UnaryOperator::Not, expr } => {
                Ok((Expr::Not(Box::new(self.truth(expr, "NOT")?)), Kind::Boolean))
            }
            Ast::UnaryOp { op: UnaryOperator::Plus, expr } => self.number(expr, "+"),
            Ast::UnaryOp { op: UnaryOperator::Minus, expr } => {
                let (bound, kind) = self.number(expr, "-")?;
                Ok(match bound {
                    Expr::Literal(Literal::Integer(number)) => {
                        (Expr::Literal(Literal::Integer(-number)), kind)
                    }
                    Expr::Literal(Literal::Float(number)) => (Expr::Literal(Literal::Float(-number)), kind),
                    bound => {
                        let zero = Box::new(Expr::Literal(Literal::Integer(0)));
                        (Expr::Arithmetic(Operator::Subtract, zero, Box::new(bound)), kind)
                    }
                })
            }
            Ast::IsNull(inner) => Ok((self.is_null(inner)?, Kind::Boolean)),
            Ast::IsNotNull(inner) => Ok((Expr::Not(Box::new(self.is_null(inner)?)), Kind::Boolean)),
            Ast::Between { expr, negated, low, high } => {
                let least = self.compare(expr, &BinaryOperator::GtEq, low, low.span())?;
                let most = self.compare(expr, &BinaryOperator::LtEq, high, high.span())?;
                Ok((negate(Expr::And(Box::new(least), Box::new(most)), *negated), Kind::Boolean))
            }
            Ast::In { expr, target: InTarget::List(list), negated, global: false } => {
                self.in_list(expr, list, *negated)
            }
            Ast::Like { negated, any: false, expr, pattern, escape_char: None } => {
                let bound = self.like(expr, pattern)?;
                Ok((negate(bound, *negated), Kind::Boolean))
            }
            Ast::Function(function) => self.function(function, expr.span()),
            _ => {
                let what = format!("\"{expr}\"");
                Err(QueryError::at(expr.span(), QueryProblem::Unsupported { what }))
            }
        }
    }

    fn name(&mut self, parts: &[Ident]) -> Bound {
        let column = self.columns.named(parts)?;
        Ok(self.of_column(column))
    }

    fn of_column(&self, column: usize) -> (Expr, Kind) {
        (Expr::Column(column), self.columns.columns[column].kind.clone())
    }

    fn number(&mut self, expr: &Ast, operation: &str) -> Bound {
        let (bound, kind) = self.expression(expr)?;
        if kind.is_number() {
            Ok((bound, kind))
        } else {
            Err(wrong_type(expr.span(), operation, "a number", &kind))
        }
    }

    fn is_null(&mut self, expr: &Ast) -> Result<Expr, QueryError> {
        let (bound, kind) = self.expression(expr)?;
        match kind {
            Kind::Opaque(_) => {
                Err(wrong_type(expr.span(), "IS NULL", "a number, text, set or enumeration", &kind))
            }
            _ => Ok(Expr::IsNull(Box::new(bound))),
        }
    }

    fn binary(&mut self, left: &Ast, op: &BinaryOperator, right: &Ast, span: Span) -> Bound {
        let operator = match op {
            BinaryOperator::Plus => Operator::Add,
            BinaryOperator::Minus => Operator::Subtract,
            BinaryOperator::Multiply => Operator::Multiply,
            BinaryOperator::Divide => Operator::Divide,
            BinaryOperator::Modulo => Operator::Remainder,
            BinaryOperator::And | BinaryOperator::Or => {
                let name = op.to_string();
                let both = (Box::new(self.truth(left, &name)?), Box::new(self.truth(right, &name)?));
                let bound = if *op == BinaryOperator::And {
                    Expr::And(both.0, both.1)
                } else {
                    Expr::Or(both.0, both.1)
                };
                return Ok((bound, Kind::Boolean));
            }
            _ => return Ok((self.compare(left, op, right, span)?, Kind::Boolean)),
        };
        let name = op.to_string();
        let ((left, left_kind), (right, right_kind)) =
            (self.number(left, &name)?, self.number(right, &name)?);
        let whole = matches!((&left_kind, &right_kind), (Kind::Integer, Kind::Integer));
        let kind = if whole && operator != Operator::Divide { Kind::Integer } else { Kind::Float };
        Ok((Expr::Arithmetic(operator, Box::new(left), Box::new(right)), kind))
    }

    fn compare(
        &mut self,
        left: &Ast,
        op: &BinaryOperator,
        right: &Ast,
        span: Span,
    ) -> Result<Expr, QueryError> {
        let (mut first, first_kind) = self.expression(left)?;
        let (mut second, second_kind) = self.expression(right)?;
        coerce(&mut first, &second_kind, left.span())?;
        coerce(&mut second, &first_kind, right.span())?;
        let is_enum = matches!(first_kind, Kind::Enum(_)) || matches!(second_kind, Kind::Enum(_));
        let same = match (&first, &second) {
            // Literals were converted, or refused.
            (Expr::Literal(Literal::Enum(_)), _) | (_, Expr::Literal(Literal::Enum(_))) => true,
            (Expr::Literal(Literal::Text(_)), _) | (_, Expr::Literal(Literal::Text(_))) => {
                matches!(
                    (&first_kind, &second_kind),
                    (Kind::Text(_) | Kind::Null, Kind::Text(_) | Kind::Null)
                )
            }
            _ => comparable(&first_kind, &second_kind),
        };
        if !same {
            return Err(wrong_type(right.span(), &op.to_string(), first_kind.name(), &second_kind));
        }
        let (comparison, swapped, negated) = match op {
            BinaryOperator::Eq => (Comparison::Equal, false, false),
            BinaryOperator::NotEq => (Comparison::Equal, false, true),
            BinaryOperator::Lt => (Comparison::Less, false, false),
            BinaryOperator::Gt => (Comparison::Less, true, false),
            BinaryOperator::LtEq => (Comparison::LessOrEqual, false, false),
            BinaryOperator::GtEq => (Comparison::LessOrEqual, true, false),
            _ => {
                return Err(QueryError::at(
                    span,
                    QueryProblem::Unsupported { what: format!("the operator {op}") },
                ));
            }
        };
        if is_enum && comparison != Comparison::Equal {
            return Err(wrong_type(left.span(), &op.to_string(), "numbers or text", &first_kind));
        }
        let (first, second) = if swapped { (second, first) } else { (first, second) };
        Ok(negate(Expr::Compare(comparison, Box::new(first), Box::new(second)), negated))
    }

    fn in_list(&mut self, expr: &Ast, list: &[Ast], negated: bool) -> Bound {
        let mut any = Expr::Literal(Literal::Boolean(false));
        for (index, element) in list.iter().enumerate() {
            let equal = self.compare(expr, &BinaryOperator::Eq, element, element.span())?;
            any = if index == 0 { equal } else { Expr::Or(Box::new(any), Box::new(equal)) };
        }
        Ok((negate(any, negated), Kind::Boolean))
    }

    fn like(&mut self, expr: &Ast, pattern: &Ast) -> Result<Expr, QueryError> {
        let (bound, kind) = self.expression(expr)?;
        let Kind::Text(_) = kind else { return Err(wrong_type(expr.span(), "LIKE", "text", &kind)) };
        let (mut text, text_kind) = self.expression(pattern)?;
        coerce(&mut text, &kind, pattern.span())?;
        match text {
            Expr::Literal(Literal::Text(text)) => Ok(Expr::Like(Box::new(bound), text)),
            _ => Err(wrong_type(pattern.span(), "LIKE", "a pattern in quotes", &text_kind)),
        }
    }

    fn function(&mut self, function: &Function, span: Span) -> Bound {
        let name = function.name.to_string();
        let plain = function.over.is_none() && function.filter.is_none() && function.within_group.is_empty();
        let arguments = match &function.args {
            FunctionArguments::List(list)
                if plain && list.duplicate_treatment.is_none() && list.clauses.is_empty() =>
            {
                &list.args
            }
            _ => {
                return Err(QueryError::at(
                    span,
                    QueryProblem::Unsupported { what: format!("\"{function}\"") },
                ));
            }
        };
        if name.eq_ignore_ascii_case(HAS) {
            return self.has(arguments, span);
        }
        let Some(aggregate) = aggregate(&name) else {
            let nearest = nearest_function(&name);
            return Err(QueryError::at(span, QueryProblem::Unknown { what: "function", name, nearest }));
        };
        self.aggregate(aggregate, arguments, span)
    }

    fn aggregate(&mut self, function: AggregateFunction, arguments: &[FunctionArg], span: Span) -> Bound {
        if let Some(problem) = self.refused {
            let function = function.name().to_owned();
            return Err(QueryError::at(span, QueryProblem::Aggregate { function, problem }));
        }
        let (argument, kind) = match arguments {
            [FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] if function == AggregateFunction::Count => {
                (None, Kind::Integer)
            }
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))] => {
                self.refused = Some(NESTED);
                let bound = self.expression(expr);
                self.refused = None;
                let (bound, kind) = bound?;
                let result = function.result(&kind);
                (
                    Some(bound),
                    result.ok_or_else(|| wrong_type(expr.span(), function.name(), "a number", &kind))?,
                )
            }
            _ => {
                let what = format!("{} of other than one value", function.name());
                return Err(QueryError::at(span, QueryProblem::Unsupported { what }));
            }
        };
        let aggregate = Aggregate { function, argument };
        let known = self.aggregates.iter().position(|known| *known == aggregate);
        let index = known.unwrap_or(self.aggregates.len());
        if known.is_none() {
            self.aggregates.push(aggregate);
        }
        Ok((Expr::Aggregate(index), kind))
    }

    /// `HAS(set, 'choice')`.
    fn has(&mut self, arguments: &[FunctionArg], span: Span) -> Bound {
        let [
            FunctionArg::Unnamed(FunctionArgExpr::Expr(set)),
            FunctionArg::Unnamed(FunctionArgExpr::Expr(choice)),
        ] = arguments
        else {
            return Err(QueryError::at(
                span,
                QueryProblem::Unsupported { what: "HAS of other than a set and a choice".to_owned() },
            ));
        };
        let (bound, kind) = self.expression(set)?;
        let Kind::Set(set_type) = &kind else { return Err(wrong_type(set.span(), HAS, "a set", &kind)) };
        let (_, choice_kind) = self.expression(choice)?;
        let Ast::Value(value) = choice else {
            return Err(wrong_type(choice.span(), HAS, "a choice in quotes", &choice_kind));
        };
        let Value::SingleQuotedString(name) = &value.value else {
            return Err(wrong_type(choice.span(), HAS, "a choice in quotes", &choice_kind));
        };
        match set_type.named(name) {
            Some(choice) => Ok((Expr::Has(Box::new(bound), choice.bit), Kind::Boolean)),
            None => {
                let nearest = nearest(name, set_type.choices.iter().map(|choice| &*choice.name));
                let problem = QueryProblem::Unknown { what: "choice", name: name.clone(), nearest };
                Err(QueryError::at(choice.span(), problem))
            }
        }
    }
}

fn negate(expr: Expr, negated: bool) -> Expr {
    if negated { Expr::Not(Box::new(expr)) } else { expr }
}

fn literal(value: &Value, span: Span) -> Bound {
    let unsupported =
        || QueryError::at(span, QueryProblem::Unsupported { what: format!("the literal {value}") });
    Ok(match value {
        Value::Null => (Expr::Literal(Literal::Null), Kind::Null),
        Value::Boolean(value) => (Expr::Literal(Literal::Boolean(*value)), Kind::Boolean),
        Value::SingleQuotedString(text) => {
            (Expr::Literal(Literal::Text(text.as_bytes().into())), Kind::Text(Charset::Utf8))
        }
        Value::Number(digits, _) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let number: u64 = digits.parse().map_err(|_| unsupported())?;
            (Expr::Literal(Literal::Integer(i128::from(number))), Kind::Integer)
        }
        Value::Number(digits, _) => {
            (Expr::Literal(Literal::Float(digits.parse().map_err(|_| unsupported())?)), Kind::Float)
        }
        _ => return Err(unsupported()),
    })
}

/// Converts a text literal to what it is compared with: the number of an enumeration's value, or the column's encoding.
fn coerce(expr: &mut Expr, other: &Kind, span: Span) -> Result<(), QueryError> {
    let Expr::Literal(Literal::Text(bytes)) = expr else { return Ok(()) };
    let text = core::str::from_utf8(bytes).unwrap_or_default();
    match other {
        Kind::Enum(kind) => match kind.named(text) {
            Some(value) => *expr = Expr::Literal(Literal::Enum(value.number)),
            None => {
                let nearest = nearest(text, kind.values.iter().map(|value| &*value.name));
                let problem = QueryProblem::Unknown { what: "value", name: text.to_owned(), nearest };
                return Err(QueryError::at(span, problem));
            }
        },
        Kind::Text(charset) => match encoded(text, *charset) {
            Some(encoded) => *expr = Expr::Literal(Literal::Text(encoded)),
            None => {
                return Err(wrong_type(
                    span,
                    "the comparison",
                    "text in the column's encoding",
                    &Kind::Text(Charset::Utf8),
                ));
            }
        },
        _ => (),
    }
    Ok(())
}

fn encoded(text: &str, charset: Charset) -> Option<Arc<[u8]>> {
    match charset {
        Charset::Ascii => text.is_ascii().then(|| text.as_bytes().into()),
        Charset::Utf8 => Some(text.as_bytes().into()),
        Charset::Latin1 => text.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect(),
    }
}

/// Whether values of two types can be compared.
pub(crate) fn comparable(left: &Kind, right: &Kind) -> bool {
    match (left, right) {
        (Kind::Opaque(_), _) | (_, Kind::Opaque(_)) => false,
        (Kind::Null, _) | (_, Kind::Null) => true,
        // ASCII is part of both others; of those the bytes differ.
        (Kind::Text(left), Kind::Text(right)) => {
            left == right || *left == Charset::Ascii || *right == Charset::Ascii
        }
        // Two schemas may give one name to different values.
        (Kind::Enum(left), Kind::Enum(right)) => {
            let values = |kind: &EnumType| {
                kind.values.iter().map(|value| (value.name.clone(), value.number)).collect()
            };
            let (left, right): (Vec<_>, Vec<_>) = (values(left), values(right));
            left == right
        }
        (Kind::Set(_), _) | (_, Kind::Set(_)) => false,
        (left, right) => (left.is_number() && right.is_number()) || (left.is_truth() && right.is_truth()),
    }
}

pub(super) fn wrong_type(span: Span, operation: &str, expected: &str, found: &Kind) -> QueryError {
    let (operation, expected, found) = (operation.to_owned(), expected.to_owned(), found.name().to_owned());
    QueryError::at(span, QueryProblem::Type { operation, expected, found })
}

//! Functions, aggregates, CASE and CAST.

use csp_formats::{Charset, nearest};

use super::expressions::{Binder, Binding, Bound, compare};
use super::literals::{coerce, comparable, wrong_type};
use crate::error::{Position, QueryError, QueryProblem};
use crate::functions::{
    ABS, COALESCE, HAS, SHORT_TEXT_MAX, WINDOW_END, WINDOW_START, aggregate, nearest_function,
};
use crate::plan::{Aggregate, AggregateFunction, Cast, Expr, Kind, Literal};
use crate::syntax::{Arguments, Ast, Binary, CastTo, Node};

const NESTED: &str = "stands within another aggregate";
const NO_TIME: &str = "needs a window of time: add WINDOW INTERVAL '1' HOUR";

impl Binder {
    pub(super) fn call(&mut self, name: &str, arguments: &Arguments, at: Position) -> Binding {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if let Some(aggregate) = aggregate(name) {
            return self.aggregate(aggregate, arguments, at);
        }
        let list = match arguments {
            Arguments::List(list) => list.as_slice(),
            Arguments::All => &[],
        };
        match list {
            [set, choice] if is(HAS) => self.has(set, choice),
            [value] if is(ABS) => {
                let (bound, kind) = self.number(value, ABS)?;
                Ok((Expr::Absolute(Box::new(bound)), kind))
            }
            [_, ..] if is(COALESCE) => self.coalesce(list, at),
            _ if is(HAS) || is(ABS) || is(COALESCE) => {
                let what = format!("{} of {} values", name.to_ascii_uppercase(), list.len());
                Err(QueryError::new(at, QueryProblem::Unsupported { what }))
            }
            _ => {
                let (name, nearest) = (name.to_owned(), nearest_function(name));
                Err(QueryError::new(at, QueryProblem::Unknown { what: "function", name, nearest }))
            }
        }
    }

    fn aggregate(&mut self, function: AggregateFunction, arguments: &Arguments, at: Position) -> Binding {
        self.check_aggregate(function, at)?;
        let argument = match arguments {
            Arguments::All if function == AggregateFunction::Count => None,
            Arguments::List(list) if list.len() == 1 => Some(&list[0]),
            _ => {
                let what = format!("{} of other than one value", function.name());
                return Err(QueryError::new(at, QueryProblem::Unsupported { what }));
            }
        };
        let Some(node) = argument else { return Ok(self.add_aggregate(function, None, Kind::Integer)) };
        self.refused = Some(NESTED);
        let bound = self.bound(node);
        self.refused = None;
        let Bound { expr, kind, at } = bound?;
        let Some(result) = function.result(&kind) else {
            let expected = match function {
                AggregateFunction::Sum | AggregateFunction::Average => "a number",
                _ => "a number or text",
            };
            return Err(wrong_type(at, function.name(), expected, &kind));
        };
        if let (Kind::Text(_), true) = (&kind, function != AggregateFunction::Count) {
            let len = self.text_len(&expr);
            if len.is_none_or(|len| len as usize > SHORT_TEXT_MAX) {
                let expected = format!("text of at most {SHORT_TEXT_MAX} bytes");
                let found = len.map_or("text of any length".to_owned(), |len| format!("text of up to {len}"));
                let operation = function.name().to_owned();
                return Err(QueryError::new(at, QueryProblem::Type { operation, expected, found }));
            }
        }
        Ok(self.add_aggregate(function, Some(expr), result))
    }

    fn check_aggregate(&self, function: AggregateFunction, at: Position) -> Result<(), QueryError> {
        match self.refused {
            None => Ok(()),
            Some(problem) => {
                let function = function.name().to_owned();
                Err(QueryError::new(at, QueryProblem::Aggregate { function, problem }))
            }
        }
    }

    fn add_aggregate(
        &mut self,
        function: AggregateFunction,
        argument: Option<Expr>,
        kind: Kind,
    ) -> (Expr, Kind) {
        let aggregate = Aggregate { function, argument };
        let known = self.aggregates.iter().position(|known| *known == aggregate);
        let index = known.unwrap_or(self.aggregates.len());
        if known.is_none() {
            self.aggregates.push(aggregate);
        }
        (Expr::Aggregate(index), kind)
    }

    /// `WINDOW_START` and `WINDOW_END`, unless a column has this name.
    pub(super) fn window_column(
        &mut self,
        parts: &[String],
        at: Position,
    ) -> Result<Option<(Expr, Kind)>, QueryError> {
        let [name] = parts else { return Ok(None) };
        let function = match name {
            _ if name.eq_ignore_ascii_case(WINDOW_START) => AggregateFunction::WindowStart,
            _ if name.eq_ignore_ascii_case(WINDOW_END) => AggregateFunction::WindowEnd,
            _ => return Ok(None),
        };
        if self.columns().has(name) {
            return Ok(None);
        }
        self.check_aggregate(function, at)?;
        if !self.has_timed_window {
            let (function, problem) = (function.name().to_owned(), NO_TIME);
            return Err(QueryError::new(at, QueryProblem::Aggregate { function, problem }));
        }
        Ok(Some(self.add_aggregate(function, None, Kind::Integer)))
    }

    /// `HAS(set, 'choice')`.
    fn has(&mut self, set: &Node, choice: &Node) -> Binding {
        let (bound, kind) = self.expression(set)?;
        let Kind::Set(set_type) = &kind else { return Err(wrong_type(set.at, HAS, "a set", &kind)) };
        let Ast::Text(name) = &choice.kind else {
            let (_, kind) = self.expression(choice)?;
            return Err(wrong_type(choice.at, HAS, "a choice in quotes", &kind));
        };
        match set_type.named(name) {
            Some(choice) => Ok((Expr::Has(Box::new(bound), choice.bit), Kind::Boolean)),
            None => {
                let nearest = nearest(name, set_type.choices.iter().map(|choice| &*choice.name));
                let problem = QueryProblem::Unknown { what: "choice", name: name.clone(), nearest };
                Err(QueryError::new(choice.at, problem))
            }
        }
    }

    fn coalesce(&mut self, list: &[Node], at: Position) -> Binding {
        let mut values = list.iter().map(|value| self.bound(value)).collect::<Result<Vec<_>, _>>()?;
        let kind = common(&mut values, COALESCE, at)?;
        let exprs = values.into_iter().map(|value| value.expr);
        let first = exprs.reduce(|first, next| Expr::Coalesce(Box::new(first), Box::new(next)));
        Ok((first.unwrap_or(Expr::Literal(Literal::Null)), kind))
    }

    pub(super) fn case(
        &mut self,
        operand: Option<&Node>,
        arms: &[(Node, Node)],
        otherwise: Option<&Node>,
        at: Position,
    ) -> Binding {
        let operand = operand.map(|operand| self.bound(operand)).transpose()?;
        let (mut conditions, mut values) = (Vec::new(), Vec::new());
        for (when, then) in arms {
            conditions.push(match &operand {
                None => self.truth(when, "WHEN")?,
                Some(operand) => {
                    let when = self.bound(when)?;
                    compare(self.copied(operand)?, Binary::Equal, when)?
                }
            });
            values.push(self.bound(then)?);
        }
        let null = Bound { expr: Expr::Literal(Literal::Null), kind: Kind::Null, at };
        values.push(otherwise.map_or(Ok(null), |otherwise| self.bound(otherwise))?);
        let kind = common(&mut values, "CASE", at)?;
        let mut values = values.into_iter().map(|value| value.expr).rev();
        let otherwise = values.next().unwrap_or(Expr::Literal(Literal::Null));
        let choose = |rest, (condition, value)| Expr::If(Box::new([condition, value, rest]));
        Ok((conditions.into_iter().rev().zip(values).fold(otherwise, choose), kind))
    }

    pub(super) fn cast(&mut self, node: &Node, to: CastTo) -> Binding {
        let Bound { expr, kind, at } = self.bound(node)?;
        let (cast, result) = match to {
            CastTo::Integer => (Cast::Integer, Kind::Integer),
            CastTo::Float => (Cast::Float, Kind::Float),
        };
        match kind {
            Kind::Null | Kind::Boolean | Kind::Integer | Kind::Float | Kind::Text(_) | Kind::Enum(_) => {
                Ok((Expr::Cast(Box::new(expr), cast), result))
            }
            Kind::Set(_) | Kind::Opaque(_) => {
                Err(wrong_type(at, "CAST", "a number, a truth value, text or an enumeration", &kind))
            }
        }
    }

    /// The most bytes of a text; `None`: it has any length.
    pub(super) fn text_len(&self, expr: &Expr) -> Option<u32> {
        match expr {
            Expr::Literal(Literal::Text(text)) => u32::try_from(text.len()).ok(),
            Expr::Column(column) => self.columns().columns[*column].text_len(),
            Expr::Aggregate(at) => self.aggregates[*at].argument.as_ref().and_then(|of| self.text_len(of)),
            Expr::If(parts) => Some(self.text_len(&parts[1])?.max(self.text_len(&parts[2])?)),
            Expr::Coalesce(first, second) => Some(self.text_len(first)?.max(self.text_len(second)?)),
            _ => Some(0),
        }
    }
}

/// The one type of several values, of which CASE or COALESCE gives one.
fn common(values: &mut [Bound], operation: &str, at: Position) -> Result<Kind, QueryError> {
    let is_literal = |value: &Bound| matches!(value.expr, Expr::Literal(Literal::Text(_)));
    let mut typed = values.iter().filter(|value| !matches!(value.kind, Kind::Null));
    // Literals take the encoding of what else there is.
    let first = typed.clone().find(|value| !is_literal(value)).or_else(|| typed.next());
    let Some(mut kind) = first.map(|value| value.kind.clone()) else {
        return Err(wrong_type(at, operation, "a value with a type", &Kind::Null));
    };
    if !matches!(kind, Kind::Integer | Kind::Float | Kind::Boolean | Kind::Text(_)) {
        return Err(wrong_type(at, operation, "numbers, truth values or text", &kind));
    }
    for value in values {
        coerce(value, &kind)?;
        let fits = matches!((&kind, &value.kind), (Kind::Text(_), Kind::Text(_))) && is_literal(value);
        if !fits && !comparable(&kind, &value.kind) {
            return Err(wrong_type(value.at, operation, kind.name(), &value.kind));
        }
        match (&kind, &value.kind) {
            (Kind::Integer, Kind::Float) => kind = Kind::Float,
            (Kind::Text(Charset::Ascii), Kind::Text(charset)) if !is_literal(value) => {
                kind = Kind::Text(*charset)
            }
            _ => (),
        }
    }
    Ok(kind)
}

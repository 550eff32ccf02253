//! What a plan does, in words for people: its steps in the order in which a message meets them.

use csp_formats::Scalar;

use crate::plan::{AggregateFunction, Cast, Comparison, Expr, Literal, Operator, Plan, Window};

/// A step of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanStep {
    /// What is done: `read`, `join`, `filter`, `window`, `group`, `aggregate`, `having`, `emit`.
    pub operation: &'static str,
    /// On what.
    pub detail: String,
}

impl Plan {
    /// Describes the steps.
    #[must_use]
    pub fn steps(&self) -> Vec<PlanStep> {
        let mut steps = Vec::new();
        let mut step = |operation, detail| steps.push(PlanStep { operation, detail });
        for (at, source) in self.sources.iter().enumerate() {
            let columns = self.columns.iter().filter(|column| column.source == at);
            let columns: Vec<&str> = columns.map(|column| column.path.as_str()).collect();
            let alias =
                if source.alias == source.channel { String::new() } else { format!(" as {}", source.alias) };
            step("read", format!("{} of {}{alias}: {}", source.message, source.channel, list(&columns)));
        }
        if let Some(join) = &self.join {
            let keys = join.keys.iter();
            let keys: Vec<String> =
                keys.map(|(a, b)| format!("{} = {}", self.column(*a), self.column(*b))).collect();
            step("join", format!("{}, within {}", keys.join(" and "), time(join.within_us)));
        }
        if let Some(filter) = &self.filter {
            step("filter", self.describe(filter));
        }
        match self.window {
            Some(Window::Time { length_us, every_us }) if every_us == length_us => {
                step("window", format!("of {}", time(length_us)));
            }
            Some(Window::Time { length_us, every_us }) => {
                step("window", format!("of {}, one every {}", time(length_us), time(every_us)));
            }
            Some(Window::Rows { count }) => step("window", format!("of {count} rows of each group")),
            None => {}
        }
        if !self.group_by.is_empty() {
            let keys: Vec<String> = self.group_by.iter().map(|expr| self.describe(expr)).collect();
            step("group", format!("by {}", keys.join(", ")));
        }
        if !self.aggregates.is_empty() {
            let all: Vec<String> = (0..self.aggregates.len()).map(|at| self.aggregate(at)).collect();
            step("aggregate", all.join(", "));
        }
        if let Some(having) = &self.having {
            step("having", self.describe(having));
        }
        let outputs: Vec<String> =
            self.outputs.iter().map(|output| self.output(&output.name, &output.expr)).collect();
        step("emit", outputs.join(", "));
        steps
    }

    /// Writes an expression as SQL, with the columns' sources where there are two.
    #[must_use]
    pub fn describe(&self, expr: &Expr) -> String {
        let both =
            |a: &Expr, sign: &str, b: &Expr| format!("({} {sign} {})", self.describe(a), self.describe(b));
        match expr {
            Expr::Literal(literal) => text(literal),
            Expr::Column(at) => self.column(*at),
            Expr::Aggregate(at) => self.aggregate(*at),
            Expr::Arithmetic(operator, a, b) => both(a, sign(*operator), b),
            // `a > b` is a comparison of b with a.
            Expr::Compare(comparison, a, b) if matches!(**a, Expr::Literal(_)) => match comparison {
                Comparison::Equal => both(b, "=", a),
                Comparison::Less => both(b, ">", a),
                Comparison::LessOrEqual => both(b, ">=", a),
            },
            Expr::Compare(comparison, a, b) => match comparison {
                Comparison::Equal => both(a, "=", b),
                Comparison::Less => both(a, "<", b),
                Comparison::LessOrEqual => both(a, "<=", b),
            },
            Expr::And(a, b) => both(a, "AND", b),
            Expr::Or(a, b) => both(a, "OR", b),
            Expr::Not(inner) => format!("NOT {}", self.describe(inner)),
            Expr::IsNull(inner) => format!("({} IS NULL)", self.describe(inner)),
            Expr::Has(inner, bit) => format!("HAS({}, bit {bit})", self.describe(inner)),
            Expr::Like(inner, pattern) => {
                format!("({} LIKE '{}')", self.describe(inner), String::from_utf8_lossy(pattern.bytes()))
            }
            Expr::If(parts) => {
                let [condition, value, otherwise] = parts.each_ref().map(|part| self.describe(part));
                format!("CASE WHEN {condition} THEN {value} ELSE {otherwise} END")
            }
            Expr::Coalesce(a, b) => format!("COALESCE({}, {})", self.describe(a), self.describe(b)),
            Expr::Absolute(inner) => format!("ABS({})", self.describe(inner)),
            Expr::Cast(inner, Cast::Integer) => format!("CAST({} AS BIGINT)", self.describe(inner)),
            Expr::Cast(inner, Cast::Float) => format!("CAST({} AS DOUBLE)", self.describe(inner)),
        }
    }

    fn column(&self, at: usize) -> String {
        let Some(column) = self.columns.get(at) else { return String::new() };
        match self.sources.len() {
            1 => column.path.clone(),
            _ => format!("{}.{}", self.sources[column.source].alias, column.path),
        }
    }

    fn aggregate(&self, at: usize) -> String {
        let Some(aggregate) = self.aggregates.get(at) else { return String::new() };
        if matches!(aggregate.function, AggregateFunction::WindowStart | AggregateFunction::WindowEnd) {
            return aggregate.function.name().to_owned();
        }
        let argument = aggregate.argument.as_ref().map_or_else(|| "*".to_owned(), |expr| self.describe(expr));
        format!("{}({argument})", aggregate.function.name())
    }

    fn output(&self, name: &str, expr: &Expr) -> String {
        let value = self.describe(expr);
        let value = value
            .strip_prefix('(')
            .and_then(|value| value.strip_suffix(')'))
            .map_or(value.clone(), str::to_owned);
        match value == name {
            true => value,
            false => format!("{value} AS {name}"),
        }
    }
}

fn list(columns: &[&str]) -> String {
    if columns.is_empty() { "no columns".to_owned() } else { columns.join(", ") }
}

fn sign(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::Remainder => "%",
    }
}

fn text(literal: &Literal) -> String {
    match literal {
        Literal::Null => "NULL".to_owned(),
        Literal::Boolean(value) => value.to_string().to_uppercase(),
        Literal::Integer(number) => number.to_string(),
        Literal::Float(number) => number.to_string(),
        Literal::Text(bytes) => format!("'{}'", String::from_utf8_lossy(bytes)),
        Literal::Enum(Scalar::Int(number)) => format!("value {number}"),
        Literal::Enum(Scalar::UInt(number)) => format!("value {number}"),
        Literal::Enum(Scalar::Char(byte)) => format!("value '{}'", char::from(*byte)),
        Literal::Enum(Scalar::Float(number)) => format!("value {number}"),
    }
}

/// A time in the largest unit that says it in whole numbers.
fn time(micros: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "µs")];
    let found = UNITS.iter().find(|(unit, _)| micros >= *unit && micros.is_multiple_of(*unit));
    found.map_or_else(|| format!("{micros} µs"), |(unit, name)| format!("{} {name}", micros / unit))
}

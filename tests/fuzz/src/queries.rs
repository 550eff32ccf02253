//! Queries: texts, the plans that are made of them, and patterns of LIKE.

use std::sync::{Arc, OnceLock};

use csp_formats::{Cell, MessageView, Name, Schema, Writer};
use csp_queries::{Catalog, Code, Condition, Datum, Expr, NODES_MAX, Pattern, Plan};

use crate::{Bounds, Check, Target};

/// A query and its plan.
pub static QUERIES_SQL: Target = Target {
    name: "queries_sql",
    check: Check::Parser(queries_sql),
    examples: sql_examples,
    words: &[
        "SELECT ",
        " FROM ",
        " WHERE ",
        " GROUP BY ",
        " HAVING ",
        " WINDOW ",
        " EVERY ",
        " JOIN ",
        " ON ",
        " WITHIN ",
        " AS ",
        " AND ",
        " OR ",
        " NOT ",
        " IS NULL",
        " IN (",
        " BETWEEN ",
        " LIKE '%_'",
        "CASE ",
        " WHEN ",
        " THEN ",
        " ELSE ",
        " END",
        "COALESCE(",
        "CAST(",
        "ABS(",
        "COUNT(*)",
        "SUM(",
        "LAST(",
        "HAS(",
        "* EXCEPT (",
        " REPLACE (",
        " RENAME (",
        "INTERVAL '1' DAY",
        " ROWS",
        "legs.stops.notes",
        "engine",
        "*",
        "%",
        "'",
        "\"",
        "--",
        "/*",
        "WINDOW_START",
        "18446744073709551615",
        "1e308",
    ],
    len_max: 16_384,
    bounds: Bounds { held: (1 << 20, 512), allocated: (4 << 20, 2_048) },
};

/// A pattern of LIKE and a text.
pub static QUERIES_LIKE: Target = Target {
    name: "queries_like",
    check: Check::Parser(queries_like),
    examples: || vec![b"\x05\x02%a_b%xxaybxx".to_vec(), b"\x04\x00%%a%bananas".to_vec()],
    words: &["%", "_", "%a", "a%"],
    len_max: 4_096,
    bounds: Bounds { held: (64 << 10, 64), allocated: (256 << 10, 256) },
};

/// A channel of messages that have every type.
struct Channels(Arc<Schema>);

impl Catalog for Channels {
    fn format(&self, _: &str) -> Option<(Arc<Schema>, Name)> {
        Some((self.0.clone(), "Everything".into()))
    }

    fn channels(&self) -> Vec<String> {
        vec!["c".to_owned()]
    }
}

fn schema() -> &'static Arc<Schema> {
    static SCHEMA: OnceLock<Arc<Schema>> = OnceLock::new();
    let xml = include_str!("../../../libcsp/formats/tests/vectors/everything-le.xml");
    SCHEMA.get_or_init(|| Arc::new(Schema::parse(xml).expect("valid")))
}

fn sql_examples() -> Vec<Vec<u8>> {
    let texts = [
        "SELECT * EXCEPT (binary, legs) FROM c WHERE requiredInt32 + 1 > optInt16 * 2 AND text LIKE '%a_%a%'",
        "SELECT requiredChar, engine.capacity AS size, price.mantissa / 100 AS price FROM c WHERE optDouble IS NOT NULL OR gear = 'First'",
        "SELECT model, COUNT(*) AS n, SUM(requiredInt64), AVG(requiredFloat) FROM c GROUP BY model HAVING COUNT(*) > 2 WINDOW INTERVAL '1' HOUR EVERY INTERVAL '10' MINUTE",
        "SELECT text, LAST(years) AS age, MAX(text) AS most FROM c GROUP BY text WINDOW 100 ROWS",
        "SELECT a.requiredUInt64, b.years FROM c AS a JOIN d AS b ON a.years = b.years AND a.text = b.text WITHIN 5 MINUTES WHERE a.wide = 'Many'",
        "SELECT CASE WHEN years BETWEEN 1 AND 20 THEN 'young' WHEN years IN (30, 40) THEN 'round' ELSE 'old' END AS age, COALESCE(optInt8, -1) AS i FROM c",
        "SELECT CAST(utf8 AS BIGINT) AS n, ABS(requiredDouble) AS d, HAS(flags8, 'bit7') AS f FROM c WHERE NOT (latin <> 'Zür')",
        "SELECT requiredInt8 + requiredInt16 AS a, text, CAST(requiredFloat AS BIGINT) AS b FROM c WHERE requiredInt32 BETWEEN 1 AND 2 OR text LIKE '%a_%'",
        "SELECT * EXCEPT (text) REPLACE (requiredInt8 * 2 AS requiredInt8) RENAME (latin AS l) FROM c WHERE NOT requiredUInt8 IN (1, 2, 255)",
        "SELECT CASE requiredInt8 WHEN 1 THEN 'one' ELSE text END AS t, COALESCE(optInt64, -1) AS o, ABS(requiredInt64 / 3) AS q FROM c",
        "SELECT WINDOW_START, MIN(text) AS least, COUNT(*) AS n FROM c GROUP BY requiredInt8 % 2 HAVING COUNT(*) > 1 WINDOW INTERVAL '1' HOUR EVERY 10 MINUTES",
        "SELECT a.requiredInt8 FROM c AS a JOIN c AS b ON a.requiredInt16 = b.requiredInt16 WITHIN 5 SECONDS WHERE a.requiredInt8 <> b.requiredInt8",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// A text is refused with its place, or planned within the bounds; programs that are compiled of the plan
/// yield what the plan yields.
fn queries_sql(bytes: &[u8]) -> bool {
    let Ok(sql) = core::str::from_utf8(bytes) else { return false };
    let plan = match Plan::new(sql, &Channels(schema().clone()), 7) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(error.position.line > 0 && error.position.column > 0, "{error}");
            return false;
        }
    };
    let exprs = plan.outputs.iter().map(|output| &output.expr).chain(&plan.filter).chain(&plan.having);
    assert!(exprs.map(Expr::size).sum::<usize>() <= 2 * NODES_MAX);
    assert!(!plan.steps().is_empty());
    if plan.sources.len() > 1 || !plan.aggregates.is_empty() {
        return true;
    }
    let schema = &plan.sources[0].schema;
    let mut message = vec![0; 1 << 16];
    let written = Writer::new(schema, plan.sources[0].format(), &mut message).and_then(Writer::finish);
    let Ok(len) = written else { return true };
    let slices = [&message[..len]];
    let view = MessageView::new(schema, &slices).expect("what was written is valid");
    let accepted = plan.accepts(&[&view]).expect("what was written is valid");
    let fixed = plan.fixed(0, None);
    let Some(row) = fixed.of(slices[0], len) else { return true };
    if let Some(said) = Condition::new(&plan, &plan.filter).and_then(|condition| condition.accepts(&[row])) {
        assert_eq!(said, accepted, "{sql}");
    }
    for output in &plan.outputs {
        let value = plan.evaluate(&output.expr, &[&view], &[]).expect("what was written is valid");
        let cell = Code::new(&plan, &output.expr).and_then(|code| code.run(&[row]));
        match (cell, value) {
            (None, _) => (),
            (Some(Cell::Null), value) => assert!(matches!(value, Datum::Null), "{sql}: {value:?}"),
            (Some(Cell::Int(cell)), Datum::Integer(value)) => assert_eq!(i128::from(cell), value, "{sql}"),
            (Some(Cell::Float(cell)), Datum::Float(value)) => {
                assert_eq!(f64::from_bits(cell), value, "{sql}")
            }
            (Some(cell @ (Cell::True | Cell::False)), Datum::Boolean(value)) => {
                assert_eq!(cell == Cell::True, value, "{sql}")
            }
            (Some(_), value) => assert!(!matches!(value, Datum::Null), "{sql}: {value:?}"),
        }
    }
    let mut out = vec![0; 1 << 17];
    if let Ok(len) = plan.emit(&[&view], &[], &mut out) {
        let slices = [&out[..len]];
        MessageView::new(&plan.derived.schema, &slices)
            .and_then(|view| view.check().map(drop))
            .expect("a row is valid");
    }
    true
}

/// A text matches a pattern or not, however it lies; a short one as the definition of LIKE has it.
fn queries_like(bytes: &[u8]) -> bool {
    let [len, step, rest @ ..] = bytes else { return false };
    let (pattern, text) = rest.split_at(usize::from(*len).min(rest.len()));
    let Ok(parts) = Pattern::new(pattern) else { return false };
    let whole = parts.matches(core::iter::once(text));
    assert_eq!(whole, parts.matches(text.chunks(usize::from(*step) + 1)));
    if text.len() < 12 && pattern.len() < 10 {
        assert_eq!(whole, plainly(text, pattern), "{} LIKE {}", text.escape_ascii(), pattern.escape_ascii());
    }
    true
}

fn plainly(text: &[u8], pattern: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'%', rest @ ..] => (0..=text.len()).any(|at| plainly(&text[at..], rest)),
        [expected, rest @ ..] => {
            text.first().is_some_and(|byte| *expected == b'_' || byte == expected)
                && plainly(&text[1..], rest)
        }
    }
}

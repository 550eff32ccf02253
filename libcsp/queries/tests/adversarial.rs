//! Queries by somebody who wants to do harm: what a text may take is bounded, whatever it says.
//!
//! The oracle of memory is an allocator that counts the bytes that are held, that of steps the number of
//! allocations: parser and binder take at least one for each node that they make.

mod common;

use common::{channels, flight, plan, written};
use csp_formats::MessageView;
use csp_queries::{Code, NODES_MAX, QUERY_LEN_MAX};
use csp_support::{Random, allocation};

/// Most allocations of a plan: some for each node, and for each column of the result's format.
const ALLOCATIONS_MAX: u64 = 40_000;
/// Most bytes that are held while a plan is made.
const BYTES_MAX: i64 = 4 << 20;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// What is repeated around an expression: what stands before it, and behind it.
const AROUND: [(&str, &str); 22] = [
    ("(", ")"),
    ("NOT ", ""),
    ("- ", ""),
    ("", " BETWEEN 1 AND 2"),
    ("", " BETWEEN TRUE AND TRUE"),
    ("1 BETWEEN ", " AND 3"),
    ("", " IN (1, 2, 3, 4)"),
    ("", " IN (TRUE, FALSE)"),
    ("a.FLOOR(", ")"),
    ("ABS(", ")"),
    ("COALESCE(", ", 1)"),
    ("COALESCE(NULL, ", ")"),
    ("CASE ", " WHEN 1 THEN 2 WHEN 3 THEN 4 END"),
    ("CASE WHEN TRUE THEN ", " ELSE 0 END"),
    ("CAST(", " AS BIGINT)"),
    ("SUM(", ")"),
    ("", " + delay"),
    ("", " IS NULL"),
    ("", " LIKE '%a_%a%'"),
    ("", " OR delay > 1"),
    ("", " = TRUE"),
    ("{fn ", "}"),
];

const LEAVES: [&str; 14] = [
    "delay",
    "1",
    "'text'",
    "TRUE",
    "NULL",
    "origin",
    "remark",
    "1e308",
    "18446744073709551615",
    "price.mantissa",
    "*",
    "\"",
    "'",
    "ﬁ",
];

const CLAUSES: [&str; 12] = [
    "WINDOW 18446744073709551615 MICROSECOND",
    "WINDOW 5 ROWS",
    "WINDOW 1 HOUR EVERY 1 MINUTE",
    "GROUP BY origin, delay, remark WINDOW 1 DAY",
    "HAVING COUNT(*) > 1 WINDOW 3 ROWS",
    "/* no end",
    "-- comment",
    ";;;;",
    "JOIN weather w ON origin = w.origin WITHIN 9223372036854775807 DAYS",
    "LIMIT 1",
    "UNION SELECT",
    "",
];

/// An expression that is nested or long in one or two ways.
fn expression(random: &mut Random) -> String {
    // A number fits most of what is around it.
    let mut text = match random.below(2) {
        0 => "delay".to_owned(),
        _ => LEAVES[random.below(LEAVES.len() as u64) as usize].to_owned(),
    };
    for _ in 0..1 + random.below(2) {
        let (before, behind) = AROUND[random.below(AROUND.len() as u64) as usize];
        let count = [1, 1, 1, 2, 3, 8, 20, 39, 60, 300, 900][random.below(11) as usize];
        text = before.repeat(count) + &text + &behind.repeat(count);
    }
    text
}

fn query(random: &mut Random) -> String {
    let list: Vec<String> = match random.below(6) {
        0 => vec!["*".to_owned(); [1, 2, 200, 1000][random.below(4) as usize]],
        1 => {
            let name = "x".repeat(random.below(9000) as usize);
            vec![format!("* EXCEPT ({name}) RENAME (delay AS {name})")]
        }
        2 => (0..random.below(300)).map(|at| format!("delay + {at} AS c{at}")).collect(),
        3 => (0..=random.below(3)).map(|_| expression(random)).collect(),
        _ => vec![expression(random)],
    };
    let filter = match random.below(3) {
        0 => format!("WHERE ({}) IS NULL", expression(random)),
        1 => format!(
            "WHERE remark LIKE '{}'",
            ["%a", "_", "%", "a_%"][random.below(4) as usize].repeat(random.below(4000) as usize)
        ),
        _ => String::new(),
    };
    let clause = match random.below(3) {
        0 => CLAUSES[random.below(CLAUSES.len() as u64) as usize],
        _ => "",
    };
    let mut sql = format!("SELECT {} FROM flights {filter} {clause}", list.join(", "));
    if random.below(8) == 0 {
        let at = random.below(sql.len() as u64) as usize;
        if sql.is_char_boundary(at) {
            sql.truncate(at);
        }
    }
    sql
}

#[test]
fn no_text_takes_more_than_its_share() {
    let seeds = match std::env::var("CSP_SEED") {
        Ok(seed) => vec![seed.parse().expect("CSP_SEED is a number")],
        Err(_) => (0..std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1000))
            .collect(),
    };
    let bytes = written(&channels().flights, &flight());
    let slices: Vec<&[u8]> = bytes.chunks(10).collect();
    let (mut planned, mut most, mut held) = (0, 0, 0);
    for &seed in &seeds {
        let sql = query(&mut Random::new(seed));
        let (plan, allocations, bytes) = allocation::peak_of(|| plan(&sql));
        (most, held) = (most.max(allocations), held.max(bytes));
        assert!(allocations <= ALLOCATIONS_MAX, "seed {seed}: {allocations} allocations: {sql}");
        assert!(bytes <= BYTES_MAX, "seed {seed}: {bytes} bytes: {sql}");
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                assert!(error.position.line > 0 && error.position.column > 0, "seed {seed}: {error}");
                assert!(error.to_string().len() < 3 * QUERY_LEN_MAX, "seed {seed}");
                continue;
            }
        };
        planned += 1;
        let outputs = plan.outputs.iter().map(|output| &output.expr);
        let nodes: usize = outputs.chain(&plan.filter).chain(&plan.having).map(csp_queries::Expr::size).sum();
        assert!(nodes <= 2 * NODES_MAX, "seed {seed}: {nodes} nodes");
        let view = MessageView::new(&plan.sources[0].schema, &slices).expect("valid");
        let before = allocation::count();
        let mut out = [0; 16 << 10];
        if plan.accepts(&[&view]).expect("valid") && plan.aggregates.is_empty() {
            let _ = plan.emit(&[&view], &[], &mut out);
        }
        assert_eq!(allocation::count(), before, "seed {seed}: a row allocates");
        plan.outputs.iter().for_each(|output| drop(Code::new(&plan, &output.expr)));
        assert!(!plan.steps().is_empty());
    }
    println!("{planned} of {} planned, at most {most} allocations and {held} bytes", seeds.len());
    assert!(seeds.len() < 500 || planned > seeds.len() / 20, "{planned}");
}

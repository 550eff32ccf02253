//! Programs at fixed places beside the plans that they were made from, over random formats, queries and
//! messages. `CSP_SEED=n` replays one seed; `CSP_SEEDS=n` runs more.

mod random;

use csp_formats::{Cell, MessageView};
use csp_queries::{Code, Condition, Datum, Image, Plan};
use csp_support::Random;
use random::{Channels, Expressions, format, message};

fn same(cell: Cell, datum: Datum<'_>) -> bool {
    match datum {
        Datum::Null => cell == Cell::Null,
        Datum::Boolean(value) => cell == if value { Cell::True } else { Cell::False },
        Datum::Integer(number) => i64::try_from(number).is_ok_and(|number| cell == Cell::Int(number)),
        Datum::Float(number) => cell == Cell::Float(number.to_bits()),
        Datum::Text(text) => Cell::text(&text.bytes().collect::<Vec<u8>>()) == Some(cell),
        Datum::Enum(number) => Cell::enumeration(number) == Some(cell),
        Datum::Set(bits) => cell == Cell::Set(bits),
    }
}

/// How often programs said something.
#[derive(Default, Debug)]
struct Said {
    rows: u64,
    fixed: u64,
    filters: u64,
    values: u64,
    images: u64,
}

fn check(random: &mut Random, said: &mut Said) {
    let formats = [format(random, 1), format(random, 2)];
    let is_join = random.below(2) == 0;
    let sources = if is_join { 2 } else { 1 };
    let prefixed = |source: usize| {
        let alias = ["a", "b"][source];
        formats[source].columns.iter().map(move |(path, kind)| (format!("{alias}.{path}"), *kind))
    };
    let columns: Vec<_> = (0..sources).flat_map(prefixed).collect();
    let mut expressions = Expressions { random, columns: columns.clone(), functions: true };
    let filter = expressions.truth(2);
    let mut outputs: Vec<String> = columns.iter().map(|column| column.0.clone()).collect();
    outputs.retain(|_| expressions.random.below(2) == 0);
    outputs.push(expressions.number(2));
    outputs.push(expressions.truth(1));
    let outputs: Vec<_> = outputs.iter().enumerate().map(|(at, text)| format!("{text} AS o{at}")).collect();
    let join = if is_join { " JOIN b ON a.k = b.k WITHIN INTERVAL '1' MINUTE" } else { "" };
    let sql = format!("SELECT {} FROM a{join} WHERE {filter}", outputs.join(", "));
    let schemas = formats.each_ref().map(|format| format.schema.clone());
    // What the language refuses (a constant of type text, say) is not the subject.
    let Ok(plan) = Plan::new(&sql, &Channels(schemas.clone()), 90) else { return };
    let fixed: Vec<_> = (0..sources).map(|source| plan.fixed(source, None)).collect();
    let condition = Condition::new(&plan, &plan.filter);
    let codes: Vec<_> = plan.outputs.iter().map(|output| Code::new(&plan, &output.expr)).collect();
    let image = Image::new(&plan);
    for _ in 0..40 {
        let messages: Vec<_> = (0..sources).map(|source| message(random, &schemas[source])).collect();
        let cuts: Vec<_> = messages.iter().map(|bytes| random.below(3 * bytes.len() as u64 + 1)).collect();
        let slices: Vec<[&[u8]; 2]> = messages
            .iter()
            .zip(&cuts)
            .map(|(bytes, cut)| <[&[u8]; 2]>::from(bytes.split_at((*cut as usize).min(bytes.len()))))
            .collect();
        let rows: Vec<_> =
            (0..sources).map(|source| fixed[source].of(slices[source][0], messages[source].len())).collect();
        let views: Vec<_> = (0..sources).map(|at| MessageView::new(&schemas[at], &slices[at])).collect();
        said.rows += 1;
        let Some(rows) = rows.into_iter().collect::<Option<Vec<_>>>() else { continue };
        said.fixed += 1;
        let records: Vec<_> = views.iter().map(|view| &**view.as_ref().expect("fixed is valid")).collect();
        assert!(views.iter().all(|view| view.as_ref().is_ok_and(|view| view.message.id == 1)));
        if let Some(accepted) = condition.as_ref().and_then(|condition| condition.accepts(&rows)) {
            assert_eq!(plan.accepts(&records), Ok(accepted), "{sql}\n{messages:?}");
            said.filters += 1;
        }
        for (code, output) in codes.iter().zip(&plan.outputs) {
            let Some(cell) = code.as_ref().and_then(|code| code.run(&rows)) else { continue };
            let datum = plan.evaluate(&output.expr, &records, &[]).expect("fixed is valid");
            assert!(same(cell, datum), "{}: {cell:?}, {datum:?}\n{sql}\n{messages:?}", output.name);
            said.values += 1;
        }
        let mut out = [[0xaa; 400]; 2];
        let room = if random.below(10) == 0 { random.below(100) as usize } else { 400 };
        let written = image.as_ref().and_then(|image| image.emit(&rows, &mut out[0][..room]));
        if let Some(len) = written {
            assert_eq!(plan.emit(&records, &[], &mut out[1][..room]), Ok(len), "{sql}\n{messages:?}");
            assert_eq!(out[0][..len], out[1][..len], "{sql}\n{messages:?}");
            said.images += 1;
        }
    }
}

#[test]
fn programs_yield_what_plans_yield() {
    let seed = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let count = std::env::var("CSP_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1500);
    let mut said = Said::default();
    for seed in seed.map_or(0..count, |seed| seed..seed + 1) {
        // Shown if the test fails.
        println!("CSP_SEED={seed}");
        check(&mut Random::new(seed), &mut said);
    }
    println!("{said:?}");
    if seed.is_none() {
        let Said { rows, fixed, filters, values, images } = said;
        assert!(fixed > rows / 4 && filters > fixed / 4 && values > fixed && images > fixed / 10, "{said:?}");
    }
}

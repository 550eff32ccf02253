//! The properties of the fuzz targets over seeded changes of queries and patterns: `make fuzz` searches on.

#[path = "../../../tests/fuzz/src/queries.rs"]
mod fuzz;

use csp_support::Random;

const QUERIES: [&str; 5] = [
    "SELECT requiredInt8 + requiredInt16 AS a, text, CAST(requiredFloat AS BIGINT) AS b FROM c WHERE requiredInt32 BETWEEN 1 AND 2 OR text LIKE '%a_%'",
    "SELECT * EXCEPT (text) REPLACE (requiredInt8 * 2 AS requiredInt8) RENAME (latin AS l) FROM c WHERE NOT requiredUInt8 IN (1, 2, 255)",
    "SELECT CASE requiredInt8 WHEN 1 THEN 'one' ELSE text END AS t, COALESCE(optInt64, -1) AS o, ABS(requiredInt64 / 3) AS q FROM c",
    "SELECT WINDOW_START, MIN(text) AS least, COUNT(*) AS n FROM c GROUP BY requiredInt8 % 2 HAVING COUNT(*) > 1 WINDOW INTERVAL '1' HOUR EVERY 10 MINUTES",
    "SELECT a.requiredInt8 FROM c AS a JOIN c AS b ON a.requiredInt16 = b.requiredInt16 WITHIN 5 SECONDS WHERE a.requiredInt8 <> b.requiredInt8",
];

/// Some changes of words, or of single bytes.
fn changed(random: &mut Random, text: &str) -> Vec<u8> {
    let other = QUERIES[random.below(QUERIES.len() as u64) as usize];
    let others: Vec<&str> = other.split_inclusive([' ', '(', ',', '.']).collect();
    let mut words: Vec<&str> = text.split_inclusive([' ', '(', ',', '.']).collect();
    for _ in 0..random.below(4) {
        let (at, to) = (random.below(words.len() as u64) as usize, random.below(words.len() as u64) as usize);
        match random.below(4) {
            0 => words.swap(at, to),
            1 if words.len() > 1 => drop(words.remove(at)),
            2 => words.insert(at, others[random.below(others.len() as u64) as usize]),
            _ => words.insert(to, words[at]),
        }
    }
    let mut bytes = words.concat().into_bytes();
    for _ in 0..random.below(3) {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = b"'\"();*%_-.9eE \xc3\x00"[random.below(16) as usize];
    }
    bytes
}

#[test]
fn changed_queries_and_patterns_keep_the_properties_of_the_fuzz_targets() {
    for query in QUERIES {
        fuzz::queries_sql(query.as_bytes());
    }
    for seed in 0..4000 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let query = QUERIES[random.below(QUERIES.len() as u64) as usize];
        let bytes = changed(&mut random, query);
        fuzz::queries_sql(&bytes);
        let bytes: Vec<u8> =
            (0..random.below(24)).map(|_| b"\x02\x05ab%_%"[random.below(7) as usize]).collect();
        fuzz::queries_like(&bytes);
    }
}

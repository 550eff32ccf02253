//! Fuzzes `csp_fuzz::queries_sql`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::queries_sql(bytes));

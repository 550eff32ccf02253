//! Fuzzes `csp_fuzz::formats_schema`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::formats_schema(bytes));

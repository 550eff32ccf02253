//! Fuzzes `csp_fuzz::verbs_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::verbs_frame(bytes));

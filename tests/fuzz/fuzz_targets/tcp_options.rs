//! Fuzzes `csp_fuzz::tcp_options`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::tcp_options(bytes));

//! Fuzzes `csp_fuzz::ucx_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::ucx_frame(bytes));

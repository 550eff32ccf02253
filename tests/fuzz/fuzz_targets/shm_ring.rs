//! Fuzzes `csp_fuzz::shm_ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::shm_ring(bytes));

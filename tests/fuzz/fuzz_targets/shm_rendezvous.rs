//! Fuzzes `csp_fuzz::shm_rendezvous`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| csp_fuzz::shm_rendezvous(bytes));

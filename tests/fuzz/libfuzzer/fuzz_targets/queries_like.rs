//! Fuzzes `csp_fuzz::QUERIES_LIKE`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::QUERIES_LIKE.run(bytes);
});

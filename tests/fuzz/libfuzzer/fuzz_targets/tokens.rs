//! Fuzzes `csp_fuzz::TOKENS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::TOKENS.run(bytes);
});

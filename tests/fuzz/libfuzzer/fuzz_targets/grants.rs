//! Fuzzes `csp_fuzz::GRANTS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::GRANTS.run(bytes);
});

//! Fuzzes `csp_fuzz::RULES`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::RULES.run(bytes);
});

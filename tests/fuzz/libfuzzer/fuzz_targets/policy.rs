//! Fuzzes `csp_fuzz::POLICY`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::POLICY.run(bytes);
});

//! Fuzzes `csp_fuzz::VERBS_FRAME`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::VERBS_FRAME.run(bytes);
});

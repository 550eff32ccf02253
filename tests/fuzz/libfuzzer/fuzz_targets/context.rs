//! Fuzzes `csp_fuzz::CONTEXT`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::CONTEXT.run(bytes);
});

//! Fuzzes `csp_fuzz::DECLARATIONS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::DECLARATIONS.run(bytes);
});

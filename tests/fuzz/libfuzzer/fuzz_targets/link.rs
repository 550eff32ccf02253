//! Fuzzes `csp_fuzz::LINK`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::LINK.run(bytes);
});

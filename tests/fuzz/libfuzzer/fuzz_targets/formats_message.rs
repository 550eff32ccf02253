//! Fuzzes `csp_fuzz::FORMATS_MESSAGE`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::FORMATS_MESSAGE.run(bytes);
});

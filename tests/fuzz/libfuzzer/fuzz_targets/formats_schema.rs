//! Fuzzes `csp_fuzz::FORMATS_SCHEMA`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::FORMATS_SCHEMA.run(bytes);
});

//! Fuzzes `csp_fuzz::TCP_STREAM`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::TCP_STREAM.run(bytes);
});

//! Fuzzes `csp_fuzz::TCP_OPTIONS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::TCP_OPTIONS.run(bytes);
});

//! Fuzzes `csp_fuzz::TCP`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::TCP.run(bytes);
});

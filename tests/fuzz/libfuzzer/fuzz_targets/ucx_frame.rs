//! Fuzzes `csp_fuzz::UCX_FRAME`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::UCX_FRAME.run(bytes);
});

//! Fuzzes `csp_fuzz::HTTP_BODY`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::HTTP_BODY.run(bytes);
});

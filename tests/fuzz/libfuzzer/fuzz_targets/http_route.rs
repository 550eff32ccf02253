//! Fuzzes `csp_fuzz::HTTP_ROUTE`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::HTTP_ROUTE.run(bytes);
});

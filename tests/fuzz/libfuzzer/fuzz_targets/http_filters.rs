//! Fuzzes `csp_fuzz::HTTP_FILTERS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::HTTP_FILTERS.run(bytes);
});

//! Fuzzes `csp_fuzz::HTTP_EXCHANGE`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::HTTP_EXCHANGE.run(bytes);
});

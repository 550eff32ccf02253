//! Fuzzes `csp_fuzz::REQUESTS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::REQUESTS.run(bytes);
});

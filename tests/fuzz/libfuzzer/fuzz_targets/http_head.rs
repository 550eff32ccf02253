//! Fuzzes `csp_fuzz::HTTP_HEAD`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::HTTP_HEAD.run(bytes);
});

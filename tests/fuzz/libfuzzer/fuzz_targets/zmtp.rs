//! Fuzzes `csp_fuzz::ZMTP`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::ZMTP.run(bytes);
});

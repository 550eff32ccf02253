//! Fuzzes `csp_fuzz::ETHERNET`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::ETHERNET.run(bytes);
});

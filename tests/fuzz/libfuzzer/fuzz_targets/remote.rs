//! Fuzzes `csp_fuzz::REMOTE`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::REMOTE.run(bytes);
});

//! Fuzzes `csp_fuzz::CLIENT_HELLO`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::CLIENT_HELLO.run(bytes);
});

//! Fuzzes `csp_fuzz::PROXY_PROTOCOL`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::PROXY_PROTOCOL.run(bytes);
});

//! Fuzzes `csp_fuzz::TUNNEL`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::TUNNEL.run(bytes);
});

//! Fuzzes `csp_fuzz::IPV6`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::IPV6.run(bytes);
});

//! Fuzzes `csp_fuzz::ICMP`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::ICMP.run(bytes);
});

//! Fuzzes `csp_fuzz::ARP`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::ARP.run(bytes);
});

//! Fuzzes `csp_fuzz::PACKETS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::PACKETS.run(bytes);
});

//! Fuzzes `csp_fuzz::CHANNEL`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::CHANNEL.run(bytes);
});

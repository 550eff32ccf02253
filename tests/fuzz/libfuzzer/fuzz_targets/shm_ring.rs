//! Fuzzes `csp_fuzz::SHM_RING`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::SHM_RING.run(bytes);
});

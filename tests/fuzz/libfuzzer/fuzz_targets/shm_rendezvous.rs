//! Fuzzes `csp_fuzz::SHM_RENDEZVOUS`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::SHM_RENDEZVOUS.run(bytes);
});

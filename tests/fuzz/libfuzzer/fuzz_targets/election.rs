//! Fuzzes `csp_fuzz::ELECTION`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::ELECTION.run(bytes);
});

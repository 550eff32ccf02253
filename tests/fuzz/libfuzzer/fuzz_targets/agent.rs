//! Fuzzes `csp_fuzz::AGENT`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::AGENT.run(bytes);
});

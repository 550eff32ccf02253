//! Fuzzes `csp_fuzz::HTTP2_CLIENT`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::HTTP2_CLIENT.run(bytes);
});

//! Fuzzes `csp_fuzz::TCP_STACK`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::TCP_STACK.run(bytes);
});

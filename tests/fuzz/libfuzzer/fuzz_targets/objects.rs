//! Fuzzes `csp_fuzz::OBJECTS`.
#![no_main]

// libFuzzer's hook ends the process at a panic. The library that reads objects panics where their tables
// contradict themselves, which the caller contains.
libfuzzer_sys::fuzz_target!(init: csp_fuzz::report_own_panics_only(), |bytes: &[u8]| {
    csp_fuzz::OBJECTS.run(bytes);
});

//! Fuzzes `csp_fuzz::PCAP_MERGE`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    csp_fuzz::PCAP_MERGE.run(bytes);
});

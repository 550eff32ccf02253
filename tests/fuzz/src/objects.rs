//! Supplied eBPF objects: ELF files with programs, maps and debug information.

use std::path::Path;

use crate::{Bounds, Check, Target};

/// An object: what is accepted of it, before the kernel sees it.
pub static OBJECTS: Target = Target {
    name: "objects",
    check: Check::Parser(check),
    examples,
    words: &[
        "csp",
        "xdp",
        "maps",
        ".BTF",
        ".BTF.ext",
        ".maps",
        "license",
        ".rodata",
        ".text",
        "csp_parameters",
        "csp_continue",
        "\u{0}",
    ],
    len_max: 32_768,
    bounds: Bounds { held: (64 << 10, 16), allocated: (256 << 10, 64) },
};

/// Longest reason for a refusal, in bytes.
const REASON_LEN_MAX: usize = 4_096;

fn check(bytes: &[u8]) -> bool {
    match csp_xdp::read_object(bytes) {
        Ok(declaration) => {
            assert!((1..=csp_plugins::OUTPUTS_MAX).contains(&usize::from(declaration.outputs)));
            assert!(declaration.numbers.is_none_or(|(least, most)| least <= most));
            true
        }
        Err(error) => {
            let reason = error.to_string();
            assert!((1..=REASON_LEN_MAX).contains(&reason.len()), "{} bytes: {reason}", reason.len());
            false
        }
    }
}

/// The objects of `network-node/xdp/modules`, as clang makes them; none where it is not installed.
fn examples() -> Vec<Vec<u8>> {
    if !csp_support::has("clang") {
        return Vec::new();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let object = |name| csp_support::bpf_object(&root, &root.join("network-node/xdp/modules").join(name));
    ["hop-limit.c", "dns-length.c"].map(object).to_vec()
}

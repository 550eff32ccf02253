//! The fixtures on level 2. Each file of `fixtures/` is a test.
#![allow(missing_docs)]

mod fixture;

use fixture::{WorkerLevel, run};

macro_rules! fixtures {
    ($($name:ident: $file:literal,)*) => {
        $(#[test]
        fn $name() {
            run(include_str!(concat!("fixtures/", $file, ".txt")), WorkerLevel::new);
        })*

        #[test]
        fn every_file_is_a_test() {
            let known = [$(concat!($file, ".txt")),*];
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
            for entry in std::fs::read_dir(folder).expect("the folder of fixtures") {
                let name = entry.expect("an entry").file_name().into_string().expect("a name in ASCII");
                assert!(known.contains(&name.as_str()), "{name}");
            }
        }
    };
}

fixtures! {
    no_op: "no-op",
    drop: "drop",
    redirect: "redirect",
    mirror: "mirror",
    counter: "counter",
    policer: "policer",
    policer_block: "policer-block",
    dscp: "dscp",
    block_list: "block-list",
    capture: "capture",
    graph: "graph",
    rules: "rules",
}

//! Prints random messages of the schemas of `tests/vectors`, a line each: schema, bytes as hex, JSON. `make
//! test-formats` has the official sbe-tool decode them. Arguments: the seed, and how many of each message.

#[path = "../tests/common/mod.rs"]
mod common;

use csp_support::Random;
use serde_json::json;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let mut random = Random::new(arguments.next().unwrap_or(1));
    let count = arguments.next().unwrap_or(100);
    for name in ["everything", "evolution-0", "evolution-2"] {
        for order in ["le", "be"] {
            let name = format!("{name}-{order}");
            let schema = common::schema(&name);
            for message in &schema.messages {
                for _ in 0..count {
                    let bytes = common::written(&schema, &common::random::message(message, &mut random));
                    let printed = common::printed(&schema, &[&bytes]).expect("what was written is valid");
                    println!("{}", json!({"schema": name, "hex": common::hex(&bytes), "json": printed}));
                }
            }
        }
    }
}

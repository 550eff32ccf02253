//! Events of an airline, as both papers used: flights of 350 to 1,150 bytes with passenger lists and blocked
//! seats. They are synthetic.

use std::sync::Arc;

use csp_formats::{Name, Schema, json};
use serde_json::json;

/// Messages that are sent again and again.
const DISTINCT: usize = 256;
/// Where the number lies in a message; the time follows.
const NUMBER: usize = 8;

const TYPES: &str = "<composite name=\"messageHeader\"><type name=\"blockLength\" primitiveType=\"uint16\"/>\
    <type name=\"templateId\" primitiveType=\"uint16\"/><type name=\"schemaId\" primitiveType=\"uint16\"/>\
    <type name=\"version\" primitiveType=\"uint16\"/></composite>\
    <composite name=\"text\"><type name=\"length\" primitiveType=\"uint16\"/>\
    <type name=\"varData\" primitiveType=\"uint8\" length=\"0\" characterEncoding=\"UTF-8\"/></composite>\
    <type name=\"airport\" primitiveType=\"char\" length=\"4\"/><type name=\"carrier\" primitiveType=\"char\" length=\"4\"/>\
    <type name=\"tail\" primitiveType=\"char\" length=\"8\"/>";

const FIELDS: [(&str, &str); 16] = [
    ("number", "uint32"),
    ("departure", "int64"),
    ("delay", "int32"),
    ("source", "airport"),
    ("destination", "airport"),
    ("carrier", "carrier"),
    ("tail", "tail"),
    ("distance", "int32"),
    ("airTime", "int32"),
    ("fuel", "int32"),
    ("altitude", "int32"),
    ("speed", "int32"),
    ("heading", "int32"),
    ("crew", "int32"),
    ("bags", "int32"),
    ("seats", "int32"),
];

/// Lengths of messages in bytes, passenger lists included.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// The shortest.
    pub least: usize,
    /// The longest.
    pub most: usize,
}

/// A stream of flights.
#[derive(Debug)]
pub struct Flights {
    /// Their schema.
    pub schema: Arc<Schema>,
    /// The name of the message in it.
    pub name: Name,
    messages: Vec<Vec<u8>>,
    next: usize,
    count: u64,
}

impl Flights {
    /// A stream whose schema has the id `id`. The same id and lengths make the same messages.
    pub fn new(id: u16, lengths: Lengths) -> Self {
        let name = format!("Flight{id}");
        let schema = Arc::new(Schema::parse(&Self::xml(id)).expect("the schema of flights is valid"));
        let messages = (0..DISTINCT).map(|n| message(&schema, &name, n, lengths)).collect();
        Flights { schema, name: name.as_str().into(), messages, next: 0, count: 0 }
    }

    /// The schema with this id. Its message is called `Flight` and the id.
    pub fn xml(id: u16) -> String {
        let fields: String = FIELDS
            .iter()
            .enumerate()
            .map(|(at, (name, kind))| format!("<field name=\"{name}\" id=\"{}\" type=\"{kind}\"/>", at + 1))
            .collect();
        format!(
            "<messageSchema id=\"{id}\" version=\"0\" byteOrder=\"littleEndian\"><types>{TYPES}</types>\
             <message name=\"Flight{id}\" id=\"1\">{fields}<data name=\"passengers\" id=\"30\" type=\"text\"/>\
             <data name=\"blocked\" id=\"31\" type=\"text\"/></message></messageSchema>"
        )
    }

    /// Returns the next message, with a number and a time that no earlier one had: one a second.
    #[expect(clippy::should_implement_trait, reason = "the message is borrowed from the stream")]
    pub fn next(&mut self) -> &[u8] {
        self.count += 1;
        self.next = (self.next + 1) % self.messages.len();
        let message = &mut self.messages[self.next];
        message[NUMBER..NUMBER + 4].copy_from_slice(&(self.count as u32).to_le_bytes());
        message[NUMBER + 4..NUMBER + 12].copy_from_slice(&self.count.to_le_bytes());
        message
    }

    /// Returns the mean length in bytes.
    pub fn mean_len(&self) -> f64 {
        self.messages.iter().map(Vec::len).sum::<usize>() as f64 / self.messages.len() as f64
    }
}

fn message(schema: &Schema, name: &str, n: usize, Lengths { least, most }: Lengths) -> Vec<u8> {
    // Lengths and blocked seats (2 to 20 % of a message) are spread evenly over the messages.
    let len = least + (most - least) * (n * 167 % DISTINCT) / DISTINCT;
    let blocked = len * (2 + 18 * (n * 89 % DISTINCT) / DISTINCT) / 100;
    let source = ["ATLX", "EWRX", "JFKX", "LGAX"][n % 4];
    let mut value = json!({"$message": name, "source": source, "destination": "PARX",
        "carrier": "UA", "tail": format!("N{n:05}"), "passengers": "", "blocked": "s".repeat(blocked)});
    for (name, kind) in FIELDS.iter().filter(|(_, kind)| kind.contains("int")) {
        value[name] = json!(if *kind == "int64" { 0 } else { n });
    }
    let mut out = vec![0; most + 64];
    let mut written = |value: &serde_json::Value| {
        let text = value.to_string();
        json::parse(schema, text.as_bytes(), &mut out).expect("the message fits the schema")
    };
    let without = written(&value);
    value["passengers"] = json!("p".repeat(len.saturating_sub(without)));
    let len = written(&value);
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_paper_and_numbers_go_on() {
        let mut flights = Flights::new(1, Lengths { least: 350, most: 1_150 });
        assert!(flights.messages.iter().all(|message| (350..=1_150).contains(&message.len())));
        assert!((700.0..800.0).contains(&flights.mean_len()), "{}", flights.mean_len());
        let numbers: Vec<u8> = (0..3).map(|_| flights.next()[NUMBER]).collect();
        assert_eq!(numbers, [1, 2, 3]);
        let fixed = Flights::new(1, Lengths { least: 600, most: 600 });
        assert!(fixed.messages.iter().all(|message| message.len() == 600));
    }
}

//! The examples of docs/message-operators.md.

use std::sync::Arc;

use csp_formats::Schema;
use csp_handlers::{FormatId, State};
use csp_operators::{FormatSet, NAMES, make};

const DOCS: &str = include_str!("../../../docs/message-operators.md");

/// Messages with the columns of the examples.
fn set() -> Arc<FormatSet> {
    let schema = |id: u16, message: &str| {
        let xml = format!(
            "<messageSchema id=\"{id}\" version=\"1\"><types><composite name=\"messageHeader\"><type name=\"blockLength\" primitiveType=\"uint16\"/>\
             <type name=\"templateId\" primitiveType=\"uint16\"/><type name=\"schemaId\" primitiveType=\"uint16\"/><type name=\"version\" \
             primitiveType=\"uint16\"/></composite><composite name=\"groupSizeEncoding\"><type name=\"blockLength\" primitiveType=\"uint16\"/>\
             <type name=\"numInGroup\" primitiveType=\"uint16\"/></composite><composite name=\"text\"><type name=\"length\" \
             primitiveType=\"uint16\"/><type name=\"varData\" primitiveType=\"uint8\" length=\"0\" characterEncoding=\"UTF-8\"/></composite>\
             <type name=\"airport\" primitiveType=\"char\" length=\"3\"/><type name=\"gate\" primitiveType=\"char\" length=\"4\"/>\
             <type name=\"phone\" primitiveType=\"char\" length=\"16\"/></types>{message}</messageSchema>"
        );
        Arc::new(Schema::parse(&xml).unwrap_or_else(|error| panic!("{error}")))
    };
    let flights = "<message name=\"Flight\" id=\"1\"><field name=\"number\" id=\"1\" type=\"uint32\"/><field name=\"origin\" id=\"2\" type=\"airport\"/>\
        <field name=\"hour\" id=\"3\" type=\"uint8\"/><field name=\"at\" id=\"4\" type=\"int64\"/><field name=\"delay\" id=\"5\" type=\"int16\"/>\
        <field name=\"phone\" id=\"6\" type=\"phone\"/><field name=\"gate\" id=\"7\" type=\"gate\"/><field name=\"seats\" id=\"8\" type=\"uint16\"/>\
        <group name=\"passengers\" id=\"9\"><data name=\"document\" id=\"10\" type=\"text\"/><data name=\"meal\" id=\"11\" type=\"text\"/></group>\
        </message>";
    let weather = "<message name=\"Weather\" id=\"1\"><field name=\"origin\" id=\"2\" type=\"airport\"/><field name=\"hour\" id=\"3\" \
        type=\"uint8\"/><field name=\"at\" id=\"4\" type=\"int64\"/><field name=\"wind\" id=\"5\" type=\"double\"/>\
        <field name=\"number\" id=\"6\" type=\"uint32\"/><field name=\"delay\" id=\"7\" type=\"int16\"/><field name=\"phone\" id=\"8\" \
        type=\"phone\"/></message>";
    let mut set = FormatSet::new();
    set.add(FormatId(1), schema(1, flights), "Flight".into()).expect("free");
    set.add(FormatId(2), schema(2, weather), "Weather".into()).expect("free");
    Arc::new(set)
}

#[test]
fn every_operator_has_an_example_that_is_accepted() {
    let set = set();
    let mut shown = Vec::new();
    for line in DOCS.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [names, parameters, _] = cells[..] else { continue };
        for name in names.split('`').filter(|name| NAMES.contains(name)) {
            let example = parameters.split('`').nth(1).unwrap_or_default();
            let mut handler = make(name, &set).expect("known");
            let mut state = State::new(&handler.needs());
            handler
                .configure(example, &mut state)
                .unwrap_or_else(|error| panic!("{name} {example}: {error}"));
            shown.push(name);
        }
    }
    for name in NAMES {
        assert!(shown.contains(name), "{name} has an example");
    }
}

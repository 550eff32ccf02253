//! Fields of messages at the end of a path, where they are found in the pool.

use std::sync::Arc;

use csp_formats::{Cell, Fixed, Load, Schema};
use csp_messages::{FieldReader, FlowFields, FlowId, FormatId, FullQueue, PathSpec};
use csp_quality::{FieldValue, Scheme};

use crate::world::{World, seconds, spec};

const SCHEMA: &str = r#"<messageSchema id="40" version="1" byteOrder="bigEndian"><types><composite name="messageHeader">
    <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
    <type name="version" primitiveType="uint16"/></composite></types>
    <message name="Flight" id="1"><field name="delay" id="1" type="int16"/></message></messageSchema>"#;

#[test]
fn what_leaves_a_path_belongs_to_the_flow_of_its_fields() {
    let mut world = World::new(&[0], FullQueue::DropNewest);
    let schema = Schema::parse(SCHEMA).unwrap();
    let field = schema.messages[0].block.fields[0].clone();
    let fixed = Fixed::new(&schema, &schema.messages[0], [&field]);
    let load = Load::new(&field, fixed.header(), schema.byte_order).unwrap();
    let mut fields = FlowFields::default();
    fields.add(0, FormatId(1), FieldReader::new(fixed.clone(), vec![(0, fixed, load)]));
    let word = |number| FieldValue::unsigned(Cell::Int(number).order().unwrap());
    let mut late = spec("late", 0, 9, 0);
    late.predicate.fields.push((0, word(60)..=word(999)));
    world.set_flows(vec![late, spec("others", 0, 0, 0)], Scheme::RoundRobin, |_| Vec::new());
    world.plane.set_flow_fields(None, world.table.generation(), Arc::new(fields));
    let (channel, publisher) = (world.pairs[0].channel, world.pairs[0].publisher);
    world.plane.activate_path(world.now, PathSpec::chain(channel, &[("forward", 0, "")])).unwrap();

    let flight = |delay: i16| [&[0, 2, 0, 1, 0, 40, 0, 1][..], &delay.to_be_bytes()].concat();
    for (delay, format) in [(10, 1), (60, 1), (999, 1), (1_000, 1), (61, 0), (62, 2)] {
        let bytes = flight(delay);
        for topic in [&b""[..], b"topic"] {
            let lens = [topic.len() as u32, bytes.len() as u32];
            let lens = if topic.is_empty() { &lens[1..] } else { &lens[..] };
            let parts = [topic, &bytes].into_iter().filter(|part| !part.is_empty());
            let kind = (FormatId(format), FlowId::DEFAULT);
            let link = world.link.shared_mut();
            world.plane.publish_in(world.now, publisher, kind, (lens, parts), link).unwrap();
        }
    }
    world.run(seconds(0.01));
    assert_eq!(world.status("late").counters.released, 4, "two flights, each with a topic and without");
    assert_eq!(world.status("others").counters.released, 8);
}

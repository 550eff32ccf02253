//! Classification against predicates evaluated one after the other; ids over generations; data items of
//! several messages.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use csp_quality::{
    Descriptor, FieldValue, FlowErrorReason, FlowId, FlowSpec, FlowTable, ItemRule, Predicate, Run,
    TableError,
};
use csp_support::Random;
use csp_types::{Duration, Instant, Prefix};

/// A data item as the reference sees it.
#[derive(Clone, Debug)]
struct Plain {
    network: Option<((IpAddr, u16), (IpAddr, u16))>,
    channel: Option<u32>,
    format: Option<u64>,
    fields: [Option<u64>; 8],
}

fn address(random: &mut Random) -> IpAddr {
    match random.below(4) {
        0 => IpAddr::V6(Ipv6Addr::new(
            0x2001,
            0xdb8,
            random.below(2) as u16,
            0,
            0,
            0,
            0,
            random.below(3) as u16,
        )),
        _ => {
            IpAddr::V4(Ipv4Addr::new(10, random.below(2) as u8, random.below(3) as u8, random.below(4) as u8))
        }
    }
}

fn prefix(random: &mut Random) -> Prefix {
    let address = address(random);
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = [0, 16, 24, bits][random.below(4) as usize];
    let network = match address {
        IpAddr::V4(v4) => {
            IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(32 - length as u32).unwrap_or(0)).into())
        }
        IpAddr::V6(v6) => {
            IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(128 - length as u32).unwrap_or(0)).into())
        }
    };
    Prefix::new(network, length as u8).unwrap()
}

impl Plain {
    fn new(random: &mut Random) -> Plain {
        let ports = |random: &mut Random| random.below(6) as u16;
        let end = |random: &mut Random| (address(random), ports(random));
        let network = (random.below(5) > 0).then(|| (end(random), end(random)));
        let fields = std::array::from_fn(|_| (random.below(2) == 0).then(|| random.below(4)));
        let channel = (random.below(5) > 0).then(|| random.below(4) as u32);
        Plain { network, channel, format: (random.below(2) == 0).then(|| random.below(3)), fields }
    }

    fn descriptor(&self) -> Descriptor {
        let mut descriptor = Descriptor::default();
        if let Some((source, destination)) = self.network {
            descriptor = descriptor.network(source, destination);
        }
        if let Some(channel) = self.channel {
            descriptor = descriptor.channel(channel);
        }
        if let Some(format) = self.format {
            descriptor = descriptor.format(format);
        }
        for (field, value) in self.fields.iter().enumerate().filter_map(|(at, value)| value.map(|v| (at, v)))
        {
            descriptor.set_field(field as u8, FieldValue::unsigned(value));
        }
        descriptor
    }

    fn matches(&self, predicate: &Predicate) -> bool {
        let network = |holds: &dyn Fn((IpAddr, u16), (IpAddr, u16)) -> bool| {
            self.network.is_some_and(|(source, destination)| holds(source, destination))
        };
        predicate.source.is_none_or(|p| network(&|s, _| p.contains(s.0)))
            && predicate.destination.is_none_or(|p| network(&|_, d| p.contains(d.0)))
            && predicate.source_port.as_ref().is_none_or(|r| network(&|s, _| r.contains(&s.1)))
            && predicate.destination_port.as_ref().is_none_or(|r| network(&|_, d| r.contains(&d.1)))
            && predicate.channel.is_none_or(|channel| self.channel == Some(channel))
            && predicate.format.is_none_or(|format| self.format == Some(format))
            && predicate.fields.iter().all(|(field, range)| {
                self.fields[usize::from(*field)]
                    .is_some_and(|value| range.contains(&FieldValue::unsigned(value)))
            })
    }
}

fn predicate(random: &mut Random) -> Predicate {
    let maybe = |random: &mut Random, n: u64| random.below(n) == 0;
    let ports = |random: &mut Random| {
        let first = random.below(6) as u16;
        first..=first + random.below(2) as u16 * 3
    };
    let mut fields = Vec::new();
    for field in 0..3u8 {
        if maybe(random, 4) {
            let first = random.below(4);
            let last = first + random.below(2) * 2;
            fields.push((field, FieldValue::unsigned(first)..=FieldValue::unsigned(last)));
        }
    }
    Predicate {
        source: maybe(random, 3).then(|| prefix(random)),
        destination: maybe(random, 6).then(|| prefix(random)),
        source_port: maybe(random, 10).then(|| ports(random)),
        destination_port: maybe(random, 6).then(|| ports(random)),
        channel: maybe(random, 2).then(|| random.below(4) as u32),
        format: maybe(random, 4).then(|| random.below(3)),
        fields,
    }
}

/// The flow that the first matching predicate names.
fn reference(table: &FlowTable, names: &[String], item: &Plain) -> FlowId {
    let found = names.iter().map(|name| table.id(name).unwrap());
    let mut found = found.filter(|id| item.matches(&table.flow(*id).unwrap().predicate));
    found.next().unwrap_or(FlowId::DEFAULT)
}

#[test]
fn the_first_flow_whose_predicate_holds_gets_an_item() {
    let (mut matched, mut tried) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let count = 1 + random.below(60) as usize;
        let mut specs: Vec<FlowSpec> =
            (0..count).map(|at| FlowSpec::new(&format!("f{at}"), predicate(&mut random))).collect();
        let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        let mut table = match FlowTable::new(64).replace(specs.clone()) {
            Ok(table) => table,
            Err(TableError::Flow(error)) => {
                assert!(matches!(error.reason, FlowErrorReason::Predicate(_)), "{error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        for round in 0..200 {
            if round % 20 == 19 && !names.is_empty() {
                let at = random.below(names.len() as u64) as usize;
                specs[at].predicate = predicate(&mut random);
                table = table.replace(specs.clone()).unwrap();
            }
            let item = Plain::new(&mut random);
            let expected = reference(&table, &names, &item);
            assert_eq!(table.classify(&item.descriptor()), expected, "CSP_SEED={seed}: {item:?}");
            (matched, tried) = (matched + usize::from(expected != FlowId::DEFAULT), tried + 1);
        }
    }
    assert!(matched * 3 > tried && matched < tried, "{matched} of {tried}");
}

#[test]
fn flows_keep_their_ids_by_name_and_free_ids_rest() {
    let spec = |name: &str, channel| {
        FlowSpec::new(name, Predicate { channel: Some(channel), ..Predicate::default() })
    };
    let item = |channel| Descriptor::default().channel(channel);
    let first = FlowTable::new(3).replace(vec![spec("a", 1), spec("b", 2)]).unwrap();
    let (a, b) = (first.id("a").unwrap(), first.id("b").unwrap());
    let second = first.replace(vec![spec("c", 3), spec("b", 4)]).unwrap();
    assert_eq!(second.generation(), first.generation() + 1);
    let c = second.id("c").unwrap();
    assert_eq!(second.id("b"), Some(b));
    assert!(c != a && c != b, "the id of a flow that has just gone is not used as long as there is another");
    assert_eq!([2, 3, 4].map(|channel| second.classify(&item(channel))), [FlowId::DEFAULT, c, b]);
    assert_eq!(first.classify(&item(2)), b, "the former generation is as it was");

    let twice = second.replace(vec![spec("x", 1), spec("x", 2)]);
    assert!(matches!(twice, Err(TableError::Flow(error)) if error.reason == FlowErrorReason::Twice));
    let many = second.replace((0..4).map(|n| spec(&format!("m{n}"), n)).collect());
    assert_eq!(many.unwrap_err().to_string(), "flow \"m3\": there are more than 3 flows");
    let mut default = spec("default", 9);
    default.priority = 7;
    let third = second.replace(vec![default]).unwrap();
    assert_eq!(
        (third.classify(&item(5)), third.flow(FlowId::DEFAULT).unwrap().priority),
        (FlowId::DEFAULT, 7)
    );
}

#[test]
fn a_data_item_is_a_bounded_run_of_one_flow() {
    let mut urgent = FlowSpec::new("urgent", Predicate { channel: Some(1), ..Predicate::default() });
    let range = FieldValue::unsigned(5)..=FieldValue::unsigned(9);
    urgent.predicate.fields.push((2, range));
    urgent.item = ItemRule { messages_max: 3, bytes_max: 1_000, window: Duration::from_millis(1) };
    let table = FlowTable::new(4).replace(vec![urgent]).unwrap();
    let urgent = table.id("urgent").unwrap();
    let message = |field: u64, other: u64| {
        let mut descriptor = Descriptor::default().channel(1);
        descriptor.set_field(2, FieldValue::unsigned(field));
        descriptor.set_field(3, FieldValue::unsigned(other));
        descriptor
    };
    let mut run = Run::default();
    let mut next = |micros: u64, field, other, len| {
        table.next_message(&mut run, Instant::from_nanos(micros * 1_000), &message(field, other), len)
    };
    // A field that no predicate reads does not matter.
    assert_eq!(next(0, 5, 0, 100), (urgent, true));
    assert_eq!(next(1, 5, 1, 100), (urgent, false));
    assert_eq!(next(2, 5, 2, 100), (urgent, false));
    assert_eq!(next(3, 5, 3, 100), (urgent, true), "three messages make an item");
    assert_eq!(next(4, 5, 3, 901), (urgent, true), "or a thousand bytes");
    assert_eq!(next(1_005, 5, 3, 9), (urgent, true), "or a millisecond");
    assert_eq!(next(1_006, 6, 3, 9), (urgent, true), "another value of a field that is read");
    assert_eq!(next(1_007, 4, 3, 9), (FlowId::DEFAULT, true));
}

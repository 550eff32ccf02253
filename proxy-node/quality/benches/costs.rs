//! What the resource manager costs an item. `cargo bench -p csp-quality --bench costs [word]` prints the
//! least of many short runs of what has the word in its name: the least is what other programs on the machine
//! disturb least.
#![allow(missing_docs, clippy::disallowed_types, clippy::unwrap_used, reason = "measures on the real clock")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant as Clock;

use csp_formats::{Cell, Fixed, Load as FieldLoad, Schema};
use csp_handlers::FormatId;
use csp_messages::{FieldReader, FlowFields};
use csp_quality::{
    Action, Capacity, Condition, Cost, Descriptor, FieldValue, FlowId, FlowSpec, FlowTable, Item, LinkConfig,
    MonitorConfig, MonitorMode, Offered, Plan, Predicate, QualityConfig, Resource, ResourceManager, Scheme,
    Threshold, Trigger,
};
use csp_support::Random;
use csp_types::{Duration, Instant};

const RUNS: usize = 200;

/// Prints the least time of an operation over many runs of `count`.
fn report(name: &str, count: usize, mut run: impl FnMut()) {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    if wanted.is_some_and(|word| !name.contains(&word)) {
        return;
    }
    let least = (0..RUNS).map(|_| {
        let began = Clock::now();
        run();
        began.elapsed()
    });
    let least = least.min().unwrap();
    println!("{name:58} {:9.1} ns", least.as_nanos() as f64 / count as f64);
}

fn main() {
    classification();
    fields();
    scheduling();
    switching();
    monitoring();
}

fn equality(at: u32, kinds: u32) -> Predicate {
    let mut predicate = Predicate { channel: Some(at), ..Predicate::default() };
    if !at.is_multiple_of(kinds) {
        let value = FieldValue::unsigned(u64::from(at));
        predicate.fields.push(((at % kinds - 1) as u8, value..=value));
    }
    predicate
}

fn classification() {
    for kinds in [1, 4, 8] {
        let specs = (0..1_000).map(|at| FlowSpec::new(&format!("f{at}"), equality(at, kinds))).collect();
        let table = FlowTable::new(1_000).replace(specs).unwrap();
        let mut random = Random::new(1);
        let items: Vec<Descriptor> = (0..4_096)
            .map(|_| {
                let at = random.below(1_000);
                let mut item = Descriptor::default().channel(at as u32);
                (0..8).for_each(|field| item.set_field(field, FieldValue::unsigned(at)));
                item
            })
            .collect();
        assert!(items.iter().all(|item| table.classify(item) != FlowId::DEFAULT));
        report(&format!("classify, 1,000 flows of equality, {kinds} kinds"), items.len(), || {
            items.iter().for_each(|item| _ = black_box(table.classify(black_box(item))));
        });
    }
}

/// Flows that ask for fields of a format: the fields are read in a record, then the message is classified.
fn fields() {
    let xml = "<messageSchema id=\"40\" version=\"1\"><types><composite name=\"messageHeader\"><type name=\"blockLength\" primitiveType=\"uint16\"/>\
               <type name=\"templateId\" primitiveType=\"uint16\"/><type name=\"schemaId\" primitiveType=\"uint16\"/><type name=\"version\" \
               primitiveType=\"uint16\"/></composite></types><message name=\"Flight\" id=\"1\"><field name=\"number\" id=\"1\" type=\"uint32\"/>\
               <field name=\"delay\" id=\"2\" type=\"int32\"/></message></messageSchema>";
    let schema = Schema::parse(xml).unwrap();
    let located = &schema.messages[0].block.fields;
    let fixed = |fields: &[csp_formats::Field]| Fixed::new(&schema, &schema.messages[0], fields);
    let word = |number: u64| FieldValue::unsigned(Cell::Int(number as i64).order().unwrap());
    let records: Vec<[u8; 16]> = (0..4_096u32)
        .map(|at| {
            let mut record = [8, 0, 1, 0, 40, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            record[8..12].copy_from_slice(&(at % 1_000).to_le_bytes());
            record
        })
        .collect();
    for count in [1, 2] {
        let load = |at: usize| {
            let load = FieldLoad::new(&located[at], 8, schema.byte_order).unwrap();
            (at as u8, fixed(&located[at..=at]), load)
        };
        let reader = FieldReader::new(fixed(&located[..count]), (0..count).map(load).collect());
        let mut places = FlowFields::default();
        (0..64).for_each(|channel| places.add(channel, FormatId(1), reader.clone()));
        let specs = (0..1_000).map(|at| {
            let mut fields = vec![(0, word(at)..=word(at)), (1, word(0)..=word(0))];
            fields.truncate(count);
            FlowSpec::new(&format!("f{at}"), Predicate { channel: Some(7), fields, ..Predicate::default() })
        });
        let table = FlowTable::new(1_000).replace(specs.collect()).unwrap();
        let base = Descriptor::default().channel(7);
        let classify = |record: &[u8]| {
            let mut descriptor = base.format(1);
            places.read((7, FormatId(1)), || std::iter::once(record), record.len(), &mut descriptor);
            table.classify(&descriptor)
        };
        assert!(records.iter().all(|record| classify(record) != FlowId::DEFAULT));
        report(
            &format!("read {count} of a record's fields and classify, 1,000 flows"),
            records.len(),
            || {
                records.iter().for_each(|record| _ = black_box(classify(black_box(record))));
            },
        );
    }
}

fn manager(
    flows: usize,
    handler: bool,
    promised: bool,
    scheme: Scheme,
    mode: MonitorMode,
) -> ResourceManager {
    let link = LinkConfig { bits_per_second: 100_000_000_000, quantum: 16 * 1024 };
    let specs = (0..flows).map(|at| {
        let mut spec = FlowSpec::new(&format!("f{at}"), equality(at as u32, 1));
        spec.priority = (at % 4) as u8;
        spec.item.bytes_max = 1_500;
        spec.post = handler.then(|| "nothing".to_owned());
        if promised {
            spec.reservation.bits_per_second = 80_000_000_000 / flows as u64 / 10;
        }
        spec
    });
    let table = FlowTable::new(flows).replace(specs.collect()).unwrap();
    let capacity = Capacity { contexts: 8, link, point_every: 64 };
    let cost = Cost { item: Duration::from_nanos(100), ..Cost::default() };
    let plan = Plan::new(Arc::new(table), capacity, |_| Some(cost)).unwrap();
    let monitor = MonitorConfig { mode, ..MonitorConfig::default() };
    let config = QualityConfig { contexts: scheme, link: scheme, monitor, ..QualityConfig::default() };
    ResourceManager::new(config, Arc::new(plan), Instant::ZERO)
}

const ITEMS: usize = 10_000;

/// Items of all flows through a manager that always has work of all of them.
struct Load {
    manager: ResourceManager,
    now: Instant,
    next: usize,
    context: u16,
}

impl Load {
    fn new(manager: ResourceManager, flows: usize) -> Load {
        let mut load = Load { manager, now: Instant::ZERO, next: 0, context: 0 };
        // Two of each flow, so that all are active all the time.
        (0..2 * flows.max(8)).for_each(|_| load.offer(load.next % flows));
        load
    }

    fn offer(&mut self, at: usize) {
        self.next += 1;
        let item = Item { handle: at as u64, bytes: 1_000, messages: 1, arrived: self.now };
        let offered = self.manager.offer(self.now, FlowId(at as u16 + 1), item, |_| ());
        assert_eq!(offered, Offered::Queued);
    }

    /// Another item of the flow whose item left.
    fn link(&mut self) {
        // The time of one item at the link's rate.
        self.now += Duration::from_nanos(80);
        while let Some(released) = self.manager.release(self.now) {
            self.offer(usize::from(released.flow.0) - 1);
        }
    }

    fn contexts(&mut self) {
        self.now += Duration::from_nanos(80);
        self.context = (self.context + 1) % 8;
        if let Some(taken) = self.manager.take(self.now, self.context) {
            let flow = usize::from(taken.flow.0) - 1;
            self.manager.finish(self.now, taken, None);
            self.offer(flow);
        }
    }
}

fn scheduling() {
    for flows in [1, 100, 10_000] {
        for scheme in Scheme::ALL {
            let short = scheme.abbreviation();
            for promised in [false, true] {
                if promised && scheme != Scheme::PriorityAwareReserved {
                    continue;
                }
                let what = if promised { ", all promised" } else { "" };
                let mut load = Load::new(manager(flows, false, promised, scheme, MonitorMode::Off), flows);
                report(&format!("link: offer and release, {short}{what}, {flows} flows"), ITEMS, || {
                    (0..ITEMS).for_each(|_| load.link());
                });
                let mut load = Load::new(manager(flows, true, promised, scheme, MonitorMode::Off), flows);
                report(
                    &format!("contexts: offer, take, finish, {short}{what}, {flows} flows"),
                    ITEMS,
                    || {
                        (0..ITEMS).for_each(|_| load.contexts());
                    },
                );
            }
        }
    }
}

/// Time of a switch and of the first choice after it.
fn switching() {
    for flows in [100, 1_000, 10_000] {
        for scheme in Scheme::ALL {
            let mut load =
                Load::new(manager(flows, false, false, Scheme::RoundRobin, MonitorMode::Off), flows);
            let name = format!("switch to {} and back, {flows} active flows", scheme.abbreviation());
            report(&name, 2, || {
                load.manager.switch(load.now, Resource::Link, scheme);
                load.manager.switch(load.now, Resource::Contexts, scheme);
                load.link();
                load.manager.switch(load.now, Resource::Link, Scheme::RoundRobin);
                load.manager.switch(load.now, Resource::Contexts, Scheme::RoundRobin);
                load.link();
            });
        }
    }
}

fn monitoring() {
    use MonitorMode::*;
    for mode in [Off, Queues, Priorities, Flows] {
        for triggers in [0, 8] {
            let mut manager = manager(100, false, false, Scheme::PriorityAware, mode);
            let trigger = |at: usize| Trigger {
                name: format!("t{at}"),
                condition: Condition::QueueAbove(
                    FlowId(at as u16 + 1),
                    Threshold { fire: 1_000, release: 10 },
                ),
                hold: Duration::ZERO,
                release_hold: Duration::from_millis(1),
                fire: vec![Action::Raise("full".to_owned())],
                release: Vec::new(),
            };
            manager.set_triggers((0..triggers).map(trigger).collect()).unwrap();
            let mut load = Load::new(manager, 100);
            report(&format!("monitor {mode:?}, {triggers} triggers: offer and release"), ITEMS, || {
                (0..ITEMS).for_each(|_| load.link());
            });
        }
    }
}

//! Classifying, offering, processing and releasing items, and switches between RR, PA and PAR at the link,
//! allocate nothing.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use csp_quality::{
    Capacity, Cost, Descriptor, FlowId, FlowSpec, FlowTable, Item, LinkConfig, MonitorConfig, MonitorMode,
    Overflow, Plan, Predicate, QualityConfig, QueueBounds, Resource, ResourceManager, Run, Scheme,
};
use csp_support::allocation;
use csp_types::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

#[test]
fn the_data_path_allocates_nothing() {
    let specs = (0..50u32).map(|at| {
        let mut spec =
            FlowSpec::new(&format!("f{at}"), Predicate { channel: Some(at), ..Predicate::default() });
        spec.priority = (at % 5) as u8;
        spec.bounds = QueueBounds { items: 20, bytes: 1 << 20 };
        spec.overflow = [Overflow::Hold, Overflow::DropNewest, Overflow::DropOldest][at as usize % 3];
        spec.post = (at % 2 == 0).then(|| "handler".to_owned());
        spec.item.bytes_max = 1_000;
        spec.reservation.bits_per_second = u64::from(at % 7) * 1_000_000;
        spec
    });
    let table = Arc::new(FlowTable::new(64).replace(specs.collect()).unwrap());
    let link = LinkConfig { bits_per_second: 1_000_000_000, quantum: 16_384 };
    let capacity = Capacity { contexts: 8, link, point_every: 8 };
    let cost = Cost { item: Duration::from_micros(2), ..Cost::default() };
    let plan = Plan::new(Arc::clone(&table), capacity, |_| Some(cost)).unwrap();
    let monitor = MonitorConfig { mode: MonitorMode::Flows, ..MonitorConfig::default() };
    let config = QualityConfig { monitor, ..QualityConfig::default() };
    let mut manager = ResourceManager::new(config, Arc::new(plan), Instant::ZERO);
    let (mut run, mut released) = (Run::default(), 0);
    let before = allocation::count();
    for n in 0..30_000u64 {
        let now = Instant::from_nanos(n * 2_000);
        let descriptor = Descriptor::default().channel((n * 7 % 60) as u32);
        let (flow, _) = table.next_message(&mut run, now, &descriptor, 500);
        let item = Item { handle: n, bytes: 500, messages: 1, arrived: now };
        _ = manager.offer(now, flow, item, |_| ());
        if let Some(taken) = manager.take(now, (n % 8) as u16) {
            manager.finish(now, taken, Some(500));
        }
        released += usize::from(manager.release(now).is_some());
        let scheme = [Scheme::RoundRobin, Scheme::PriorityAware, Scheme::PriorityAwareReserved]
            [n as usize / 1_000 % 3];
        manager.switch(now, Resource::Link, scheme);
        manager.control(now);
    }
    assert_eq!(allocation::count() - before, 0);
    assert!(released > 10_000 && manager.observe(Instant::from_nanos(60_000_000), FlowId(1)).leaving > 0);
}

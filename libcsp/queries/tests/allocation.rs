//! A plan is evaluated over messages, and rows are written, without allocation.

mod common;

use common::{channels, flight, plan, written};
use csp_formats::MessageView;
use csp_support::allocation;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

#[test]
fn selecting_and_projecting_a_message_allocates_nothing() {
    let sql = "SELECT *, delay + 1 AS later, distance / 2 AS half FROM flights WHERE origin = 'EWR' AND remark LIKE '%A%' AND \
               carrier IN ('United', 'JetBlue') AND HAS(services, 'wifi') AND NOT delay IS NULL";
    let plan = plan(sql).unwrap_or_else(|error| panic!("{error}"));
    let bytes = written(&channels().flights, &flight());
    let slices: Vec<&[u8]> = bytes.chunks(10).collect();
    let mut out = [0; 1024];
    let before = allocation::count();
    let view = MessageView::new(&plan.sources[0].schema, &slices).expect("valid");
    let accepted = plan.accepts(&[&view]).expect("valid");
    let len = plan.emit(&[&view], &[], &mut out);
    assert_eq!(allocation::count() - before, 0);
    assert!(accepted && len.is_ok());
}

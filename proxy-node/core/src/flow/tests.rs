//! The table and its lists.

use super::*;
use crate::events::new_flow;

fn flow(index: usize, stage: Stage) -> Flow {
    let tuple = FourTuple { local: ([10, 0, 0, 1], 80).into(), remote: ([10, 0, 0, 2], 1000).into() };
    new_flow(Instant::ZERO, (FlowLabel::new(index as u32, 0), tuple), 0, stage, 0)
}

fn open(channel: u32) -> Stage {
    Stage::Open(Attachment { channel: ChannelId(channel), choice: None })
}

fn of(table: &FlowTable, channel: u32) -> Vec<usize> {
    table.of_channel(ChannelId(channel)).map(|f| f.label.index()).collect()
}

fn newest(table: &FlowTable) -> Vec<usize> {
    table.newest().map(|f| f.label.index()).collect()
}

#[test]
fn lists_agree_with_a_walk_over_all_flows() {
    let mut table = FlowTable::new([(1, 60), (1_000, 4)]);
    let mut order: Vec<usize> = Vec::new();
    let mut state = 5u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let index = [1, 940][usize::from(state >> 33 & 63 >= 60)] + (state >> 33) as usize % 64;
        let stage = match state >> 60 {
            0..=3 => Stage::Pending,
            4..=5 => Stage::Finishing,
            n => open(n as u32 % 4),
        };
        let label = FlowLabel::new(index as u32, 0);
        order.retain(|i| *i != index);
        match (table.get(label).is_some(), state >> 40 & 3) {
            (true, 0) => drop(table.remove(label)),
            (true, _) => {
                order.push(index);
                assert!(table.set_stage(Instant::ZERO, label, stage).is_some());
            }
            (false, _) => {
                order.push(index);
                assert!(table.insert(flow(index, stage)).is_none());
            }
        }
        assert_eq!(newest(&table), order.iter().rev().copied().collect::<Vec<_>>());
        assert_eq!(table.len(), order.len());
        for channel in 0..4 {
            let mut listed = of(&table, channel);
            listed.sort_unstable();
            let bound = |f: &&Flow| f.channel() == Some(ChannelId(channel));
            let mut walked: Vec<_> = table.newest().filter(bound).map(|f| f.label.index()).collect();
            walked.sort_unstable();
            assert_eq!(listed, walked);
        }
    }
}

#[test]
fn why_it_ends_counts_more_than_who_had_finished_and_the_first_reason_more_than_later_ones() {
    let mut table = FlowTable::new([(1, 10), (0, 0)]);
    let label = FlowLabel::new(5, 0);
    for (said, expected) in [
        (vec![End::ClosedByClient, End::ClosedByServer], End::ClosedByClient),
        (vec![End::ClosedByServer, End::ClientReset, End::ServerReset], End::ClientReset),
    ] {
        table.insert(flow(5, Stage::Pending));
        said.into_iter().for_each(|end| table.ends(label, end));
        table.ends(FlowLabel::new(5, 1), End::Idle);
        table.ends(FlowLabel::new(500, 0), End::Idle);
        assert_eq!(table.get(label).and_then(|flow| flow.end), Some(expected));
    }
}

#[test]
fn what_an_older_generation_left_leaves_its_lists() {
    let mut table = FlowTable::new([(1, 4), (0, 0)]);
    table.insert(flow(2, open(1)));
    let mut newer = flow(2, open(2));
    newer.label = FlowLabel::new(2, 1);
    assert_eq!(table.insert(newer).map(|f| f.label), Some(FlowLabel::new(2, 0)));
    assert_eq!((of(&table, 1), of(&table, 2), table.len()), (vec![], vec![2], 1));
    assert!(table.set_stage(Instant::ZERO, FlowLabel::new(2, 0), Stage::Pending).is_none());
}

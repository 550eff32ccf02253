//! Elections on virtual time: network nodes and proxies with clocks of their own, messages that take time,
//! cuts, stops and deaths.
#![allow(clippy::unwrap_used, reason = "tests")]

mod faults;
mod world;

use csp_types::{Duration, NodeId};

use crate::{Change, Group, GroupId, LostBy};
use world::World;

const WEB: GroupId = GroupId(7);

fn node(number: usize) -> NodeId {
    format!("nn-{number}").parse().unwrap()
}

fn group(prefer: &[usize], failback: Option<u64>) -> Group {
    let prefer = prefer.iter().map(|number| node(*number)).collect();
    Group { id: WEB, prefer, failback: failback.map(Duration::from_millis) }
}

/// A world that has elected.
fn elected(nodes: usize, voters: usize, group: Group) -> World {
    let mut world = World::new(1, nodes, voters, &[group]);
    world.run(2_000);
    world
}

#[test]
fn the_preferred_node_is_chosen_and_stays() {
    let mut world = elected(3, 3, group(&[1], None));
    assert_eq!(world.holders(WEB), [1]);
    world.run(10_000);
    assert_eq!(world.holders(WEB), [1]);
    assert_eq!(world.changes(1), [Change::Gained { group: WEB, epoch: world.epoch(1) }], "once");
    assert_eq!(world.claimed(WEB), vec![Some(node(1)); 3]);
}

#[test]
fn groups_without_preference_spread_over_the_nodes() {
    let group = |number: u64| Group { id: GroupId(number), prefer: Vec::new(), failback: None };
    let groups: Vec<Group> = (0..30).map(group).collect();
    let mut world = World::new(1, 3, 3, &groups);
    world.run(3_000);
    let mut of_node = [0; 3];
    for group in &groups {
        let [holder] = world.holders(group.id)[..] else { panic!("one holder of {:?}", group.id) };
        of_node[holder] += 1;
    }
    assert!(of_node.iter().all(|count| *count >= 4), "{of_node:?} of 30");
}

#[test]
fn a_dead_node_is_followed_at_once() {
    let mut world = elected(2, 3, group(&[0], None));
    world.kill(0);
    let taken = world.run_until(1_000, |world| world.holders(WEB) == [1]).expect("a successor");
    assert!(taken <= 150, "{taken} ms");
}

#[test]
fn a_silent_node_is_followed_when_its_votes_have_run_out() {
    let mut world = elected(2, 3, group(&[0], None));
    world.stop(0);
    let taken = world.run_until(2_000, |world| world.holders(WEB) == [1]).expect("a successor");
    assert!((600..=1_200).contains(&taken), "{taken} ms");
    // It looks at the clock before it does anything.
    world.go_on(0);
    assert_eq!(world.holders(WEB), [1]);
    world.run(2_000);
    assert_eq!(world.holders(WEB), [1], "it does not fail back: the group says never");
    assert_eq!(world.changes(0).last(), Some(&Change::Lost { group: WEB, by: LostBy::Time }));
}

#[test]
fn a_node_that_is_back_gets_its_group_once_it_has_been_well() {
    let mut world = elected(2, 3, group(&[0], Some(3_000)));
    world.kill(0);
    world.run(1_000);
    assert_eq!(world.holders(WEB), [1]);
    world.start(0);
    world.run(2_500);
    assert_eq!(world.holders(WEB), [1], "it is not well for long enough");
    let taken = world.run_until(2_000, |world| world.holders(WEB) == [0]).expect("its group");
    assert!(taken <= 1_500, "{taken} ms");
    let gap = world.longest_vacancy(WEB, 4_000);
    assert!(gap <= 60, "nobody held it for {gap} ms while it moved");
}

#[test]
fn a_node_that_drains_or_cannot_transmit_yields() {
    for (able, draining) in [(true, true), (false, false)] {
        let mut world = elected(3, 3, group(&[0, 2], None));
        assert_eq!(world.holders(WEB), [0]);
        world.condition(0, able, draining);
        let taken = world.run_until(1_000, |world| world.holders(WEB) == [2]).expect("the next best");
        assert!(taken <= 250, "{taken} ms");
        world.run(2_000);
        assert_eq!(world.holders(WEB), [2]);
    }
}

#[test]
fn the_only_node_keeps_its_group_although_it_drains() {
    let mut world = elected(1, 3, group(&[], None));
    world.condition(0, true, true);
    world.run(2_000);
    assert_eq!(world.holders(WEB), [0]);
    world.leave(0);
    world.run(1_000);
    assert_eq!(world.holders(WEB), [] as [usize; 0], "it has left");
}

#[test]
fn votes_are_needed_to_keep_a_group_and_more_to_take_it() {
    // (voters, dead voters, whether the holder stays, whether another can take over from it)
    for (voters, dead, stays, followed) in [
        (1, 0, true, true),
        (1, 1, false, false),
        (2, 1, true, false),
        (3, 1, true, true),
        (3, 2, false, false),
        (4, 2, true, false),
        (5, 2, true, true),
        (5, 3, false, false),
    ] {
        let what = format!("{dead} of {voters} voters are dead");
        let mut world = elected(2, voters, group(&[0], None));
        (0..dead).for_each(|voter| world.kill_voter(voter));
        world.run(3_000);
        assert_eq!(world.holders(WEB) == [0], stays, "{what}");
        world.kill(0);
        world.run(3_000);
        assert_eq!(world.holders(WEB) == [1], followed, "{what}, and the holder, too");
    }
}

#[test]
fn without_etcd_a_majority_is_needed_to_keep_a_group() {
    let mut world = elected(2, 2, group(&[0], None));
    world.kill_voter(1);
    world.run(1_000);
    assert_eq!(world.holders(WEB), [0], "one of two is enough");
    world.cut_off(0, true);
    world.run(1_000);
    assert_eq!(
        world.holders(WEB),
        [] as [usize; 0],
        "another one may have been told that the second is gone"
    );
    world.cut_off(0, false);
    world.start_voter(1);
    world.run(3_000);
    assert_eq!(world.holders(WEB), [0]);
}

#[test]
fn voters_that_come_together_take_no_group_away() {
    let mut world = World::new(1, 2, 5, &[group(&[0], None)]);
    (1..5).for_each(|voter| world.kill_voter(voter));
    world.voters(1);
    world.run(2_000);
    assert_eq!(world.holders(WEB), [0]);
    world.voters(5);
    (1..5).for_each(|voter| world.start_voter(voter));
    world.run(3_000);
    assert_eq!(world.changes(0).len(), 1, "it never lost it");
    assert_eq!(world.holders(WEB), [0]);
}

#[test]
fn a_node_that_starts_behind_a_cut_does_not_keep_a_group_with_a_minority() {
    let mut world = elected(2, 3, group(&[0], None));
    world.kill(0);
    world.run(1_000);
    assert_eq!(world.holders(WEB), [1]);
    world.cut(0, 2, true);
    world.start(0);
    world.kill(1);
    world.run(1_000);
    assert_eq!(world.holders(WEB), [0], "two of three proxies are a majority");
    world.cut(0, 1, true);
    world.start(1);
    world.run(3_000);
    assert_eq!(world.holders(WEB), [1], "the majority is at the other one");
}

#[test]
fn nodes_that_prefer_each_other_do_not_pass_a_group_to_and_fro() {
    let mut world = elected(2, 3, group(&[0], Some(100)));
    world.run(5_000);
    // A policy that only one of them has yet.
    world.groups_of(1, &[group(&[0], Some(100))]);
    world.groups_of(0, &[group(&[1], Some(100))]);
    let before = world.changes(0).len();
    world.run(5_000);
    let changes = world.changes(0).len() - before;
    assert!(changes <= 10, "{changes} changes in 5 s");
}

#[test]
fn voters_that_start_anew_do_not_take_a_group_away() {
    let mut world = elected(2, 3, group(&[0], None));
    for voter in 0..3 {
        world.kill_voter(voter);
        world.start_voter(voter);
        world.run(1_500);
        assert_eq!(world.holders(WEB), [0], "after voter {voter}");
    }
    assert_eq!(world.changes(0).len(), 1, "it never lost it");
}

#[test]
fn a_group_that_is_taken_out_is_given_up() {
    let mut world = elected(2, 3, group(&[0], None));
    world.groups(&[]);
    world.run(300);
    assert_eq!(world.holders(WEB), [] as [usize; 0]);
    assert_eq!(world.changes(0).last(), Some(&Change::Lost { group: WEB, by: LostBy::Policy }));
    world.groups(&[group(&[1], None)]);
    world.run(1_000);
    assert_eq!(world.holders(WEB), [1]);
}

/// Runs a world with random faults, and checks that it recovers.
fn survive(seed: u64) {
    faults::run(seed);
}

#[test]
fn nobody_holds_what_another_holds_whatever_happens() {
    let seeds = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    (0..seeds).for_each(survive);
}

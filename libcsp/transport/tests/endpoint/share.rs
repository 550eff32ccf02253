//! The share of the links that one user's processes may hold.

use csp_transport::token::TokenClaims;
use csp_transport::{DownReason, LinkId, Purpose, RefusalCode, Token};
use csp_types::Role;

use crate::harness::*;

const USER: u32 = 1000;
/// The links of a proxy of the harness, and those that one user alone can have.
const LINKS: usize = 8;
const HALF: usize = LINKS / 2;

fn token_of(name: &str, uid: u32) -> Token {
    signed(&TokenClaims { uid: Some(uid), ..claims(Role::Process, "an-1", process(name), 1) })
}

/// Processes of a user, each with a link that it asks for.
fn processes(world: &World, names: core::ops::Range<u32>, uid: u32) -> Vec<(Side, LinkId)> {
    let begin = |number| {
        let name = format!("p{uid}.{number}");
        let mut side = world.process(&name, 8);
        let link = connect(world, &mut side, Purpose::Channel, (0, 1), &token_of(&name, uid));
        (side, link)
    };
    names.map(begin).collect()
}

/// All of them take turns, the proxy after them.
fn settle(world: &mut World, asking: &mut [(Side, LinkId)], proxy: &mut Side) {
    let mut sides: Vec<&mut Side> = asking.iter_mut().map(|(side, _)| side).chain([proxy]).collect();
    world.step(ms(1), &mut sides);
}

fn refused((side, link): &(Side, LinkId)) -> bool {
    matches!(side.down(*link), Some(DownReason::Refused { code: RefusalCode::Full, .. }))
}

#[test]
fn a_user_has_at_most_half_of_the_links_and_others_theirs() {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut one_by_one = Vec::new();
    for number in 0..HALF as u32 + 1 {
        let mut next = processes(&world, number..number + 1, USER);
        settle(&mut world, &mut next, &mut proxy);
        one_by_one.append(&mut next);
    }
    assert_eq!(one_by_one.iter().map(refused).collect::<Vec<_>>(), [false, false, false, false, true]);
    assert_eq!((proxy.up().len(), proxy.counters().refused_share), (HALF, 1));
    // Another user has half of the rest, and root what is left.
    for (uid, expected) in [(USER + 1, 2), (0, 2)] {
        let before = proxy.up().len();
        for number in 0..expected as u32 + 1 {
            let mut next = processes(&world, number..number + 1, uid);
            settle(&mut world, &mut next, &mut proxy);
            one_by_one.append(&mut next);
        }
        assert_eq!(proxy.up().len() - before, expected, "{uid}");
    }
}

/// Each of the HELLOs alone is within the share.
#[test]
fn links_that_open_at_once_do_not_exceed_the_share() {
    for open in 0..=HALF as u32 {
        let mut world = World::new();
        let mut proxy = world.proxy(8);
        let mut held = processes(&world, 0..open, USER);
        settle(&mut world, &mut held, &mut proxy);
        assert_eq!(proxy.up().len(), open as usize);
        let mut at_once = processes(&world, open..open + HALF as u32, USER);
        settle(&mut world, &mut at_once, &mut proxy);
        assert_eq!((proxy.up().len(), proxy.counters().refused_share), (HALF, u64::from(open)), "{open}");
        // The proxy ends the links of late processes, which see that; the other processes keep theirs.
        let late = at_once.iter().filter(|(side, link)| side.down(*link).is_some()).count();
        assert_eq!(late, open as usize);
        assert_eq!(proxy.endpoint.links().count(), HALF);
        // The share is free again when a link ends.
        let Some((mut side, link)) = held.pop() else { continue };
        side.endpoint.close(world.now, link);
        settle(&mut world, &mut [(side, link)], &mut proxy);
        let mut next = processes(&world, 100..101, USER);
        settle(&mut world, &mut next, &mut proxy);
        assert_eq!(proxy.up().len(), HALF);
    }
}

/// Peers that only connect give way, and so do not lessen anybody's share.
#[test]
fn strangers_take_nothing_of_a_share() {
    let mut world = World::new();
    let mut proxy = world.proxy(8);
    let mut held = processes(&world, 0..HALF as u32 - 1, USER);
    settle(&mut world, &mut held, &mut proxy);
    let mut mute = world.raw("mute");
    for _ in 0..HALF {
        mute.connect(&world.address(), crate::hostile::CONFIG, &[]).unwrap();
    }
    settle(&mut world, &mut [], &mut proxy);
    assert_eq!(proxy.endpoint.links().count(), LINKS - 1);
    let mut last = processes(&world, 10..11, USER);
    settle(&mut world, &mut last, &mut proxy);
    assert_eq!((proxy.up().len(), proxy.counters().refused_share), (HALF, 0));
}

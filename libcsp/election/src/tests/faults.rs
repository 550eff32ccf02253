//! Random faults, and recovery from them.

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::world::World;
use super::{WEB, group};

/// How long a world is disturbed, and how long it then has to recover, in ms.
const DISTURBED: u64 = 12_000;
const RECOVERY: u64 = 5_000;

/// Disturbs a world for a while. That two nodes hold a group at once fails at any step.
pub(super) fn run(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (nodes, voters) = (rng.random_range(1..=4), rng.random_range(1..=5));
    let mut world = World::new(seed, nodes, voters, &[group(&[rng.random_range(0..nodes)], Some(1_000))]);
    world.delay = rng.random_range(0..=150);
    world.run(1_500);
    while world.now < DISTURBED {
        let (node, voter) = (rng.random_range(0..nodes), rng.random_range(0..voters));
        match rng.random_range(0..11) {
            0 => world.kill(node),
            1 | 2 => world.start_if_dead(node),
            3 => world.stop(node),
            4 => world.go_on(node),
            5 => world.kill_voter(voter),
            6 => world.start_voter(voter),
            7 => world.stop_voter(voter, rng.random_bool(0.5)),
            8 | 9 => world.cut(node, voter, rng.random_bool(0.5)),
            _ => world.condition(node, rng.random_bool(0.7), rng.random_bool(0.2)),
        }
        world.run(rng.random_range(0..900));
    }
    world.delay = 5;
    for node in 0..nodes {
        (0..voters).for_each(|voter| world.cut(node, voter, false));
        world.start_if_dead(node);
        world.go_on(node);
        world.condition(node, true, false);
    }
    for voter in 0..voters {
        world.start_voter(voter);
        world.stop_voter(voter, false);
    }
    world.run(RECOVERY);
    let holders = world.holders(WEB);
    assert_eq!(holders.len(), 1, "seed {seed}: {nodes} nodes, {voters} voters, held by {holders:?}");
    let claimed = world.claimed(WEB);
    assert!(
        claimed.iter().all(|claim| *claim == Some(super::node(holders[0]))),
        "seed {seed}: {holders:?} holds, and proxies know {claimed:?}"
    );
}

impl World {
    fn start_if_dead(&mut self, node: usize) {
        if !self.lives(node) {
            self.start(node);
        }
    }
}

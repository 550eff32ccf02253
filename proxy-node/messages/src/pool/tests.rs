use super::*;
use csp_support::Random;

const BLOCK: u64 = 64;

fn pool(blocks: u32) -> MessagePool {
    let mut pool = MessagePool::new(PoolConfig { block_len: BLOCK as u32, blocks }, 3);
    pool.set_budget(0, Some(Budget { guaranteed: 0, max: u64::from(blocks) * BLOCK })).unwrap();
    pool
}

fn store(
    pool: &mut MessagePool,
    channel: u16,
    frames: &[u32],
    bytes: &[u8],
) -> Result<MessageHandle, PoolError> {
    pool.store(channel, (Instant::ZERO, 1), frames, bytes.chunks(7))
}

#[test]
fn a_message_comes_back_as_it_was_stored() {
    let mut pool = pool(16);
    let bytes: Vec<u8> = (0..200).collect();
    for frames in [&[200][..], &[0, 200], &[64, 64, 72], &[1, 0, 199, 0]] {
        let handle = store(&mut pool, 0, frames, &bytes).unwrap();
        assert_eq!(pool.slices(handle).collect::<Vec<_>>().concat(), bytes);
        assert_eq!(pool.slices(handle).count(), 4);
        assert_eq!(pool.frame_lens(handle).collect::<Vec<_>>(), frames);
        for (start, len) in [(0, 10), (60, 10), (64, 64), (190, 100), (200, 1), (500, 1)] {
            let part = &bytes[(start as usize).min(200)..(start as usize + len as usize).min(200)];
            assert_eq!(pool.range(handle, start, len).collect::<Vec<_>>().concat(), part, "{start} {len}");
        }
        assert_eq!(pool.prefix(handle, 5), &bytes[..5]);
        assert!(pool.release(handle));
    }
    let empty = store(&mut pool, 0, &[0], &[]).unwrap();
    assert_eq!((pool.slices(empty).count(), pool.occupancy().blocks_used), (0, 1));
    pool.release(empty);
    assert_eq!(pool.occupancy(), Occupancy { blocks: 16, ..Occupancy::default() });
}

#[test]
fn a_stale_handle_is_refused() {
    let mut pool = pool(4);
    let old = store(&mut pool, 0, &[3], b"old").unwrap();
    assert!(pool.refer(old, 1) && pool.release(old) && pool.release(old));
    let new = store(&mut pool, 0, &[3], b"new").unwrap();
    assert_eq!((old.index, pool.info(old)), (new.index, None), "the block is used again");
    assert!(!pool.release(old) && !pool.refer(old, 1));
    assert_eq!((pool.slices(old).count(), pool.frame_lens(old).count()), (0, 0));
    assert_eq!(pool.counters().stale_handles, 2);
    assert_eq!(pool.prefix(new, 9), b"new");
}

#[test]
fn what_does_not_fit_its_description_is_refused_and_leaves_nothing() {
    let mut pool = pool(4);
    let cases: [(&[u32], &[u8], PoolError); 6] = [
        (&[], b"", PoolError::NoFrames),
        (&[1; FRAMES_MAX + 1], &[0; FRAMES_MAX + 1], PoolError::TooManyFrames(FRAMES_MAX + 1)),
        (&[4], b"abc", PoolError::LengthMismatch),
        (&[2], b"abc", PoolError::LengthMismatch),
        (&[u32::MAX, 1], b"abc", PoolError::Budget),
        (&[257], &[0; 257], PoolError::Budget),
    ];
    for (frames, bytes, error) in cases {
        assert_eq!(store(&mut pool, 0, frames, bytes), Err(error));
        assert_eq!(pool.occupancy().blocks_used, 0);
    }
    assert_eq!(store(&mut pool, 1, &[1], b"a"), Err(PoolError::UnknownChannel(1)));
    assert_eq!(store(&mut pool, 9, &[1], b"a"), Err(PoolError::UnknownChannel(9)));
}

#[test]
fn a_flood_leaves_what_others_are_guaranteed() {
    let mut pool = pool(10);
    pool.set_budget(1, Some(Budget { guaranteed: 4 * BLOCK, max: 6 * BLOCK })).unwrap();
    let mut flood: Vec<_> = std::iter::from_fn(|| store(&mut pool, 0, &[1], b"f").ok()).collect();
    assert_eq!((flood.len(), pool.admit(0, 1)), (6, Err(PoolError::Exhausted)));
    let kept: Vec<_> = std::iter::from_fn(|| store(&mut pool, 1, &[1], b"k").ok()).collect();
    assert_eq!((kept.len(), pool.admit(1, 1)), (4, Err(PoolError::Exhausted)));
    flood.drain(..3).for_each(|handle| assert!(pool.release(handle)));
    let more: Vec<_> = std::iter::from_fn(|| store(&mut pool, 1, &[1], b"k").ok()).collect();
    assert_eq!((more.len(), pool.admit(1, 1)), (2, Err(PoolError::Budget)));
    assert_eq!(pool.usage(1), Usage { guaranteed: 4, max: 6, used: 6 });
}

#[test]
fn guarantees_fit_the_pool() {
    let mut pool = pool(10);
    let budget = |guaranteed, max| Some(Budget { guaranteed, max });
    assert_eq!(pool.set_budget(1, budget(2, 1)), Err(BudgetError::GuaranteeAboveMax));
    assert_eq!(pool.set_budget(9, None), Err(BudgetError::Channel));
    assert_eq!(pool.set_budget(1, budget(8 * BLOCK, 8 * BLOCK)), Ok(()));
    assert_eq!(pool.set_budget(2, budget(3 * BLOCK, 3 * BLOCK)), Err(BudgetError::Guarantees(2)));
    assert_eq!(pool.set_budget(1, budget(10 * BLOCK, 10 * BLOCK)), Ok(()));
    assert_eq!(pool.set_budget(1, None), Ok(()));
    assert_eq!(pool.occupancy().blocks_reserved, 0);
}

/// A guarantee that is set while the memory is in use admits nothing beyond the pool.
#[test]
fn budgets_hold_in_any_order_of_use() {
    for seed in 0..50 {
        let (mut random, mut pool) = (Random::new(seed), pool(32));
        let mut stored: Vec<(MessageHandle, Vec<u8>)> = Vec::new();
        for _ in 0..2_000 {
            match random.below(8) {
                0 => {
                    let budget = Budget { guaranteed: random.below(10) * BLOCK, max: 10 * BLOCK };
                    let channel = random.below(3) as u16;
                    let _ = pool.set_budget(channel, Some(budget));
                }
                1..4 if !stored.is_empty() => {
                    let at = random.below(stored.len() as u64) as usize;
                    let (handle, bytes) = stored.swap_remove(at);
                    assert_eq!(pool.slices(handle).collect::<Vec<_>>().concat(), bytes, "seed {seed}");
                    assert!(pool.release(handle), "seed {seed}");
                }
                _ => {
                    let bytes = vec![random.number() as u8; random.below(300) as usize];
                    let channel = random.below(3) as u16;
                    let admitted = pool.admit(channel, bytes.len() as u32);
                    let done = store(&mut pool, channel, &[bytes.len() as u32], &bytes);
                    assert_eq!(done.map(|_| ()), admitted, "seed {seed}");
                    stored.extend(done.map(|handle| (handle, bytes)));
                }
            }
            let used: u32 = (0..3).map(|channel| pool.usage(channel).used).sum();
            let Occupancy { blocks_used, messages, .. } = pool.occupancy();
            assert_eq!((used, messages as usize), (blocks_used, stored.len()), "seed {seed}");
            assert!(used <= 32, "seed {seed}");
        }
    }
}

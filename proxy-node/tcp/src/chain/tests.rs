use super::*;
use crate::blocks::Direction;

const ALL: Allowance = Allowance { reserve: 0, in_place: u32::MAX, blocks: u32::MAX };

fn read(chain: &mut Chain, pool: &BlockPool, position: u32, len: usize) -> Vec<u8> {
    chain.slices(pool, position, len).flatten().copied().collect()
}

#[test]
fn bytes_copied_in_any_order_are_read_in_place() {
    let mut pool = BlockPool::new(4, 512, 1);
    let mut chain = Chain::EMPTY;
    let data: Vec<u8> = (0..1500u32).map(|n| (n * 7) as u8).collect();
    assert_eq!(chain.insert(&mut pool, 1600, &data[900..], None, ALL), 600);
    assert_eq!(chain.insert(&mut pool, 700, &data[..900], None, ALL), 900);
    assert_eq!(pool.free(), 0, "positions 512..2560");
    assert_eq!(read(&mut chain, &pool, 700, 1500), data);
    assert_eq!(read(&mut chain, &pool, 1000, 10), data[300..310]);
    chain.release_before(&mut pool, 1536);
    assert_eq!(pool.free(), 2);
    assert_eq!(read(&mut chain, &pool, 1536, 664), data[836..]);
    assert_eq!(read(&mut chain, &pool, 700, 3), [0u8; 0], "released bytes are gone");
    chain.clear(&mut pool);
    assert_eq!((pool.free(), chain.held()), (4, 0));
}

#[test]
fn an_empty_pool_and_a_reserve_end_the_chain_early() {
    let mut pool = BlockPool::new(2, 512, 1);
    let (mut chain, mut other) = (Chain::EMPTY, Chain::EMPTY);
    assert_eq!(chain.insert(&mut pool, 0, &[1; 5000], None, ALL), 1024);
    assert_eq!(other.insert(&mut pool, 0, &[2], None, ALL), 0);
    chain.release_before(&mut pool, 512);
    let careful = Allowance { reserve: 1, ..ALL };
    assert_eq!(other.insert(&mut pool, 10, &[2], None, careful), 0, "the last block is reserved");
    let limited = Allowance { blocks: 0, ..ALL };
    assert_eq!(other.insert(&mut pool, 10, &[2], None, limited), 0, "the chain is at its limit");
    assert_eq!(other.insert(&mut pool, 10, &[2], None, ALL), 1);
    other.clear(&mut pool);
    chain.clear(&mut pool);
    assert_eq!(pool.free(), 2);
}

#[test]
fn long_payload_stays_in_its_buffer_until_it_is_released() {
    let mut pool = BlockPool::new(128, 512, 4000);
    let mut chain = Chain::EMPTY;
    let mut buffer = pool.lend(Direction::Receive).unwrap();
    let data: Vec<u8> = (0..4000u32).map(|n| (n % 253) as u8).collect();
    buffer.bytes_mut()[..4000].copy_from_slice(&data);
    let place = |range: core::ops::Range<usize>| buffer.place_of(&buffer.bytes()[range]);
    // Positions wrap; a retransmission that overlaps adds only what is new.
    let start = u32::MAX - 999;
    assert_eq!(chain.insert(&mut pool, start, &data[100..2100], place(100..2100), ALL), 2000);
    assert_eq!(chain.insert(&mut pool, start, &data[100..4000], place(100..4000), ALL), 3900);
    assert_eq!(chain.insert(&mut pool, start.wrapping_add(3900), &[9; 10], None, ALL), 10);
    pool.give_back(buffer);
    assert_eq!(pool.free(), 128 - 8 - 1);
    let mut all = data[100..].to_vec();
    all.extend([9; 10]);
    assert_eq!(read(&mut chain, &pool, start, 9999), all);
    assert_eq!(chain.slices(&pool, start, 9999).count(), 3);
    chain.release_before(&mut pool, start.wrapping_add(2000));
    assert_eq!(pool.free(), 128 - 4 - 1, "blocks in front are free as the reader goes on");
    chain.release_from(&mut pool, start.wrapping_add(2500));
    assert_eq!(read(&mut chain, &pool, start.wrapping_add(2000), 9999), all[2000..2500]);
    assert_eq!(pool.free(), 128 - 2, "bytes 2100..2600 of the message lie in two blocks");
    chain.clear(&mut pool);
    assert_eq!((pool.free(), chain.held()), (128, 0));
}

#[test]
fn short_payload_does_not_hold_its_buffer() {
    let mut pool = BlockPool::new(128, 4096, 16_384);
    let mut chain = Chain::EMPTY;
    for n in 0..8192u32 {
        let buffer = pool.lend(Direction::Receive).unwrap();
        // One byte a message: the last position first, then at 32 places by turns.
        let position = if n < 4096 { 4095 - n } else { 4096 + n % 32 * 128 + (n - 4096) / 32 };
        let part = &buffer.bytes()[..1];
        let place = buffer.place_of(part);
        assert_eq!(chain.insert(&mut pool, position, part, place, ALL), 1);
        pool.give_back(buffer);
    }
    assert_eq!((chain.slices(&pool, 0, 9999).flatten().count(), pool.free()), (8192, 126));
    assert_eq!(chain.held(), 2);
    chain.clear(&mut pool);
    assert_eq!(pool.free(), 128);
}

#[test]
fn random_chains_equal_their_model_and_hold_what_they_may() {
    for seed in 0..200u64 {
        let mut state = seed;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut pool = BlockPool::new(256, 512, 4096);
        let mut chain = Chain::EMPTY;
        let base = below(1 << 31) as u32 ^ 0xffff_f000;
        let (mut model, mut from) = (vec![None::<u8>; 40_000], 0);
        for _ in 0..300 {
            let at = (from + below(6000)).min(39_000);
            let longest = [30, 4000][below(2)];
            let len = (1 + below(longest)).min(40_000 - at);
            let byte = below(256) as u8;
            let mut buffer = (below(4) > 0).then(|| pool.lend(Direction::Receive)).flatten();
            let copied = vec![byte; len];
            let (data, place) = match &mut buffer {
                Some(buffer) => {
                    let start = below(4096 - len.min(4095));
                    buffer.bytes_mut()[start..start + len].fill(byte);
                    let data = &buffer.bytes()[start..start + len];
                    (data, buffer.place_of(data))
                }
                None => (&copied[..], None),
            };
            let done = chain.insert(&mut pool, base.wrapping_add(at as u32), data, place, ALL);
            model[at..at + done].iter_mut().for_each(|b| *b = b.or(Some(byte)));
            if let Some(buffer) = buffer {
                pool.give_back(buffer);
            }
            if below(3) == 0 {
                from = (from + below(2000)).min(39_000);
                chain.release_before(&mut pool, base.wrapping_add(from as u32));
                model[..from].fill(None);
            }
            let at = (from + below(6000)).min(39_999);
            let expected: Vec<u8> = model[at..].iter().map_while(|b| *b).collect();
            assert_eq!(
                read(&mut chain, &pool, base.wrapping_add(at as u32), 1 << 20),
                expected,
                "seed {seed}"
            );
            assert!(pool.capacity() - pool.free() <= chain.held() as usize, "seed {seed}");
        }
        chain.clear(&mut pool);
        assert_eq!((pool.free(), chain.held()), (256, 0), "seed {seed}");
    }
}

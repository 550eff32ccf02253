//! Tests of messages that are made where they leave from.

use csp_vi::ViError;

use crate::bench::{Bench, CONFIG, Pair, message, take, wait};

/// They arrive in order with those that are copied, and nothing is sent of one that is not made.
pub fn messages_are_made_in_place(bench: &Bench) {
    let Pair { mut a, mut b, from_a, .. } = bench.pair(CONFIG);
    assert!(a.can_fill());
    let (mut sent, mut got) = (0u32, 0);
    wait("500 messages", || {
        let len = [1, 64, 4096, 700][sent as usize % 4];
        let mut calls = 0;
        let posted = if sent.is_multiple_of(5) {
            a.post_send(from_a, 0, sent, &[&vec![sent as u8; len]], false).map(|()| len)
        } else {
            a.post_send_filled(from_a, sent, 4096, &mut |place| {
                calls += 1;
                assert_eq!(place.len(), 4096);
                assert!(place.write(0, &vec![sent as u8; len]));
                len
            })
        };
        match posted {
            Ok(made) => {
                assert!(made == len && calls <= 1);
                sent += 1;
            }
            Err(error) => assert_eq!(error, ViError::Full),
        }
        assert_eq!(a.post_send_filled(from_a, 9, 16, &mut |_| 0).unwrap_or(0), 0);
        assert_eq!(a.poll(), None);
        while let Some(message) = take(&mut b) {
            let len = [1, 64, 4096, 700][got as usize % 4];
            assert_eq!((message.immediate, message.bytes), (got, vec![got as u8; len]));
            got += 1;
        }
        (got == 500).then_some(())
    });
    let long = a.post_send_filled(from_a, 0, 4097, &mut |_| panic!("there is no such place"));
    assert_eq!(long, Err(ViError::TooLong { len: 4097, max: 4096 }));
    // What says that it has made more than there is room for has made as much as there is room for.
    assert_eq!(a.post_send_filled(from_a, 3, 8, &mut |_| usize::MAX), Ok(8));
    assert_eq!(message(&mut b, &mut a).bytes.len(), 8);
}

use super::*;

/// Every combination of options, each emitted and read again.
fn reprs() -> impl Iterator<Item = Repr> {
    (0u32..32 * 5).map(|n| {
        let mut sack = SackBlocks::EMPTY;
        for block in 0..n / 32 {
            assert!(sack.push(SackBlock { start: 1000 * block + n, end: 1000 * block + n + 500 }));
        }
        Repr {
            source_port: 80,
            destination_port: 40_000 + n as u16,
            seq: 0xffff_fff0u32.wrapping_add(n),
            ack: 0x8000_0000 | n,
            flags: Flags(n as u8),
            window: 0xfffe,
            options: Options {
                mss: (n & 1 != 0).then_some(1460),
                window_scale: (n & 2 != 0).then_some(14),
                sack_permitted: n & 4 != 0,
                timestamps: (n & 8 != 0).then_some(Timestamps { value: 7, echo: u32::MAX }),
                sack,
            },
        }
    })
}

#[test]
fn what_is_emitted_is_read_back() {
    for repr in reprs() {
        let mut buffer = [0xaa; HEADER_LEN_MAX + 3];
        let len = repr.emit(&mut buffer).unwrap();
        assert!(len <= HEADER_LEN_MAX && len % 4 == 0);
        assert_eq!(repr.emit(&mut [0; HEADER_LEN_MAX][..len - 1]), None);
        let segment = Segment::parse(&buffer[..len + 3]).unwrap();
        assert_eq!((segment.header_len(), segment.payload()), (len, &[0xaa; 3][..]));
        assert_eq!((segment.checksum(), segment.urgent()), (0, 0));
        let read = Repr::parse(&segment);
        let kept = read.options.sack.as_slice();
        assert_eq!(
            kept,
            &repr.options.sack.as_slice()[..kept.len()],
            "blocks without room are left off at the end"
        );
        assert!(kept.len() == repr.options.sack.as_slice().len() || len > HEADER_LEN_MAX - 8);
        assert_eq!(Repr { options: Options { sack: repr.options.sack, ..read.options }, ..read }, repr);
    }
}

#[test]
fn wrong_lengths_are_refused() {
    assert!(matches!(Segment::parse(&[0; 19]), Err(WireError::Truncated { needed: 20, .. })));
    for words in 0..16u8 {
        let mut bytes = [0; 40];
        bytes[12] = words << 4;
        let header_len = usize::from(words) * 4;
        let expected = (20..=40).contains(&header_len);
        assert_eq!(Segment::parse(&bytes).is_ok(), expected, "data offset {words}");
    }
}

#[test]
fn a_wrong_option_length_ends_the_options_and_keeps_what_came_before() {
    let check = |area: &[u8], mss, scale| {
        let options = Options::parse(area);
        assert_eq!((options.mss, options.window_scale), (mss, scale), "{area:?}");
    };
    check(&[2, 4, 5, 180, 3, 3, 7, 0], Some(1460), Some(7));
    check(&[2, 4, 5, 180, 3, 0, 7, 0], Some(1460), None);
    check(&[2, 4, 5, 180, 99, 1, 3, 3, 7], Some(1460), None);
    check(&[2, 4, 5, 180, 99, 250, 3, 3, 7], Some(1460), None);
    check(&[2, 4, 5, 180, 99, 2, 3, 3, 200], Some(1460), Some(14));
    check(&[2, 3, 5, 3, 3, 7], None, Some(7));
    check(&[2], None, None);
    check(&[0, 2, 4, 5, 180], None, None);
    check(&[5, 9, 0, 0, 0, 0, 0, 0, 0, 3, 3, 1], None, Some(1));
}

#[test]
fn no_bytes_make_the_view_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = [0u8; 80];
    for round in 0..20_000 {
        for byte in &mut bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        let len = round % (bytes.len() + 1);
        if let Ok(segment) = Segment::parse(&bytes[..len]) {
            let repr = Repr::parse(&segment);
            assert!(segment.header_len() + segment.payload().len() == len);
            assert!(repr.options.window_scale.unwrap_or(0) <= WINDOW_SCALE_MAX);
            assert!(repr.header_len() <= HEADER_LEN_MAX);
            let mut out = [0; HEADER_LEN_MAX];
            assert_eq!(repr.emit(&mut out), Some(repr.header_len()));
        }
    }
}

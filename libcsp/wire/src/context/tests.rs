use csp_types::options::OnStop;

use super::*;

const PLACE: Place = Place { path: 0x1234, generation: 7, stage: 3 };

fn records() -> Vec<(Record<'static>, Vec<u8>)> {
    let lens = b"\x02\0\0\0\0\0\0\0\x03\0\0\0";
    let message = Message { format: 9, lens, bytes: b"topic" };
    let supply = Supply { module: Some(&[7; 32]), formats: Some(&[9; 32]), on_stop: OnStop::End };
    let (standing, numbers) = (Standing::PassedBy, &[3; 176]);
    let all = [
        Record::Hello { credit: 64 },
        Record::Stage { place: PLACE, room: 1 << 40, handler: "drop-every", parameters: "10", supply },
        Record::Stage {
            place: PLACE,
            room: 1,
            handler: "forward",
            parameters: "",
            supply: Supply::default(),
        },
        Record::Call { place: PLACE, sequence: 1 << 40, age_ns: 5, message },
        Record::Same { place: PLACE, output: 1 },
        Record::Frames { place: PLACE, output: 1, format: 2, first: 1, count: 2 },
        Record::Range { place: PLACE, output: 0, format: 2, start: 1, len: u32::MAX },
        Record::New { place: PLACE, output: 7, message },
        Record::Done { place: PLACE, fault: true, ended: false },
        Record::Done { place: PLACE, fault: true, ended: true },
        Record::Gone { place: PLACE },
        Record::Room { place: PLACE, bytes: 1 << 20 },
        Record::Want { place: PLACE, object: &[5; 32] },
        Record::Part { object: &[5; 32], total: 100, offset: 97, bytes: b"end" },
        Record::Part { object: &[5; 32], total: 0, offset: 0, bytes: b"" },
        Record::Report { place: PLACE, standing, numbers, why: "" },
        Record::Report { place: PLACE, standing: Standing::Refused, numbers, why: "no memory" },
    ];
    let emit = |record: Record<'static>| {
        let mut bytes = [0; 400];
        let carries = matches!(record, Record::Call { .. } | Record::New { .. });
        let frames = [2, 0, 3];
        let message = carries.then_some((&frames[..], 5));
        let len = record.emit_head(message, &mut bytes).unwrap();
        assert_eq!(
            record.emit_head(message, &mut [0; 400][..len - 1]).map_err(|error| error.what()),
            Err("context record")
        );
        (record, [&bytes[..len], if carries { b"topic" } else { b"" }].concat())
    };
    all.into_iter().map(emit).collect()
}

#[test]
fn records_come_back_as_they_were_emitted() {
    for (record, bytes) in records() {
        let more = [&bytes[..], b"next"].concat();
        assert_eq!(Record::parse(&more), Ok(Some((record, bytes.len()))));
        for len in 0..bytes.len() {
            assert_eq!(Record::parse(&bytes[..len]), Ok(None), "{record:?} {len}");
        }
    }
}

#[test]
fn a_changed_byte_gives_another_record_or_an_error() {
    for (record, bytes) in records() {
        for at in 4..bytes.len() {
            for change in [1, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let parsed = Record::parse(&changed);
                assert_ne!(parsed, Ok(Some((record, bytes.len()))), "byte {at} means nothing");
                assert_ne!(parsed, Ok(None));
            }
        }
    }
}

#[test]
fn what_cannot_be_a_record_is_refused() {
    let (_, call) = records().remove(3);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = call.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    for (bytes, what) in [
        (with(0, &31u32.to_le_bytes()), "context record length"),
        (with(0, &u32::MAX.to_le_bytes()), "context record length"),
        (with(4, &[14]), "context record kind"),
        (with(11, &[0]), "context record frames"),
        (with(11, &[17]), "context record frames"),
        (with(11, &[16]), "context record frame lengths"),
        (with(32, &[3]), "context record message"),
        (with(4, &[4]), "context record body"),
    ] {
        assert_eq!(Record::parse(&bytes).unwrap_err().what(), what);
    }
    let message = message_of(1);
    let new = Record::New { place: PLACE, output: 0, message };
    assert!(new.emit_head(None, &mut [0; 200]).is_err());
    assert!(new.emit_head(Some((&[0; 17], 0)), &mut [0; 200]).is_err());
    assert!(new.emit_head(Some((&[u32::MAX], u32::MAX as usize)), &mut [0; 200]).is_err());
    assert!(Record::Gone { place: PLACE }.emit_head(Some((&[1], 1)), &mut [0; 200]).is_err());
}

#[test]
fn what_a_stage_has_counted_comes_back() {
    let report =
        Report { standing: Standing::Ended, calls: 1, stops: [9; 10], max_ns: 1 << 40, ..Report::default() };
    assert_eq!(Report::read(Standing::Ended, &report.write()), report);
    assert_ne!(Report::read(Standing::Ended, &[1; 176]), report);
}

#[test]
fn parts_and_supplies_that_do_not_fit_are_refused() {
    let bytes = |record: Record<'_>| {
        let mut bytes = [0; 400];
        let len = record.emit_head(None, &mut bytes).unwrap();
        bytes[..len].to_vec()
    };
    let part = bytes(Record::Part { object: &[5; 32], total: 100, offset: 97, bytes: b"end" });
    let past = bytes(Record::Part { object: &[5; 32], total: 99, offset: 97, bytes: b"end" });
    let empty = bytes(Record::Part { object: &[5; 32], total: 99, offset: 97, bytes: b"" });
    assert!(Record::parse(&part).is_ok());
    for wrong in [past, empty] {
        assert_eq!(Record::parse(&wrong).unwrap_err().what(), "context record part");
    }
    let supply = Supply { module: Some(&[7; 32]), ..Supply::default() };
    let stage = bytes(Record::Stage { place: PLACE, room: 1, handler: "a", parameters: "", supply });
    let with = |flags: u8| [&stage[..10], &[flags], &stage[11..]].concat();
    assert!(Record::parse(&with(1)).is_ok());
    for flags in [3, 1 | 3 << 2] {
        assert!(Record::parse(&with(flags)).is_err(), "{flags}");
    }
}

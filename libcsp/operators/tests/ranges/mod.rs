//! Conditions that are ranges of fields: they accept what queries accept, however a record lies in memory and
//! whatever is in it.

use csp_formats::Fixed;
use csp_messages::{FieldReader, FlowFields};
use csp_operators::{FieldRange, Format, field_load, make, ranges};
use csp_quality::{Descriptor, FieldValue, FlowId, FlowSpec, FlowTable, Predicate};
use csp_support::Random;
use serde_json::json;

use crate::common::{FLIGHT, Stage, channels, flight, written};

const CHANNEL: u32 = 7;

fn format() -> Format {
    Format::new(channels().flights, "Flight".into()).expect("there is one")
}

/// A table with one flow, of flights that a condition accepts, and what reads their fields.
fn table(condition: &str) -> (FlowTable, FlowFields) {
    let (format, found) =
        (format(), ranges(&format(), condition).unwrap_or_else(|error| panic!("{condition}: {error}")));
    let field = |range: &FieldRange| {
        let location = format.message().locate(&range.path).expect("it was found");
        location.root_field().cloned().expect("of the root")
    };
    let located: Vec<_> = found.iter().map(field).collect();
    let all = Fixed::new(&format.schema, format.message(), &located);
    let load = |(number, field)| {
        let (fixed, load) = field_load(&format, field).expect("it has a place");
        (number, fixed, load)
    };
    let reader = FieldReader::new(all, (0..).zip(&located).map(load).collect());
    let mut fields = FlowFields::default();
    fields.add(CHANNEL, FLIGHT, reader);
    let word = |word: &u64| FieldValue::unsigned(*word);
    let predicate = Predicate {
        channel: Some(CHANNEL),
        fields: (0..)
            .zip(&found)
            .map(|(at, range)| (at, word(range.words.start())..=word(range.words.end())))
            .collect(),
        ..Predicate::default()
    };
    (FlowTable::new(4).replace(vec![FlowSpec::new("flow", predicate)]).expect("it is valid"), fields)
}

fn descriptor(fields: &FlowFields, record: &[&[u8]]) -> Descriptor {
    let mut descriptor = Descriptor::default().channel(CHANNEL).format(FLIGHT.0.into());
    let len = record.iter().map(|slice| slice.len()).sum();
    fields.read((CHANNEL, FLIGHT), || record.iter().copied(), len, &mut descriptor);
    descriptor
}

/// `bytes` in up to four slices, some of them empty.
fn cut<'b>(random: &mut Random, bytes: &'b [u8]) -> Vec<&'b [u8]> {
    let mut at: Vec<usize> = (0..3).map(|_| random.below(bytes.len() as u64 + 1) as usize).collect();
    at.sort_unstable();
    vec![&bytes[..at[0]], &bytes[at[0]..at[1]], &bytes[at[1]..at[2]], &bytes[at[2]..]]
}

fn random_flight(random: &mut Random) -> Vec<u8> {
    let mut record = flight();
    let mut pick = |values: &[serde_json::Value]| values[random.below(values.len() as u64) as usize].clone();
    record["origin"] = pick(&[json!("EWR"), json!("ORD"), json!("A"), json!("")]);
    record["number"] = pick(&[json!(0), json!(6), json!(7), json!(8), json!(u32::MAX - 1)]);
    record["at"] = pick(&[json!(null), json!(-5), json!(0), json!(1000), json!(i64::MAX)]);
    record["delay"] = pick(&[json!(null), json!(-30), json!(-1), json!(0), json!(12), json!(13)]);
    record["carrier"] = pick(&[json!("United"), json!("JetBlue")]);
    record["price"] = json!({"mantissa": pick(&[json!(-1), json!(12999), json!(i32::MAX)])});
    written(&channels().flights, &record)
}

const CONDITIONS: [&str; 12] = [
    "number = 7",
    "7 <= number AND number < 8",
    "delay > 12",
    "delay < 0 AND carrier = 'United'",
    "delay BETWEEN -1 AND 12 AND origin = 'EWR'",
    "origin < 'EWR'",
    "origin >= 'EWR' AND origin <= 'ORD'",
    "origin = ''",
    "at > 0",
    "at <= -5",
    "price.mantissa > 0 AND number >= 0",
    "number = 7 AND number > 6 AND delay = 12",
];

#[test]
fn flows_take_what_queries_accept() {
    let (set, mut random) = (channels().set(), Random::new(19));
    for condition in CONDITIONS {
        let mut select = Stage::new(make("select", &set).expect("known"), condition);
        let (table, fields) = table(condition);
        let mut seen = [0; 2];
        for round in 0..300 {
            let bytes = random_flight(&mut random);
            let accepted = select.send(FLIGHT, &[&bytes]).1.len() == 1;
            seen[usize::from(accepted)] += 1;
            for record in [vec![&bytes[..]], cut(&mut random, &bytes)] {
                let flow = table.classify(&descriptor(&fields, &record));
                assert_eq!(flow != FlowId::DEFAULT, accepted, "{condition}, round {round}: {bytes:?}");
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{condition}: {seen:?}");
    }
}

#[test]
fn records_that_lack_a_field_or_are_no_records_belong_to_no_flow() {
    let (table, fields) = table("number >= 0 AND price.mantissa <= 2147483647");
    let mut random = Random::new(20);
    let whole = random_flight(&mut random);
    assert_ne!(table.classify(&descriptor(&fields, &[&whole])), FlowId::DEFAULT);
    // The price is the last field of the block.
    let block = 8 + usize::from(u16::from_le_bytes([whole[0], whole[1]]));
    for len in 0..whole.len() {
        for record in [vec![&whole[..len]], cut(&mut random, &whole[..len])] {
            let flow = table.classify(&descriptor(&fields, &record));
            assert_eq!(flow != FlowId::DEFAULT, len >= block, "{len} of {} bytes", whole.len());
        }
    }
    // The header decides: another template, another schema, a block that ends before the field, an older
    // version.
    let is_none = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        table.classify(&descriptor(&fields, &[&bytes])) == FlowId::DEFAULT
    };
    assert!(
        is_none(&|bytes| bytes[2] = 2) && is_none(&|bytes| bytes[4] = 9) && is_none(&|bytes| bytes[0] = 5)
    );
    assert!(!is_none(&|bytes| bytes[6] = 0), "the first version had both fields");
    for round in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(8) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.number() as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        let one = descriptor(&fields, &[&bytes]);
        assert_eq!(one, descriptor(&fields, &cut(&mut random, &bytes)), "round {round}: {bytes:?}");
    }
}

#[test]
fn a_message_of_another_channel_or_format_has_no_fields() {
    let (_, fields) = table("number = 7");
    let bytes = written(&channels().flights, &flight());
    for key in [(CHANNEL + 1, FLIGHT), (CHANNEL, csp_handlers::FormatId(2))] {
        let mut descriptor = Descriptor::default();
        fields.read(key, || std::iter::once(&bytes[..]), bytes.len(), &mut descriptor);
        assert_eq!(descriptor, Descriptor::default());
    }
}

#[test]
fn conditions_of_another_form_are_refused() {
    let form = "only comparisons of a field with a constant can stand here";
    for (condition, expected) in [
        ("number = 7 OR delay = 1", form),
        ("NOT number = 7", form),
        ("number <> 7", form),
        ("number + 1 = 7", form),
        ("origin = destination", form),
        ("delay IS NULL", form),
        ("origin LIKE 'E%'", form),
        ("number = NULL", "\"number\" is a whole number, and is compared with something else"),
        ("origin = 'NEWARK-123'", "\"origin\" is text, and is compared with something else, or too long"),
        ("remark = 'late'", "\"remark\" is no field of the root block"),
        ("number > 7 AND number < 7", "no value of \"number\" is in all ranges"),
        ("numbr = 7", "there is no column \"numbr\"; the nearest is \"number\""),
        ("carrier = 'Delta'", "there is no value \"Delta\""),
        ("passengers.row = 1", "group"),
        ("number =", "expected"),
    ] {
        let error = ranges(&format(), condition).expect_err(condition);
        assert!(error.contains(expected), "{condition}: {error}");
    }
}

//! A journal and its readers, with pushes that are lost, repeated, and come from liars.

use csp_api::Text;
use csp_api::events::{Event, Page, Push, Severity, What};

use crate::{Collector, Cursor, Filter, Journal};

fn drains(node: &str) -> What {
    What::NodeDrains { node: node.into() }
}

fn push(collector: &mut Collector, journal: &Journal) -> u64 {
    let known = collector.known(&journal.after(0).origin, journal.after(0).incarnation);
    collector.admit(journal.after(known)).known
}

fn numbers(page: &Page) -> Vec<(String, u64)> {
    page.events.iter().map(|event| (event.origin.to_string(), event.sequence)).collect()
}

fn after(collector: &Collector, cursor: &str, most: usize) -> Page {
    collector.read(&cursor.parse().expect("a cursor"), &Filter::default(), most).into()
}

#[test]
fn what_is_pushed_twice_is_there_once_and_a_new_management_node_gets_all() {
    let mut journal = Journal::new("nn-1".into(), 7);
    let (mut one, mut other) = (Collector::new(1), Collector::new(2));
    for at in 1..=2_500 {
        journal.record(at, &drains("nn-1"));
    }
    let first = journal.after(0);
    assert_eq!((one.admit(first.clone()).new.len(), one.admit(first).new.len()), (500, 0));
    while push(&mut one, &journal) < journal.latest() {}
    assert_eq!((one.arrivals(), one.known(&"nn-1".into(), 7)), (2_500, 2_500));
    while push(&mut other, &journal) < journal.latest() {}
    // A cursor of one holds at the other.
    let cursor = after(&one, &Cursor::default().to_string(), 10).cursor;
    assert_eq!(numbers(&after(&other, &cursor, 1)), [("nn-1".to_owned(), 11)]);
    assert_eq!(numbers(&after(&one, &cursor, 1)), [("nn-1".to_owned(), 11)]);
}

#[test]
fn a_journal_that_has_given_up_events_says_so() {
    let mut journal = Journal::new("nn-1".into(), 7);
    let mut collector = Collector::new(1);
    journal.record(0, &drains("nn-1"));
    push(&mut collector, &journal);
    let cursor = collector.latest(&Filter::default(), 0).cursor.to_string();
    for _ in 0..10_000 {
        journal.record(0, &drains("nn-1"));
    }
    let admitted = collector.admit(journal.after(1));
    assert_eq!((admitted.lost, admitted.known), (10_001 - 8_192 - 1, 10_001 - 8_192 + 500));
    let page = after(&collector, &cursor, 5);
    assert_eq!((page.missed, page.events[0].sequence), (1_808, 1_810));
    assert_eq!(after(&collector, &page.cursor, 5).missed, 0, "reported once");
}

#[test]
fn reading_on_gives_each_event_once_in_the_order_of_its_origin() {
    let mut journals = ["nn-1", "pn-1", "an-1"].map(|name| Journal::new(name.into(), 3));
    let mut collector = Collector::new(1);
    let (mut read, mut cursor) = (Vec::new(), Cursor::default().to_string());
    let mut state = 7u64;
    for _ in 0..2_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (state >> 33) as usize % 3;
        match state >> 60 {
            0..=9 => drop(journals[at].record(0, &drains("x"))),
            10..=12 => drop(push(&mut collector, &journals[at])),
            _ => {
                let page = after(&collector, &cursor, 1 + (state >> 40) as usize % 5);
                read.extend(numbers(&page));
                cursor = page.cursor;
            }
        }
    }
    for journal in &journals {
        push(&mut collector, journal);
    }
    read.extend(numbers(&after(&collector, &cursor, 10_000)));
    for journal in &journals {
        let origin = journal.after(0).origin.to_string();
        let of: Vec<u64> =
            read.iter().filter(|(name, _)| *name == origin).map(|(_, number)| *number).collect();
        assert_eq!(of, (1..=journal.latest()).collect::<Vec<_>>(), "{origin}");
    }
}

#[test]
fn a_filter_skips_what_nobody_reads_again() {
    let mut journal = Journal::new("nn-1".into(), 7);
    let mut collector = Collector::new(1);
    let late = What::NodeLate { node: "pn-1".into(), role: "proxy-node".into() };
    let drains = drains("pn-1");
    for at in 0..100 {
        journal.record(0, if at % 10 == 9 { &late } else { &drains });
    }
    push(&mut collector, &journal);
    let filter = Filter { severity: Some(Severity::Error), ..Filter::default() };
    let page = collector.read(&Cursor::default(), &filter, 3);
    assert_eq!(page.events.iter().map(|e| e.sequence).collect::<Vec<_>>(), [10, 20, 30]);
    let page = collector.read(&page.cursor, &filter, 100);
    assert_eq!((page.events.len(), page.events[0].sequence), (7, 40));
    let page = collector.read(&page.cursor, &Filter::default(), 100);
    assert_eq!(page.events, [], "what did not match was passed");
    let kinds =
        Filter { kinds: vec!["node_late".to_owned()], objects: vec!["node/pn".to_owned()], severity: None };
    assert_eq!(collector.latest(&kinds, 4).events.iter().map(|e| e.sequence).min(), Some(70));
}

#[test]
fn liars_and_floods_are_bounded() {
    let mut collector = Collector::new(1);
    let event = |origin: &str, sequence| Event::new((&Text::from(origin), 7), sequence, 0, &drains("nn-1"));
    let push = |first, events| Push { origin: "nn-1".into(), incarnation: 7, first, events };
    // Another one's name, a number that is not the next one.
    assert_eq!(collector.admit(push(1, vec![event("pn-1", 1)])).known, 0);
    assert_eq!(collector.admit(push(1, vec![event("nn-1", 1), event("nn-1", 3)])).known, 1);
    let mut long = event("nn-1", 2);
    long.fields.insert("x".to_owned(), "y".repeat(10_000).into());
    assert_eq!(collector.admit(push(1, vec![long])).known, 1);
    assert_eq!(collector.admit(push(u64::MAX, vec![event("nn-1", u64::MAX)])).known, 0);
    // Another node's events stay whatever this one pushes, and a reader does not hear of it again and again.
    let mut honest = Journal::new("pn-1".into(), 1);
    honest.record(0, &drains("pn-1"));
    collector.admit(honest.after(0));
    for number in 0..10_000u64 {
        let (origin, first) = (Text::from("nn-1"), 2 + number);
        collector.admit(Push { origin, incarnation: number, first, events: Vec::new() });
    }
    let read = collector.read(&Cursor::default(), &Filter::default(), 10);
    assert!(read.events.iter().any(|event| event.origin == "pn-1") && read.missed > 0, "{read:?}");
    assert_eq!(collector.read(&read.cursor, &Filter::default(), 10).missed, 0);
    for number in 0..10_000u64 {
        let origin = Text::from(format!("{}-{number}", "n".repeat(50)));
        collector.admit(Push { origin, incarnation: (1 << 53) - 1, first: 1 << 52, events: Vec::new() });
    }
    let cursor = collector.latest(&Filter::default(), 1).cursor.to_string();
    assert!(cursor.parse::<Cursor>().is_ok(), "{} bytes", cursor.len());
    let mut journal = Journal::new("pn-1".into(), 1);
    let mut known = 0;
    while known < 100_000 {
        for _ in 0..500 {
            journal.record(0, &drains("pn-1"));
        }
        known = collector.admit(journal.after(known)).known;
    }
    let read = collector.read(&Cursor::default(), &Filter::default(), 10);
    assert!(read.events.len() == 10 && read.missed >= 100_000 - 8_192, "{}", read.missed);
}

#[test]
fn a_reader_keeps_its_place_at_a_management_node_that_starts_anew() {
    let mut journal = Journal::new("pn-1".into(), 7);
    for at in 0..3_000 {
        journal.record(at, &drains("pn-1"));
    }
    let mut before = Collector::new(1);
    while push(&mut before, &journal) < journal.latest() {}
    let read = before.read(&Cursor::default(), &Filter::default(), 10_000);
    assert_eq!(read.events.len(), 3_000);
    // It has nothing yet, then a part, then all and one more.
    let mut anew = Collector::new(2);
    let mut cursor = anew.read(&read.cursor, &Filter::default(), 10_000).cursor;
    journal.record(0, &drains("pn-1"));
    let mut got = Vec::new();
    while got.is_empty() {
        push(&mut anew, &journal);
        let read = anew.read(&cursor, &Filter::default(), 10_000);
        got.extend(read.events.iter().map(|event| event.sequence));
        cursor = read.cursor;
    }
    assert_eq!(got, [3_001], "what was read is not read again");
}

#[test]
fn a_cursor_is_text() {
    for text in ["", "1", "2~1~1", "1~x~1", "1~1~1,a~1", "1~1~1,a~1~1~1", "1~1~1,", &"1".repeat(40_000)] {
        assert!(text.parse::<Cursor>().is_err(), "{text:.20}");
    }
    let cursor: Cursor = "1~ff~a,nn-1~7~19".parse().expect("a cursor");
    assert_eq!(cursor.to_string(), "1~ff~a,nn-1~7~19");
}

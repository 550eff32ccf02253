//! The store against a model, and what becomes of requests to servers that others wait for.
#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::HashMap;
use std::sync::Arc;

use csp_cache::control::RequestControl;
use csp_cache::fields::Fields;
use csp_cache::freshness::{Identity, Rules};
use csp_cache::{Ask, Draft, Fill, Found, Object, Purge, Store, VARIANTS_MAX};

/// Milliseconds since 1970.
const NOW: u64 = 1_700_000_000_000;

fn store() -> Arc<Store> {
    Store::new(1 << 20, 7)
}

fn request(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n")
}

fn find(store: &Arc<Store>, now: u64, key: &str, fields: &str) -> Found {
    let head = request(fields);
    store.find(now, (key.as_bytes(), Fields::of_head(head.as_bytes())), &Ask::default(), &mut Vec::new())
}

fn draft(now: u64, asked: &str, fields: &str) -> Draft {
    let (head, asked) = (format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n"), request(asked));
    let how = (Identity::default(), &Rules::default(), false);
    Draft::new((200, head.as_bytes()), Fields::of_head(asked.as_bytes()), (now / 1_000, 0), how).unwrap()
}

fn filler(store: &Arc<Store>, now: u64, key: &str, fields: &str) -> Fill {
    match find(store, now, key, fields) {
        Found::Fill(fill, _) => fill,
        other => panic!("{other:?}"),
    }
}

/// Stores a response of this body, chosen by the fields `asked`.
fn put(store: &Arc<Store>, now: u64, (key, asked): (&str, &str), fields: &str, body: &[u8]) -> Arc<Object> {
    let mut fill = filler(store, now, key, asked);
    assert!(fill.push(body, usize::MAX));
    fill.commit(now, draft(now, asked, fields), None).unwrap()
}

fn fresh(found: Found) -> Option<Vec<u8>> {
    match found {
        Found::Fresh(object) => Some(object.body().to_vec()),
        _ => None,
    }
}

const MINUTE: &str = "Cache-Control: max-age=60";

#[test]
fn a_response_is_served_while_it_is_fresh() {
    let store = store();
    let object =
        put(&store, NOW, ("a", ""), "Cache-Control: max-age=60\r\nAge: 1\r\nContent-Length: 9", b"body");
    let text = String::from_utf8(object.head().to_vec()).unwrap();
    assert_eq!(text, "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 4\r\n\r\n");
    assert_eq!(fresh(find(&store, NOW + 58_000, "a", "")), Some(b"body".to_vec()));
    assert!(matches!(find(&store, NOW + 59_000, "a", ""), Found::Fill(_, Some(_))));
    assert!(matches!(find(&store, NOW, "b", ""), Found::Fill(_, None)));
    let status = store.status();
    assert_eq!((status.objects, status.stored, status.bytes, status.filling), (1, 1, object.size(), 0));
}

#[test]
fn others_wait_for_one_that_asks() {
    let store = store();
    let fill = filler(&store, NOW, "a", "");
    assert!(matches!(find(&store, NOW, "a", ""), Found::Wait(_)));
    drop(fill); // its client has gone, or the server has failed
    let fill = filler(&store, NOW, "a", "");
    // Too slow: another one asks, and what comes late is not stored.
    assert!(matches!(find(&store, NOW + 29_999, "a", ""), Found::Wait(_)));
    let other = filler(&store, NOW + 30_000, "a", "");
    assert!(fill.commit(NOW + 30_001, draft(NOW, "", MINUTE), None).is_none());
    assert!(matches!(find(&store, NOW + 30_001, "a", ""), Found::Wait(_)));
    // Not storable: nobody waits for a while, and a later one may be stored.
    other.refuse(NOW + 30_002);
    let Found::Pass(pass, _) = find(&store, NOW + 31_000, "a", "") else { panic!() };
    let Found::Pass(..) = find(&store, NOW + 31_000, "a", "") else { panic!() };
    assert!(pass.commit(NOW + 31_000, draft(NOW + 31_000, "", MINUTE), None).is_some());
    assert!(matches!(find(&store, NOW + 31_000, "a", ""), Found::Fresh(_)));
    // An impatient request, or one with an identity, asks the server itself.
    let held = filler(&store, NOW, "b", "");
    let (head, mut room) = (request(""), Vec::new());
    for ask in [
        Ask { is_impatient: true, ..Ask::default() },
        Ask { identity: Identity { is_known: true }, ..Ask::default() },
    ] {
        let found = store.find(NOW, (b"b", Fields::of_head(head.as_bytes())), &ask, &mut room);
        assert!(matches!(found, Found::Pass(..)));
    }
    drop(held);
    assert!(matches!(find(&store, NOW, "b", ""), Found::Fill(_, None)));
}

#[test]
fn a_stale_response_is_served_while_another_asks() {
    let store = store();
    put(&store, NOW, ("a", ""), "Cache-Control: max-age=10, stale-while-revalidate=5\r\nETag: \"1\"", b"old");
    let Found::Fill(fill, Some(old)) = find(&store, NOW + 11_000, "a", "") else { panic!() };
    assert!(matches!(find(&store, NOW + 11_000, "a", ""), Found::Stale(_)));
    let control = RequestControl { no_cache: true, ..RequestControl::default() };
    let (head, mut room) = (request(""), Vec::new());
    let ask = Ask { control: Some(&control), ..Ask::default() };
    let strict = store.find(NOW + 11_000, (b"a", Fields::of_head(head.as_bytes())), &ask, &mut room);
    assert!(matches!(strict, Found::Wait(_)));
    assert!(matches!(find(&store, NOW + 16_000, "a", ""), Found::Wait(_)), "too stale");
    // 304: the fields are new, the body is not copied.
    let text =
        b"HTTP/1.1 304 X\r\nETag: \"1\"\r\nX: new\r\nContent-Length: 0\r\nCache-Control: max-age=20\r\n\r\n";
    let asked = request("");
    let how = (Identity::default(), &Rules::default(), false);
    let news =
        old.freshened(text, Fields::of_head(asked.as_bytes()), ((NOW + 11_000) / 1_000, 0), how).unwrap();
    let other = b"HTTP/1.1 304 X\r\nETag: \"2\"\r\n\r\n";
    let of_other = old.freshened(other, Fields::of_head(asked.as_bytes()), ((NOW + 11_000) / 1_000, 0), how);
    assert!(of_other.is_err(), "it is about another response");
    let object = fill.commit(NOW + 11_000, news, Some(&old)).unwrap();
    assert!(std::ptr::eq(object.body(), old.body()));
    let head = String::from_utf8(object.head().to_vec()).unwrap();
    assert!(head.contains("X: new\r\n") && head.contains("Content-Length: 3\r\n"), "{head}");
    assert_eq!(head.matches("Cache-Control").count() + head.matches("ETag").count(), 2, "{head}");
    assert_eq!(fresh(find(&store, NOW + 30_000, "a", "")), Some(b"old".to_vec()));
    assert_eq!(store.status().objects, 1);
}

#[test]
fn variants_of_a_key() {
    let store = store();
    for at in 0..VARIANTS_MAX + 3 {
        let now = NOW + at as u64;
        put(&store, now, ("a", &format!("L: {at}")), &format!("{MINUTE}\r\nVary: L"), &[at as u8]);
    }
    assert_eq!(store.status().objects, VARIANTS_MAX);
    assert_eq!(fresh(find(&store, NOW, "a", "L: 10")), Some(vec![10]));
    assert_eq!(fresh(find(&store, NOW, "a", "L: 3")), Some(vec![3]));
    assert!(fresh(find(&store, NOW, "a", "L: 2")).is_none(), "the oldest has gone");
    assert!(fresh(find(&store, NOW, "a", "")).is_none());
}

/// Odd requests do not push out what others use.
#[test]
fn a_variant_that_is_used_stays() {
    let store = store();
    let vary = format!("{MINUTE}\r\nVary: L");
    put(&store, NOW, ("a", "L: 0"), &vary, b"0");
    assert!(fresh(find(&store, NOW, "a", "L: 0")).is_some());
    (1..30).for_each(|at| drop(put(&store, NOW, ("a", &format!("L: {at}")), &vary, b"x")));
    assert!(fresh(find(&store, NOW, "a", "L: 0")).is_some());
    assert_eq!(store.status().objects, VARIANTS_MAX);
}

/// Many refusals of a key are as one, until the time of the first is over.
#[test]
fn refusals_do_not_cancel_each_other() {
    let store = store();
    filler(&store, NOW, "a", "").refuse(NOW);
    for at in 0..200 {
        let Found::Pass(fill, None) = find(&store, NOW + at, "a", "") else { panic!("{at}") };
        fill.refuse(NOW + at);
    }
    for _ in 0..2 {
        assert!(matches!(find(&store, NOW + 9_999, "a", ""), Found::Pass(..)));
    }
    drop(filler(&store, NOW + 10_000, "a", ""));
    // The one that has ended does not end the next.
    filler(&store, NOW + 10_000, "a", "").refuse(NOW + 10_000);
    filler(&store, NOW + 11_000, "b", "").refuse(NOW + 11_000);
    assert!(matches!(find(&store, NOW + 11_000, "a", ""), Found::Pass(..)));
}

#[test]
fn a_refusal_keeps_the_stale_response_and_is_of_no_identity() {
    let store = store();
    put(&store, NOW, ("a", ""), &format!("{MINUTE}\r\nETag: \"1\""), b"old");
    filler(&store, NOW + 61_000, "a", "").refuse(NOW + 61_000);
    assert!(matches!(find(&store, NOW + 61_000, "a", ""), Found::Pass(_, Some(_))));
    let (head, mut room) = (request(""), Vec::new());
    let ask = Ask { identity: Identity { is_known: true }, ..Ask::default() };
    let found = store.find(NOW, (b"b", Fields::of_head(head.as_bytes())), &ask, &mut room);
    let Found::Pass(fill, None) = found else { panic!() };
    fill.refuse(NOW);
    assert!(matches!(find(&store, NOW, "b", ""), Found::Fill(..)), "others are not told by it");
}

#[test]
fn who_has_waited_for_another_variant_does_not_wait_again() {
    let store = store();
    let fill = filler(&store, NOW, "a", "L: 1");
    let Found::Wait(waited) = find(&store, NOW, "a", "L: 2") else { panic!() };
    drop(fill);
    let (head, mut room) = (request("L: 2"), Vec::new());
    let ask = Ask { waited: Some(waited), ..Ask::default() };
    let mut again = || store.find(NOW, (b"a", Fields::of_head(head.as_bytes())), &ask, &mut room);
    assert!(matches!(again(), Found::Fill(..)), "the other one has failed");
    put(&store, NOW, ("a", "L: 1"), &format!("{MINUTE}\r\nVary: L"), b"1");
    let (first, second) = (again(), again());
    assert!(matches!((&first, &second), (Found::Pass(_, None), Found::Pass(_, None))));
    // A response that is validated before each use.
    put(&store, NOW, ("c", ""), "Cache-Control: no-cache\r\nETag: \"1\"", b"x");
    let (first, second) = (find(&store, NOW, "c", ""), find(&store, NOW, "c", ""));
    assert!(matches!((&first, &second), (Found::Pass(_, Some(_)), Found::Pass(_, Some(_)))));
}

#[test]
fn what_was_invalidated_does_not_come_back() {
    let store = store();
    put(&store, NOW, ("a", ""), MINUTE, b"1");
    put(&store, NOW, ("b", ""), MINUTE, b"1");
    let pass = find(&store, NOW + 61_000, "a", "");
    let Found::Fill(late, Some(_)) = pass else { panic!() };
    store.invalidate(b"a");
    let next = filler(&store, NOW + 61_000, "a", "");
    assert!(late.commit(NOW + 61_000, draft(NOW, "", MINUTE), None).is_none());
    assert!(next.commit(NOW + 61_000, draft(NOW + 61_000, "", MINUTE), None).is_some(), "it began later");
    assert!(matches!(find(&store, NOW, "b", ""), Found::Fresh(_)), "another key");
    let late = filler(&store, NOW, "c", "");
    store.purge(&Purge::Path("/nothing"));
    assert!(late.commit(NOW, draft(NOW, "", MINUTE), None).is_none(), "purged meanwhile, perhaps");
    // Whoever fills while many others change is not stopped.
    let fill = filler(&store, NOW, "d", "");
    (0..40).for_each(|at| store.invalidate(format!("x{at}").as_bytes()));
    assert!(fill.commit(NOW, draft(NOW, "", MINUTE), None).is_some());
}

#[test]
fn purges_by_path_prefix_and_tag() {
    let store = store();
    let key = |path: &str| {
        let mut key = Vec::new();
        let (path, query) =
            path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query.as_bytes())));
        let parts = csp_cache::key::Parts {
            scope: 1,
            is_secure: false,
            host: b"h",
            port: None,
            path: path.as_bytes(),
            query,
        };
        csp_cache::key::write(&mut key, &parts, &csp_cache::key::QueryKey::All);
        String::from_utf8(key).unwrap()
    };
    let fill = || {
        for (path, tags) in [("/a", "x y"), ("/a?q", "y"), ("/a/b", "xy"), ("/c", "")] {
            put(&store, NOW, (&key(path), ""), &format!("{MINUTE}\r\nCache-Tag: {tags},z"), b"1");
        }
    };
    for (what, left) in [
        (Purge::Path("/a"), vec!["/a/b", "/c"]),
        (Purge::Path("/a?q"), vec!["/a", "/a/b", "/c"]),
        (Purge::Prefix("/a"), vec!["/c"]),
        (Purge::Tag("y"), vec!["/a/b", "/c"]),
        (Purge::Tag("q"), vec!["/a", "/a/b", "/a?q", "/c"]),
        (Purge::Tag("z"), vec![]),
        (Purge::All, vec![]),
    ] {
        fill();
        let (count, _) = store.purge(&what);
        let mut paths: Vec<String> = store.list("/", 10, NOW).into_iter().map(|listed| listed.path).collect();
        paths.sort();
        assert_eq!(paths, left, "{what:?}");
        assert_eq!(count, 4 - left.len());
        store.purge(&Purge::All);
    }
    fill();
    let listed = store.list("/c", 10, NOW + 5_000);
    assert_eq!((listed[0].host.as_str(), listed[0].age, listed[0].fresh_for), ("h", 5, 55));
    assert_eq!(store.list("/", 2, NOW).len(), 2);
    store.purge(&Purge::All);
    assert_eq!((store.status().bytes, store.status().objects), (0, 0));
}

/// What was evicted and is still read counts: nothing is stored beyond that.
#[test]
fn bodies_that_are_held_are_bounded() {
    let store = Store::new(64 << 10, 7);
    let body = vec![0; 8 << 10];
    let stores = |at: u64| {
        let mut fill = filler(&store, NOW, &format!("k{at}"), "");
        assert!(fill.push(&body, usize::MAX));
        fill.commit(NOW, draft(NOW, "", MINUTE), None)
    };
    let held: Vec<Arc<Object>> = (0..40).map_while(stores).collect();
    assert_eq!(held.len(), 12, "half as much again as the store");
    assert!(matches!(find(&store, NOW, "k12", ""), Found::Pass(..)), "others do not wait for it");
    drop(held);
    assert!((50..60).all(|at| stores(at).is_some()));
}

#[test]
fn bodies_are_bounded() {
    let store = store();
    let mut fill = filler(&store, NOW, "a", "");
    assert!(
        !fill.reserve(store.body_len_max() + 1, usize::MAX) && !fill.reserve(11, 10) && fill.reserve(10, 10)
    );
    assert!(fill.push(b"0123456789", 10) && !fill.push(b"x", 10));
    fill.truncate(4);
    assert_eq!((fill.len(), store.status().filling), (4, 4));
    let mut others: Vec<Fill> = (0..8).map(|at| filler(&store, NOW, &format!("o{at}"), "")).collect();
    let big = vec![0; store.body_len_max()];
    let taken = others.iter_mut().filter_map(|fill| fill.push(&big, usize::MAX).then_some(())).count();
    assert!(taken < 5, "half of the memory is for bodies on their way");
    drop((fill, others));
    assert_eq!(store.status().filling, 0);
}

/// What is used again stays, while a scan of the same size as the store passes.
#[test]
fn a_scan_does_not_evict_what_is_used() {
    let store = store();
    let body = vec![0; 512];
    let hot: Vec<String> = (0..50).map(|at| format!("hot{at}")).collect();
    hot.iter().for_each(|key| drop(put(&store, NOW, (key, ""), MINUTE, &body)));
    for at in 0..6_000 {
        if at % 100 == 0 {
            hot.iter().for_each(|key| drop(find(&store, NOW, key, "")));
        }
        put(&store, NOW, (&format!("cold{at}"), ""), MINUTE, &body);
        assert!(store.status().bytes <= 1 << 20);
    }
    let kept = hot.iter().filter(|key| matches!(find(&store, NOW, key, ""), Found::Fresh(_))).count();
    assert!(kept >= 45, "{kept} of 50");
    assert!(store.status().evicted > 4_000);
}

/// Requests, responses, invalidations and purges in random order: nothing is served that the model has
/// not, and memory is what the objects take.
#[test]
fn random_courses_agree_with_a_model() {
    let named = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in named.map_or(0..60, |seed: u64| seed..seed + 1) {
        let mut random = csp_support::Random::new(seed);
        let store = Store::new(64 << 10, seed);
        let mut model: HashMap<String, (Vec<u8>, u64)> = HashMap::new();
        let mut fills: Vec<(String, Fill)> = Vec::new();
        let mut now = NOW;
        for _ in 0..600 {
            let key = format!("k{}", random.below(12));
            match random.below(10) {
                0 => now += random.below(20) * 1_000,
                1 => {
                    store.invalidate(key.as_bytes());
                    model.remove(&key);
                }
                2 if random.below(8) == 0 => {
                    store.purge(&Purge::All);
                    model.clear();
                }
                3 | 4 if !fills.is_empty() => {
                    let (key, mut fill) = fills.swap_remove(random.below(fills.len() as u64) as usize);
                    let body: Vec<u8> = (0..random.below(6_000)).map(|_| random.below(256) as u8).collect();
                    let is_taken = fill.push(&body, usize::MAX);
                    match random.below(6) {
                        0 => drop(fill),
                        1 => fill.refuse(now),
                        _ if is_taken && fill.commit(now, draft(now, "", MINUTE), None).is_some() => {
                            model.insert(key, (body, now + 60_000));
                        }
                        _ => {}
                    }
                }
                _ => match find(&store, now, &key, "") {
                    Found::Fresh(object) => {
                        let (body, until) = &model[&key];
                        assert!(object.body() == body && now / 1_000 < until / 1_000, "seed {seed}");
                    }
                    Found::Fill(fill, stale) | Found::Pass(fill, stale) => {
                        assert!(stale.is_none_or(|object| object.body() == model[&key].0), "seed {seed}");
                        fills.push((key, fill));
                    }
                    Found::Wait(_) => assert!(fills.iter().any(|(other, _)| *other == key), "seed {seed}"),
                    Found::Stale(_) => panic!("seed {seed}: nothing permits it"),
                },
            }
            let status = store.status();
            assert!(status.bytes <= 64 << 10, "seed {seed}");
        }
        fills.clear();
        store.purge(&Purge::All);
        let status = store.status();
        assert_eq!((status.bytes, status.objects, status.filling), (0, 0, 0), "seed {seed}");
    }
}

#[test]
fn workers_share_the_store() {
    let store = Store::new(256 << 10, 3);
    let threads: Vec<_> = (0..4u64)
        .map(|worker| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for at in 0..2_000u64 {
                    let key = format!("k{}", (at * 7 + worker) % 64);
                    match find(&store, NOW + at, &key, "") {
                        Found::Fresh(object) => assert_eq!(object.body(), key.as_bytes()),
                        Found::Fill(mut fill, _) | Found::Pass(mut fill, _) => {
                            assert!(fill.push(key.as_bytes(), usize::MAX));
                            fill.commit(NOW + at, draft(NOW + at, "", MINUTE), None);
                        }
                        Found::Wait(_) | Found::Stale(_) => {}
                    }
                    if at % 100 == 0 {
                        store.invalidate(key.as_bytes());
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    store.purge(&Purge::All);
    assert_eq!((store.status().bytes, store.status().filling), (0, 0));
}

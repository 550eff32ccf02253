//! Watches: the records of the next requests that meet a filter.

use csp_gateway::{WATCHED_MAX, WATCHES_MAX, WatchFilter};
use csp_types::{Duration, Instant};

use crate::http::{Http, named};

const GET: &str = "GET /nowhere?a=b HTTP/1.1\r\nHost: WWW.example\r\n\r\n";

fn later() -> Instant {
    Instant::ZERO + Duration::from_secs(3_600)
}

#[test]
fn requests_that_meet_a_filter_are_seen() {
    let mut h = Http::new(named());
    h.w.connect(1_000);
    let text = |text: &str| Some(text.to_owned());
    let of_path =
        WatchFilter { path: text("/nowhere?a"), host: text("www.example"), ..WatchFilter::default() };
    let others = [
        WatchFilter { path: text("/nowhere/"), ..WatchFilter::default() },
        WatchFilter { rule: text("app"), ..WatchFilter::default() },
        WatchFilter { method: text("POST"), ..WatchFilter::default() },
    ];
    let now = h.w.now;
    let mut watch = |filter: &WatchFilter| h.gateway().watch(now, filter.clone(), 2, later()).unwrap();
    let watched = watch(&of_path);
    let unmet = others.each_ref().map(&mut watch);
    for _ in 0..3 {
        h.send(1_000, GET);
    }
    assert_eq!(h.gateway().watched(watched), Some(2));
    let seen = h.gateway().end_watch(watched);
    assert_eq!(seen.iter().map(|record| record.code()).collect::<Vec<_>>(), ["no-route"; 2]);
    assert_eq!((h.gateway().watched(watched), h.gateway().end_watch(watched).len()), (None, 0));
    for other in unmet {
        assert_eq!(h.gateway().end_watch(other).len(), 0);
    }
    h.reads(1_000);
    h.assert_no_leak();
}

#[test]
fn watches_are_few_and_end() {
    let mut h = Http::new(named());
    let now = h.w.now;
    let any = WatchFilter::default;
    for _ in 0..WATCHES_MAX {
        assert!(h.gateway().watch(now, any(), usize::MAX, now + Duration::from_secs(1)).is_some());
    }
    assert_eq!(h.gateway().watch(now, any(), 1, later()), None);
    let then = now + Duration::from_secs(2);
    let watch = h.gateway().watch(then, any(), usize::MAX, later()).unwrap();
    h.w.connect(1_000);
    for _ in 0..WATCHED_MAX + 3 {
        h.send(1_000, GET);
        h.reads(1_000);
    }
    assert_eq!(h.gateway().end_watch(watch).len(), WATCHED_MAX);
}

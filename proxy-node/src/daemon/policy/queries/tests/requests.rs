//! Queries that programs ask for, from the policy's text to rows.

use csp_services::{RequestCounters, RequestNotice};
use csp_types::Duration;
use serde_json::{Value, json};

use super::*;

/// The policy with places for queries at `flights`; `more` are further fields.
pub(super) fn policy(more: &str) -> String {
    let requests = format!("requests: {{port: 5620, queries: 3, lease_s: 20{more}}}, formats: [flight],");
    POLICY.replace("formats: [flight],", &requests).replace("queries:\n", "")
}

pub(super) fn world(more: &str) -> World {
    let mut w = World::new("");
    w.apply(&policy(more), "");
    w.connect(1, "flights", "PUB");
    w.connect(2, "flights", "REQ");
    w
}

impl World {
    pub(super) fn ask(&mut self, n: u32, request: &Value) -> Value {
        self.arrive(n, &message(&[b"", request.to_string().as_bytes()]));
        let answers = self.texts(n);
        assert_eq!(answers.len(), 1, "{answers:?}");
        serde_json::from_str(&answers[0]).unwrap()
    }

    pub(super) fn query(&mut self, n: u32, sql: &str) -> Value {
        self.ask(n, &json!({"query": sql, "output": "json"}))
    }

    /// Whether a subscriber may connect to a place.
    fn is_open(&mut self, place: &str) -> bool {
        let tuple = FourTuple { local: ([10, 76, 0, 100], 1).into(), remote: ([10, 0, 0, 2], 9).into() };
        let (number, label) = (self.numbers.of(place), FlowLabel::new(99, 0));
        let open = self.broker.connected(self.now, label, number, tuple);
        if open {
            self.broker.gone(self.now, label);
        }
        open
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        if self.broker.next_timeout().is_some_and(|at| at <= self.now) {
            self.broker.on_timeout(self.now);
        }
        self.settle();
    }

    pub(super) fn counters(&self) -> RequestCounters {
        self.broker.request_counters()
    }

    pub(super) fn running(&self) -> Vec<String> {
        self.broker.requested().into_iter().map(|(name, _)| name).collect()
    }
}

#[test]
fn a_program_asks_for_a_query_and_subscribes_to_its_rows() {
    let mut w = world("");
    assert!(!w.is_open("flights.1"), "nobody is admitted where no query is");
    let answer = w.query(2, "SELECT origin, delay FROM flights WHERE delay > 10");
    assert_eq!(answer["query"], "flights.1", "{answer}");
    assert_eq!(
        (&answer["address"], &answer["lease_s"], &answer["shared"]),
        (&json!("tcp://10.76.0.100:5620"), &json!(20), &json!(false))
    );
    let schema = csp_formats::Schema::parse(answer["schema"].as_str().unwrap()).unwrap();
    assert!(schema.message("Row").is_some());
    w.connect(3, "flights.1", "SUB");
    w.arrive(1, &message(&[b"United", &record(1, "EWR", 11, 1)]));
    w.arrive(1, &message(&[&record(1, "JFK", 10, 2)]));
    w.arrive(1, &message(&[&record(1, "LGA", 300, 3)]));
    let rows = w.taken(3);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.len() == 2 && row[0] == answer["topic"].as_str().unwrap().as_bytes()));
    assert_eq!(rows[1][1], br#"{"$message":"Row","origin":"LGA","delay":300}"#);
    let sbe = w.ask(2, &json!({"query": "SELECT origin FROM flights WHERE delay > 10"}));
    assert_eq!((&sbe["query"], &sbe["output"]), (&json!("flights.2"), &json!("sbe")), "{sbe}");
    w.connect(4, "flights.2", "SUB");
    w.arrive(1, &message(&[&record(1, "EWR", 11, 1)]));
    let row = &w.taken(4)[0][1];
    let schema = csp_formats::Schema::parse(sbe["schema"].as_str().unwrap()).unwrap();
    assert_eq!((&row[4..6], &row[8..11]), (&schema.id.to_le_bytes()[..], &b"EWR"[..]));
    assert_eq!(w.counters(), RequestCounters { granted: 2, ..RequestCounters::default() });
}

#[test]
fn a_query_ends_its_lease_after_the_last_subscriber_has_left_or_if_none_came() {
    let mut w = world("");
    let topic = w.query(2, "SELECT delay FROM flights")["topic"].clone();
    w.connect(3, "flights.1", "SUB");
    for _ in 0..10 {
        w.pass(20);
    }
    assert_eq!(w.running(), ["flights.1"], "a subscriber renews it");
    w.arrive(1, &message(&[&record(1, "EWR", 1, 1)]));
    assert_eq!(w.taken(3).len(), 1);
    w.broker.gone(w.now, FlowLabel::new(3, 0));
    w.ends.remove(&3);
    w.pass(19);
    assert_eq!(w.running().len(), 1);
    let queries = w.ask(2, &json!({"get": "queries"}));
    assert_eq!(
        (&queries["places"], &queries["queries"][0]["ends_in_s"], &queries["queries"][0]["yours"]),
        (&json!(3), &json!(1), &json!(true))
    );
    w.pass(1);
    assert_eq!((w.running().len(), w.is_open("flights.1"), w.broker.contexts().paths.len()), (0, false, 0));
    assert_eq!(w.counters().expired, 1);
    let notices: Vec<_> = std::iter::from_fn(|| w.broker.poll_request_notice()).collect();
    let [RequestNotice::Granted { by, .. }, RequestNotice::Released { channel, why, read, .. }] =
        &notices[..]
    else {
        panic!("{notices:?}")
    };
    assert_eq!((&by[..], &channel[..], &why[..], *read), ("10.0.0.2", "flights.1", "no subscriber", 1));
    // The place that was used last comes last, and no topic comes twice.
    let next = w.query(2, "SELECT delay FROM flights");
    assert_eq!(next["query"], "flights.2");
    assert_ne!(next["topic"], topic);
    w.pass(20);
    assert!(w.running().is_empty(), "nobody came");
    w.arrive(1, &message(&[&record(1, "EWR", 1, 1)]));
}

#[test]
fn who_subscribes_to_other_rows_keeps_no_query() {
    let mut w = world("");
    w.query(2, "SELECT delay FROM flights");
    w.connect(3, "flights.1", "XSUB");
    w.arrive(3, &message(&[b"\x01flights.1/0123456789abcdef"]));
    w.pass(20);
    assert!(w.running().is_empty(), "the topic is that of a former query");
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_the_nearest_name() {
    let mut w = world("");
    let answer = w.query(2, "SELECT orgin FROM flights");
    let expected = "line 1, column 8: there is no column \"orgin\"; the nearest is \"origin\"";
    assert_eq!(answer, json!({"error": expected, "line": 1, "column": 8}));
    for (request, expected) in [
        (json!({"query": "SELECT wind FROM winds"}), "there is no channel \"winds\""),
        (json!({"query": 7}), "`query` is the text of a query"),
        (json!({"query": "SELECT delay FROM flights", "output": "xml"}), "`output` may be"),
        (json!({"query": "SELECT delay FROM flights", "as": "json"}), "`as` is not known"),
        (
            json!({"release": "flights.1"}),
            "there is no query, format or handler \"flights.1\" of this channel",
        ),
    ] {
        let answer = w.ask(2, &request);
        assert!(answer["error"].as_str().unwrap().contains(expected), "{answer}");
    }
    w.connect(5, "winds", "REQ");
    let answer = w.query(5, "SELECT wind FROM winds");
    assert!(answer["error"].as_str().unwrap().contains("the policy has no `requests`"), "{answer}");
    assert_eq!((w.counters().refused, w.running().len()), (6, 0));
}

#[test]
fn places_and_queries_of_one_requester_are_bounded_and_equal_ones_are_shared() {
    let mut w = world("");
    let sql = |n: u32| format!("SELECT delay + {n} AS d FROM flights");
    let first = w.query(2, &sql(1));
    w.query(2, &sql(2));
    let answer = w.query(2, &sql(3));
    assert!(answer["error"].as_str().unwrap().starts_with("the requester has 2 queries"), "{answer}");
    let again = w.query(2, &sql(1));
    assert_eq!((&again["topic"], &again["shared"]), (&first["topic"], &json!(true)));
    // Another host shares one, and begins one.
    w.connect_from(6, "flights", "REQ", [10, 0, 0, 3]);
    assert_eq!(w.query(6, &format!(" {} ", sql(1)))["topic"], first["topic"]);
    assert_eq!(w.query(6, &sql(4))["query"], "flights.3");
    w.connect_from(7, "flights", "REQ", [10, 0, 0, 4]);
    let answer = w.query(7, &sql(5));
    assert_eq!(answer["error"], "all 3 places of the channel for queries are in use");
    assert_eq!(w.ask(7, &json!({"release": "flights.1"}))["error"], "\"flights.1\" was asked for by others");
    // It goes on as long as one of both wants it, and while it has a subscriber.
    w.connect(3, "flights.1", "SUB");
    assert_eq!(w.ask(2, &json!({"release": "flights.1"}))["requesters"], 1);
    let released = w.ask(6, &json!({"release": first["topic"]}));
    assert_eq!(released, json!({"released": "flights.1", "requesters": 0, "subscriptions": 1}));
    w.pass(30);
    assert_eq!(w.running(), ["flights.1"], "the others had no subscribers");
    w.broker.gone(w.now, FlowLabel::new(3, 0));
    assert_eq!((w.running().len(), w.counters().released, w.counters().expired), (0, 1, 2));
    assert_eq!((w.counters().granted, w.counters().shared, w.counters().refused), (3, 2, 2));
}

#[test]
fn a_query_goes_on_under_a_new_policy_or_is_withdrawn() {
    let mut w = world("");
    w.query(2, "SELECT delay, COUNT(*) AS n FROM flights GROUP BY delay WINDOW 3 ROWS");
    w.connect(3, "flights.1", "SUB");
    w.arrive(1, &message(&[&record(1, "EWR", 1, 1)]));
    w.apply(&policy(", each: 3"), &format!("queries:\n{}", late()));
    w.arrive(1, &message(&[&record(1, "EWR", 1, 2)]));
    w.arrive(1, &message(&[&record(1, "EWR", 1, 3)]));
    assert_eq!(w.texts(3), [r#"{"$message":"Row","delay":1,"n":3}"#], "what it keeps stays");
    let renamed = policy("").replace("name=\"delay\"", "name=\"lateness\"");
    w.apply(&renamed, "");
    assert_eq!((w.running().len(), w.counters().withdrawn), (0, 1));
    let last = std::iter::from_fn(|| w.broker.poll_request_notice()).last();
    let Some(RequestNotice::Released { why, .. }) = last else { panic!("{last:?}") };
    assert!(why.contains("there is no column \"delay\""), "{why}");
    w.settle();
    assert_eq!(w.steps[&3], Step::Close, "its subscribers are disconnected");
    assert!(w.query(2, "SELECT lateness FROM flights")["error"].is_null());
    w.apply(&renamed.replace("port: 5620", "port: 5630"), "");
    let answer = w.query(2, "SELECT lateness FROM flights");
    assert_eq!((&answer["address"], &answer["shared"]), (&json!("tcp://10.76.0.100:5631"), &json!(true)));
    w.apply(POLICY, &late());
    assert_eq!((w.running().len(), w.counters().withdrawn), (0, 2));
}

#[test]
fn a_program_asks_for_the_formats_of_a_channel() {
    let mut w = world("");
    let formats = w.ask(2, &json!({"get": "formats"}));
    let format = &formats["formats"][0];
    assert_eq!((&format["format"], &format["message"]), (&json!("flight"), &json!("Flight")), "{formats}");
    let schema = csp_formats::Schema::parse(format["schema"].as_str().unwrap()).unwrap();
    assert_eq!((schema.id, schema.messages.len()), (40, 2));
}

#[test]
fn queries_join_what_the_policy_names() {
    let sql = "SELECT f.origin, delay, wind FROM flights AS f JOIN winds AS w ON f.origin = w.origin WITHIN 60 SECONDS";
    let mut w = world(", with: [winds]");
    assert!(w.query(2, sql)["error"].is_null());
    w.connect(3, "flights.1", "SUB");
    w.connect(4, "winds", "PUB");
    w.arrive(1, &message(&[&record(1, "EWR", 7, 100)]));
    w.arrive(4, &message(&[&record(2, "EWR", 30, 130)]));
    assert_eq!(w.texts(3), [r#"{"$message":"Row","origin":"EWR","delay":7,"wind":30}"#]);
    // State that a context does not have is refused before anything begins.
    let mut w = world(", with: [winds], limits: {kib: 7000}");
    assert!(w.query(2, sql)["error"].is_null());
    let answer = w.query(2, &sql.replace("60", "61"));
    assert!(answer["error"].as_str().unwrap().contains("bytes of state left"), "{answer}");
    assert_eq!((w.running().len(), w.broker.contexts().paths.len()), (1, 1));
}

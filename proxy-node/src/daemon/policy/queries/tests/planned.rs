//! Planning beside the worker: what goes on meanwhile, what waits, and for whom.

use csp_services::{PlanJob, Planned};
use csp_types::Duration;
use serde_json::{Value, json};

use super::requests::{policy, world};
use super::*;

const SQL: &str = "SELECT origin FROM flights WHERE delay > 10";

/// A world in which another thread plans: the test.
fn beside(more: &str) -> World {
    let mut w = world(more);
    w.broker.plan_elsewhere();
    w
}

impl World {
    /// Asks without an answer at once.
    fn begin(&mut self, n: u32, request: &Value) -> PlanJob {
        self.arrive(n, &message(&[b"", request.to_string().as_bytes()]));
        assert_eq!(self.taken(n), Vec::<Vec<Vec<u8>>>::new(), "the answer comes when it was planned");
        self.broker.poll_plan_job().unwrap()
    }

    fn finish(&mut self, planned: Planned) {
        self.broker.planned(self.now, planned);
        self.settle();
    }

    fn answer(&mut self, n: u32) -> Value {
        let texts = self.texts(n);
        assert_eq!(texts.len(), 1, "{texts:?}");
        serde_json::from_str(&texts[0]).unwrap()
    }

    /// Asks and is refused at once.
    fn refusal(&mut self, n: u32, request: &Value) -> String {
        self.ask(n, request)["error"].as_str().unwrap().to_owned()
    }
}

fn query(sql: &str) -> Value {
    json!({"query": sql, "output": "json"})
}

#[test]
fn a_worker_goes_on_while_a_query_is_planned() {
    let mut w = beside("");
    w.connect(3, "flights", "SUB");
    let job = w.begin(2, &query(SQL));
    for n in 0..10 {
        w.arrive(1, &message(&[&record(1, "EWR", 11, n)]));
    }
    assert_eq!(w.taken(3).len(), 10, "the channel is served");
    assert_eq!(w.broker.requested().len(), 0);
    // The same from others is planned once.
    w.connect_from(4, "flights", "REQ", [10, 0, 0, 9]);
    w.arrive(4, &message(&[b"", query(SQL).to_string().as_bytes()]));
    assert!(w.broker.poll_plan_job().is_none());
    w.finish(job.run().took(Duration::from_millis(3)));
    let (first, second) = (w.answer(2), w.answer(4));
    assert_eq!((&first["query"], &first["shared"]), (&json!("flights.1"), &json!(false)));
    assert_eq!((&second["query"], &second["shared"]), (&json!("flights.1"), &json!(true)));
    w.connect(5, "flights.1", "SUB");
    w.arrive(1, &message(&[&record(1, "JFK", 12, 20)]));
    assert_eq!(w.texts(5), [r#"{"$message":"Row","origin":"JFK"}"#]);
    let counters = w.counters();
    assert_eq!((counters.granted, counters.shared, counters.planning_ns), (1, 1, 3_000_000));
}

#[test]
fn what_waits_is_bounded_for_an_address_and_for_all() {
    let mut w = beside(", each: 3");
    let ask = |w: &mut World, n: u32, host: u8, sql: &str| {
        w.connect_from(n, "flights", "REQ", [10, 0, 1, host]);
        w.arrive(n, &message(&[b"", query(sql).to_string().as_bytes()]));
        w.texts(n).pop()
    };
    assert_eq!(ask(&mut w, 10, 1, "SELECT at FROM flights WHERE delay > 1"), None);
    assert_eq!(ask(&mut w, 11, 1, "SELECT at FROM flights WHERE delay > 2"), None);
    let third = ask(&mut w, 12, 1, "SELECT at FROM flights WHERE delay > 3").unwrap();
    assert!(
        third.contains("2 requests of the address for queries and formats are not answered yet"),
        "{third}"
    );
    assert_eq!(ask(&mut w, 13, 2, "SELECT at FROM flights WHERE delay > 4"), None, "another address waits");
    // The places are kept.
    let full = ask(&mut w, 14, 3, "SELECT at FROM flights WHERE delay > 5").unwrap();
    assert!(full.contains("all 3 places of the channel for queries are in use"), "{full}");
    // What its asker does not wait for is not planned, and leaves its place.
    w.broker.gone(w.now, FlowLabel::new(13, 0));
    let jobs: Vec<PlanJob> = std::iter::from_fn(|| w.broker.poll_plan_job()).collect();
    assert_eq!(jobs.len(), 2);
    assert_eq!(ask(&mut w, 15, 3, "SELECT at FROM flights WHERE delay > 6"), None);
    // A plan that is not made in time is refused.
    w.pass(61);
    for n in [10, 11, 15] {
        assert!(w.texts(n)[0].contains("not planned in time; ask again"));
    }
    assert_eq!(w.counters().busy, 1);
    // Late ones are dropped.
    w.finish(jobs[0].run());
    assert_eq!(w.broker.requested().len(), 0);
}

#[test]
fn time_of_planning_is_divided_among_addresses() {
    let mut w = beside("");
    let job = w.begin(2, &query("SELECT nothing FROM flights"));
    w.finish(job.run().took(Duration::from_secs(2)));
    assert!(w.answer(2)["error"].as_str().unwrap().contains("no column"));
    let refused = w.refusal(2, &query(SQL));
    assert_eq!(refused, "the address has used up its time for planning; ask again in 20 s");
    w.connect_from(3, "flights", "REQ", [10, 0, 0, 3]);
    let job = w.begin(3, &query(SQL));
    w.finish(job.run().took(Duration::from_millis(1)));
    assert_eq!(w.answer(3)["query"], "flights.1", "another address has its own");
    // Sharing needs no plan.
    assert_eq!(w.ask(2, &query(SQL))["shared"], true);
    w.pass(21);
    let job = w.begin(2, &query("SELECT at FROM flights"));
    w.finish(job.run());
    assert!(w.answer(2)["query"].is_string());
    assert_eq!(w.counters().busy, 1);
}

#[test]
fn an_asker_that_leaves_pays_for_its_plan_and_frees_no_place() {
    let mut w = beside("");
    let again = |w: &mut World, n: u32| {
        w.connect_from(n, "flights", "REQ", [10, 0, 1, 1]);
        w.arrive(
            n,
            &message(&[
                b"",
                query(&format!("SELECT at FROM flights WHERE delay > {n}")).to_string().as_bytes(),
            ]),
        );
        w.texts(n).pop()
    };
    let mut jobs = Vec::new();
    for n in [10, 11] {
        assert_eq!(again(&mut w, n), None);
        jobs.push(w.broker.poll_plan_job().unwrap());
        w.broker.gone(w.now, FlowLabel::new(n, 0));
    }
    let third = again(&mut w, 12).unwrap();
    assert!(
        third.contains("2 requests of the address for queries and formats are not answered yet"),
        "{third}"
    );
    w.finish(jobs[0].failed("its askers have gone").took(Duration::from_secs(2)));
    let refused = again(&mut w, 13).unwrap();
    assert!(refused.contains("has used up its time for planning"), "{refused}");
    // A plan that never comes back keeps its place for two minutes at most.
    w.pass(121);
    assert_eq!(again(&mut w, 14), None);
    assert_eq!(again(&mut w, 15), None);
    assert_eq!(w.broker.requested().len(), 0);
}

#[test]
fn a_plan_of_a_former_policy_is_not_put_into_force() {
    let mut w = beside("");
    let job = w.begin(2, &query(SQL));
    w.apply(&policy(", each: 2"), "");
    w.finish(job.run());
    assert_eq!(w.answer(2)["error"], "the policy has changed meanwhile; ask again");
    let job = w.begin(2, &query(SQL));
    // A planner that fails is the request's fault alone.
    w.finish(job.failed("the planner failed on the request"));
    assert_eq!(w.answer(2)["error"], "the planner failed on the request");
    let job = w.begin(2, &query(SQL));
    w.finish(job.run());
    assert_eq!(w.answer(2)["query"], "flights.1");
}

#[test]
fn formats_and_translations_that_read_them_are_planned_beside_the_worker() {
    let schema =
        POLICY.split("schema: &schema |").nth(1).unwrap().split("    message: Flight").next().unwrap();
    let gate = schema.replace("id=\"40\"", "id=\"41\"").replace("\"Flight\"", "\"Gate\"");
    let mut w = beside(", formats: 2");
    let translate = json!({"translate": {"schema": schema, "message": "Flight"}, "output": "json"});
    let job = w.begin(2, &translate);
    // The format comes while the translation is planned, which does not know it yet.
    w.connect_from(3, "flights", "REQ", [10, 0, 0, 3]);
    let format = json!({"format": {"name": "gate", "schema": gate, "message": "Gate"}});
    let brought = w.begin(3, &format);
    w.finish(brought.run());
    assert_eq!(w.answer(3)["shared"], false);
    w.finish(job.run());
    let place = w.answer(2)["query"].as_str().unwrap().to_owned();
    w.connect(5, &place, "SUB");
    let header = [13u16, 1, 41, 1].map(u16::to_le_bytes).concat();
    let gate_record = [&header[..], b"EWR", &7i16.to_le_bytes(), &1i64.to_le_bytes()].concat();
    w.arrive(1, &message(&[&gate_record]));
    assert_eq!(w.texts(5).len(), 1, "it reads the format that came meanwhile");
    assert_eq!(w.counters().formats, 1);
}

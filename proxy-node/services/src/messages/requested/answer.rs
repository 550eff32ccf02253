//! The answers to `{"query": …}`, `{"release": …}` and `{"get": "queries"}`.

use csp_types::{Instant, Owner};
use serde_json::{Map, Value, json};

use super::{Live, QueryAsked, QueryRefused, RequestPlace, Requester, labelled};
use crate::messages::MessageBroker;
use crate::messages::peer::Peer;
use crate::messages::requests::refusal;

/// A requester, and the channel that it asks.
#[derive(Clone, Copy)]
pub(in crate::messages) struct Asker {
    number: u32,
    requester: Requester,
    may_query: bool,
}

impl Asker {
    /// The peer of a channel; with keys, its own decides what it may ask.
    pub(in crate::messages) fn new(peer: &Peer, may_query: bool) -> Self {
        Asker { number: peer.number, requester: Requester::of(peer), may_query }
    }
}

impl From<QueryRefused> for Value {
    fn from(refused: QueryRefused) -> Value {
        match refused.place {
            Some((line, column)) => json!({"error": refused.message, "line": line, "column": column}),
            None => refusal(&refused.message),
        }
    }
}

fn refused(why: impl Into<String>) -> QueryRefused {
    QueryRefused { message: why.into(), place: None }
}

/// Returns the text and whether rows are to be JSON.
fn read(request: &Map<String, Value>) -> Result<(&str, bool), QueryRefused> {
    let sql = request.get("query").and_then(Value::as_str);
    let sql = sql.ok_or_else(|| refused("`query` is the text of a query"))?;
    let json = match request.get("output").map(|output| output.as_str()) {
        None | Some(Some("sbe")) => false,
        Some(Some("json")) => true,
        Some(_) => return Err(refused("`output` may be \"sbe\" or \"json\"")),
    };
    match request.keys().find(|key| !matches!(key.as_str(), "query" | "output")) {
        Some(other) => Err(refused(format!("`{other}` is not known; beside `query` there may be `output`"))),
        None => Ok((sql.trim(), json)),
    }
}

impl MessageBroker {
    /// Answers a request for a query.
    pub(in crate::messages) fn answer_query(
        &mut self,
        now: Instant,
        asker: Asker,
        request: &Map<String, Value>,
    ) -> Value {
        let answer = read(request).and_then(|(sql, json)| match self.shared(now, asker, sql, json) {
            Some(at) => {
                self.requested.counters.shared += 1;
                Ok(self.granted(at, true))
            }
            None => {
                self.start_query(now, asker, sql, json)?;
                self.requested.counters.granted += 1;
                Ok(self.granted(self.requested.live.len() - 1, false))
            }
        });
        answer.unwrap_or_else(|refused| {
            self.requested.counters.refused += 1;
            refused.into()
        })
    }

    /// Finds the query if it runs already and the requester may have it, and adds the requester to its owners.
    fn shared(&mut self, now: Instant, asker: Asker, sql: &str, json: bool) -> Option<usize> {
        let same = |live: &Live| live.of == asker.number && live.sql == sql && live.json == json;
        let at = self.requested.live.iter().position(same)?;
        let has_room = self.check_asker(asker).is_ok();
        let live = &mut self.requested.live[at];
        let is_holder = live.holders.contains(&asker.requester);
        if !asker.may_query || !(is_holder || has_room) {
            return None; // refused with the reason by what begins queries
        }
        if !is_holder && live.holders.len() < super::HOLDERS_MAX {
            live.holders.push(asker.requester);
        }
        (live.seen, live.is_released) = (now, false);
        Some(at)
    }

    /// Checks whether a requester may have one query more. Returns the place for it.
    fn check_asker(&self, asker: Asker) -> Result<RequestPlace, QueryRefused> {
        let spec = self.requested.specs.iter().find(|spec| spec.number == asker.number);
        let spec = spec.ok_or_else(|| {
            refused("the channel runs no queries on request: the policy has no `requests` for it")
        })?;
        if !asker.may_query {
            return Err(refused("the key has not the right `query`"));
        }
        if let Some(owner) = self.placement.elsewhere(asker.number) {
            let Owner { proxy, worker } = owner;
            return Err(refused(format!("the channel has moved to {proxy}/{worker}; connect again")));
        }
        let held = self.requested.live.iter().filter(|live| live.holders.contains(&asker.requester)).count();
        if held >= spec.each {
            let most = spec.each;
            let message =
                format!("the requester has {held} queries, and may have {most} at a time; release one");
            return Err(refused(message));
        }
        let places = spec.places.len();
        self.requested
            .free_place(spec)
            .ok_or_else(|| refused(format!("all {places} places of the channel for queries are in use")))
    }

    fn start_query(&mut self, now: Instant, asker: Asker, sql: &str, json: bool) -> Result<(), QueryRefused> {
        let place = self.check_asker(asker)?;
        let topic = self.new_topic(&place, now);
        let spec = self.requested.specs.iter().find(|spec| spec.number == asker.number);
        let spec = spec.ok_or_else(|| refused("the channel was removed"))?; // it was just found
        let asked = QueryAsked { topic: &topic, number: place.spec.number, sql, json };
        let plan = labelled(spec.planner.plan(asked)?, &topic);
        let live = Live {
            of: asker.number,
            place,
            topic,
            sql: sql.to_owned(),
            json,
            by: asker.requester,
            holders: vec![asker.requester],
            plan,
            lease: spec.lease,
            seen: now,
            is_released: false,
        };
        self.begin_request(now, live).map_err(refused)
    }

    fn granted(&self, at: usize, shared: bool) -> Value {
        let live = &self.requested.live[at];
        json!({
            "query": live.name(),
            "address": format!("tcp://{}", live.place.address),
            "topic": live.topic,
            "output": output(live.json),
            "schema": live.plan.schema,
            "lease_s": live.lease.as_secs(),
            "shared": shared,
        })
    }

    /// Answers a request to release a query.
    pub(in crate::messages) fn answer_release(&mut self, now: Instant, asker: Asker, name: &Value) -> Value {
        let mine = |live: &Live| {
            live.of == asker.number
                && (Some(live.name()) == name.as_str() || Some(&live.topic[..]) == name.as_str())
        };
        let Some(at) = self.requested.live.iter().position(mine) else {
            return refusal(&format!("there is no query {name} of this channel"));
        };
        let live = &mut self.requested.live[at];
        let before = live.holders.len();
        live.holders.retain(|holder| *holder != asker.requester);
        if live.holders.len() == before {
            return refusal(&format!("{name} was asked for by others"));
        }
        live.is_released = live.holders.is_empty();
        let (name, number, requesters) = (live.name().to_owned(), live.number(), live.holders.len());
        let subscriptions = self.subscriptions(number);
        self.settle_requests(now);
        json!({"released": name, "requesters": requesters, "subscriptions": subscriptions})
    }

    /// Answers which queries run that were asked of a channel.
    pub(in crate::messages) fn answer_queries(&self, now: Instant, asker: Asker) -> Value {
        let of = |live: &&Live| live.of == asker.number;
        let describe = |live: &Live| {
            let subscriptions = self.subscriptions(live.number());
            let ends = (live.seen + live.lease).saturating_since(now);
            json!({
                "query": live.name(),
                "sql": live.sql,
                "address": format!("tcp://{}", live.place.address),
                "topic": live.topic,
                "output": output(live.json),
                "lease_s": live.lease.as_secs(),
                "ends_in_s": (subscriptions == 0).then_some(ends.as_secs()),
                "subscriptions": subscriptions,
                "requesters": live.holders.len(),
                "yours": live.holders.contains(&asker.requester),
            })
        };
        let live: Vec<Value> = self.requested.live.iter().filter(of).map(describe).collect();
        let places = self.requested.specs.iter().find(|spec| spec.number == asker.number);
        json!({"queries": live, "places": places.map_or(0, |spec| spec.places.len())})
    }
}

fn output(json: bool) -> &'static str {
    if json { "json" } else { "sbe" }
}

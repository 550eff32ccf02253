//! Rights to ask for queries and translations, and the answers to `{"release": …}` and `{"get": "queries"}`.

use csp_types::{Instant, Owner};
use serde_json::{Value, json};

use super::planning::Source;
use super::{Live, QueryRefused, RequestPlace, Requested, Requester, Runs, Wanted, refused};
use crate::messages::keys::Rights;
use crate::messages::peer::Peer;
use crate::messages::requests::refusal;
use crate::messages::served::Served;

/// A requester, and the channel that it asks.
#[derive(Clone, Copy, Debug)]
pub(in crate::messages) struct Asker {
    pub(in crate::messages) number: u32,
    pub(super) requester: Requester,
    /// Where it comes from.
    pub(super) source: Source,
    may_query: bool,
    pub(super) may_publish: bool,
}

impl Asker {
    /// Returns the asker for a peer of a channel. On a channel with keys its own rights decide what it may
    /// ask.
    pub(in crate::messages) fn new(peer: &Peer, rights: Option<Rights>) -> Self {
        let (number, requester) = (peer.number, Requester::of(peer));
        let may_query = rights.is_none_or(|rights| rights.query);
        let may_publish = rights.is_none_or(|rights| rights.publish);
        let source = Source::of(peer.client.ip());
        Asker { number, requester, source, may_query, may_publish }
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

impl Requested {
    /// Finds a running query that the requester may share, and adds the requester to its owners.
    pub(super) fn shared(
        &mut self,
        now: Instant,
        asker: Asker,
        (wanted, json): (&Wanted, bool),
        served: &Served<'_>,
    ) -> Option<usize> {
        let is_it = |runs: &Runs| matches!(runs, Runs::Wanted(known) if known == wanted);
        let same = |live: &Live| live.of == asker.number && is_it(&live.runs) && live.json == json;
        let at = self.live.iter().position(same)?;
        let has_room = self.check_asker(asker, served).is_ok();
        let live = &mut self.live[at];
        let is_holder = live.holders.contains(&asker.requester);
        if !asker.may_query || !(is_holder || has_room) {
            return None; // refused with the reason by what begins queries
        }
        if !is_holder && live.holders.len() < super::HOLDERS_MAX {
            live.holders.push(asker.requester);
        }
        (live.seen, live.is_released) = (now, false);
        self.counters.shared += 1;
        Some(at)
    }

    /// Checks that a requester may have one more query.
    pub(super) fn check_asker(&self, asker: Asker, served: &Served<'_>) -> Result<(), QueryRefused> {
        let spec = self.spec(asker.number).ok_or_else(|| {
            refused("the channel runs no queries on request: the policy has no `requests` for it")
        })?;
        if !asker.may_query {
            return Err(refused("the key has not the right `query`"));
        }
        check_is_here(asker.number, served)?;
        let is_its = |live: &&Live| live.holders.contains(&asker.requester) && live.handler().is_none();
        let held = self.live.iter().filter(is_its).count();
        let held = held + self.plans.asked(asker, false);
        if held >= spec.each {
            let most = spec.each;
            let message =
                format!("the requester has {held} queries, and may have {most} at a time; release one");
            return Err(refused(message));
        }
        Ok(())
    }

    /// Returns the place for one query more.
    pub(super) fn place_for_query(&self, asker: Asker) -> Result<RequestPlace, QueryRefused> {
        let spec = self.spec(asker.number);
        let places = spec.map_or(0, |spec| spec.places.len());
        let free = spec.and_then(|spec| self.free_place(spec));
        free.ok_or_else(|| refused(format!("all {places} places of the channel for queries are in use")))
    }

    pub(super) fn granted(&self, at: usize, shared: bool) -> Value {
        let live = &self.live[at];
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
    pub(in crate::messages) fn answer_release(
        &mut self,
        now: Instant,
        asker: Asker,
        name: &Value,
        served: &mut Served<'_>,
    ) -> Value {
        let text = name.as_str();
        let is_called = |live: &Live| {
            let given = live.handler().filter(|_| live.by == asker.requester).map(|known| &known.name[..]);
            [Some(live.name()), Some(&live.topic[..]), given]
                .into_iter()
                .flatten()
                .any(|own| Some(own) == text)
        };
        let mine = |live: &Live| live.of == asker.number && is_called(live);
        let Some(at) = self.live.iter().position(mine) else {
            let format =
                name.as_str().and_then(|name| self.release_format(now, asker, name, served.connections));
            return format.unwrap_or_else(|| {
                refusal(&format!("there is no query, format or handler {name} of this channel"))
            });
        };
        if let Some(answer) = self.release_handler(asker, at, served) {
            return answer;
        }
        let live = &mut self.live[at];
        let before = live.holders.len();
        live.holders.retain(|holder| *holder != asker.requester);
        if live.holders.len() == before {
            return refusal(&format!("{name} was asked for by others"));
        }
        live.is_released = live.holders.is_empty();
        let (name, requesters) = (live.name().to_owned(), live.holders.len());
        let subscriptions = live.subscriptions(served);
        self.settle(now, served);
        json!({"released": name, "requesters": requesters, "subscriptions": subscriptions})
    }

    /// Lists the running queries that were asked of a channel.
    pub(in crate::messages) fn answer_queries(
        &self,
        now: Instant,
        asker: Asker,
        served: &Served<'_>,
    ) -> Value {
        let of = |live: &&Live| live.of == asker.number && live.handler().is_none();
        let describe = |live: &Live| {
            let subscriptions = live.subscriptions(served);
            let ends = (live.seen + live.lease).saturating_since(now);
            json!({
                "query": live.name(),
                "sql": live.runs.to_string(),
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
        let live: Vec<Value> = self.live.iter().filter(of).map(describe).collect();
        let places = self.specs.iter().find(|spec| spec.number == asker.number);
        json!({"queries": live, "places": places.map_or(0, |spec| spec.places.len())})
    }
}

/// Refuses requests to a channel that has moved to another worker.
pub(super) fn check_is_here(number: u32, served: &Served<'_>) -> Result<(), QueryRefused> {
    match served.elsewhere(number) {
        Some(Owner { proxy, worker }) => {
            Err(refused(format!("the channel has moved to {proxy}/{worker}; connect again")))
        }
        None => Ok(()),
    }
}

fn output(json: bool) -> &'static str {
    if json { "json" } else { "sbe" }
}

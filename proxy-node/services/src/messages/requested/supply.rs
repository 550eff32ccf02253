//! The answers to `{"handler": …}` and `{"get": "handlers"}`, and the activation of handlers that were made.

use std::sync::Weak;

use csp_messages::{FormatId, StageMaker};
use csp_types::{FlowLabel, Instant};
use serde_json::{Value, json};

use super::answer::{Asker, check_is_here};
use super::handlers::{Brought, HandlerAsked, HandlerJob, Load, MadeHandler, Pending};
use super::{
    Live, QueryPlan, QueryRefused, RequestNotice, RequestPlace, RequestSpec, Requested, Requester, Runs,
    label, refused,
};
use crate::messages::MessageBroker;
use crate::messages::formats::ChannelFeed;
use crate::messages::paths::{ChannelPath, PathStage};
use crate::messages::requests::refusal;
use crate::messages::served::Served;

/// Name of brought handlers in paths. It is the same for all, so that a handler takes over the state of the
/// one that it replaces.
const SUPPLIED: &str = "supplied";

impl Requested {
    /// Accepts a request for a handler. Returns the ticket of the answer, which follows when the handler was
    /// made.
    pub(in crate::messages) fn ask_for_handler(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        (asked, module): (HandlerAsked, Option<Vec<u8>>),
        served: &Served<'_>,
    ) -> Result<u64, Value> {
        self.admit_handler(now, (label, asker), (asked, module), served).map_err(|refused| {
            self.counters.refused += 1;
            refused.into()
        })
    }

    fn admit_handler(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        (asked, module): (HandlerAsked, Option<Vec<u8>>),
        served: &Served<'_>,
    ) -> Result<u64, QueryRefused> {
        let (of, by) = (asker.number, asker.requester);
        let none = || {
            refused("nobody brings handlers to the channel: its `requests` in the policy have no `handlers`")
        };
        let spec = self.specs.iter().find(|spec| spec.number == of).ok_or_else(none)?;
        let rules = spec.handlers.as_ref().ok_or_else(none)?;
        let bound = served.channels.get(of).ok_or_else(|| refused("the channel was removed"))?;
        rules.check(bound.spec.keys.as_deref(), by)?;
        check_is_here(of, served)?;
        let len = module.as_ref().map_or(0, Vec::len);
        if module.is_none() && asked.hash.is_none() {
            return Err(refused(
                "the request has neither the module's bytes, as a second frame, nor its SHA-256",
            ));
        }
        self.supply.check(by, len)?;
        let place = match self.brought_by(of, by, &asked.name) {
            Some(at) => self.live[at].place.clone(),
            None => self.place_for_handler(spec, by)?,
        };
        let job = |ticket: u64, pending: Weak<()>, load: Load| HandlerJob {
            ticket,
            channel: place.spec.channel.name.clone(),
            of: bound.spec.channel.name.clone(),
            by: by.to_string(),
            name: asked.name.clone(),
            hash: asked.hash.clone(),
            module,
            parameters: asked.parameters.clone(),
            bounds: rules.bounds.clone(),
            lease: spec.lease,
            pending,
            _load: load,
        };
        let kept = (asked.clone(), len);
        let (kept_place, bounds) = (place.clone(), rules.bounds.clone());
        let pending =
            |ticket, alive| Pending::new((ticket, alive), (label, of, by), kept, (kept_place, bounds), now);
        Ok(self.supply.add(pending, len, job))
    }

    /// Returns the handler that a requester has brought to a channel under a name.
    fn brought_by(&self, of: u32, by: Requester, name: &str) -> Option<usize> {
        let is_it = |live: &Live| {
            live.of == of && live.by == by && live.handler().is_some_and(|brought| brought.name == name)
        };
        self.live.iter().position(is_it)
    }

    /// Checks that a requester may have one more handler. Returns the place for it.
    fn place_for_handler(&self, spec: &RequestSpec, by: Requester) -> Result<RequestPlace, QueryRefused> {
        let most = spec.handlers.as_ref().map_or(0, |rules| rules.each);
        let is_its = |live: &&Live| live.of == spec.number && live.by == by && live.handler().is_some();
        let held = self.live.iter().filter(is_its).count();
        if held >= most {
            let message = format!(
                "the requester has {held} handlers, and may have {most} at a time; release one, or bring this one under its name"
            );
            return Err(refused(message));
        }
        let places = spec.places.len();
        let none =
            || refused(format!("all {places} places of the channel for queries and handlers are in use"));
        self.free_place(spec).ok_or_else(none)
    }

    /// Activates a handler that was made, at a free place or in place of the one that its requester has
    /// brought before under the same name, and answers the request. `Err`: why it cannot be made. A handler
    /// without an asker is dropped.
    fn handler_made(
        &mut self,
        now: Instant,
        (ticket, made): (u64, Result<MadeHandler, String>),
        served: &mut Served<'_>,
    ) {
        let Some(pending) = self.supply.take(ticket) else { return };
        let label = pending.label;
        let placed = made.map_err(refused).and_then(|made| self.place_handler(now, pending, made, served));
        let answer = placed.unwrap_or_else(|refused| {
            self.counters.refused += 1;
            refused.into()
        });
        served.answer(label, ticket, &answer);
    }

    /// Refuses requests that have waited for too long.
    pub(super) fn settle_supply(&mut self, now: Instant, served: &mut Served<'_>) {
        while let Some(ticket) = self.supply.overdue(now) {
            let late = Err("the handler was not made in time; ask again".to_owned());
            self.handler_made(now, (ticket, late), served);
        }
    }

    fn place_handler(
        &mut self,
        now: Instant,
        pending: Pending,
        made: MadeHandler,
        served: &mut Served<'_>,
    ) -> Result<Value, QueryRefused> {
        let changed = || refused("the policy has changed meanwhile; ask again");
        let Pending { of, by, asked, place, bounds, .. } = pending;
        let spec = self.specs.iter().find(|spec| spec.number == of).ok_or_else(changed)?;
        let rules = spec.handlers.as_ref().filter(|rules| rules.bounds == bounds).ok_or_else(changed)?;
        let place = spec.places.iter().find(|known| known.spec.number == place.spec.number);
        let place = place.ok_or_else(changed)?.clone();
        rules.check(place.spec.keys.as_deref(), by)?;
        check_is_here(of, served)?;
        let (lease, HandlerAsked { name, parameters, .. }) = (spec.lease, asked);
        let at = self.brought_by(of, by, &name);
        let brought = Brought { name, module: made.module, parameters, bounds };
        let runs = Runs::Handler(Box::new(brought));
        if let Some(at) = at {
            self.swap_handler(now, at, (runs, made.maker), served)?;
            return Ok(self.supplied(at, true));
        }
        if self.live.iter().any(|live| live.number() == place.spec.number) {
            return Err(refused("its place was taken meanwhile; ask again"));
        }
        let topic = self.new_topic(&place, now, served);
        let plan = plan(of, &place, &topic, (&runs, made.maker));
        let (holders, seen, is_released) = (vec![by], now, false);
        let live = Live { of, place, topic, runs, json: false, by, holders, plan, lease, seen, is_released };
        self.begin_request(now, live, served).map_err(refused)?;
        self.counters.handlers += 1;
        Ok(self.supplied(self.live.len() - 1, false))
    }

    /// Changes the code or the parameters of a handler between two messages. Its channel, subscribers and
    /// state stay.
    fn swap_handler(
        &mut self,
        now: Instant,
        at: usize,
        (runs, maker): (Runs, StageMaker),
        served: &mut Served<'_>,
    ) -> Result<(), QueryRefused> {
        let live = &self.live[at];
        let plan = plan(live.of, &live.place, &live.topic, (&runs, maker));
        let done = served.set_paths(now, plan.path.number, &[&plan.path]);
        done.map_err(|error| refused(error.to_string()))?;
        let live = &mut self.live[at];
        (live.plan, live.runs, live.seen) = (plan, runs, now);
        let notice = live.begins();
        self.counters.swapped += 1;
        self.notify(notice);
        Ok(())
    }

    fn supplied(&self, at: usize, swapped: bool) -> Value {
        let live = &self.live[at];
        let Some(brought) = live.handler() else { return Value::Null };
        json!({
            "handler": live.name(),
            "name": brought.name,
            "module": brought.module,
            "parameters": brought.parameters,
            "address": format!("tcp://{}", live.place.address),
            "topic": live.topic,
            "lease_s": live.lease.as_secs(),
            "swapped": swapped,
        })
    }

    /// Ends a handler at the request of the program that has brought it, subscribers or not; `None`: it is a
    /// query.
    pub(super) fn release_handler(
        &mut self,
        asker: Asker,
        at: usize,
        served: &mut Served<'_>,
    ) -> Option<Value> {
        let live = &self.live[at];
        let brought = live.handler()?;
        if live.by != asker.requester {
            return Some(refusal(&format!("{} was brought by others", live.name())));
        }
        let subscriptions = live.subscriptions(served);
        let answer = json!({"released": live.name(), "name": brought.name, "subscriptions": subscriptions});
        self.counters.released += 1;
        self.end_request(at, "released", served);
        Some(answer)
    }

    /// Answers which handlers programs have brought to a channel. Parameters are shown only to the requester
    /// that has set them.
    pub(in crate::messages) fn answer_handlers(
        &self,
        now: Instant,
        asker: Asker,
        served: &Served<'_>,
    ) -> Value {
        let describe = |live: &Live| {
            let brought = live.handler().filter(|_| live.of == asker.number)?;
            let subscriptions = live.subscriptions(served);
            let ends = (live.seen + live.lease).saturating_since(now);
            let yours = live.by == asker.requester;
            Some(json!({
                "handler": live.name(),
                "name": brought.name,
                "module": brought.module,
                "parameters": yours.then_some(&brought.parameters),
                "address": format!("tcp://{}", live.place.address),
                "topic": live.topic,
                "lease_s": live.lease.as_secs(),
                "ends_in_s": (subscriptions == 0).then_some(ends.as_secs()),
                "subscriptions": subscriptions,
                "by": live.by.to_string(),
                "yours": yours,
            }))
        };
        let handlers: Vec<Value> = self.live.iter().filter_map(describe).collect();
        let places = self.specs.iter().find(|spec| spec.number == asker.number);
        json!({
            "handlers": handlers,
            "pending": self.supply.waiting(asker.number),
            "places": places.map_or(0, |spec| spec.places.len()),
        })
    }
}

impl MessageBroker {
    /// Returns the next job for the thread that makes handlers, which passes the result to
    /// [`handler_made`](Self::handler_made).
    pub fn poll_handler_job(&mut self) -> Option<HandlerJob> {
        self.requested.supply.next_job()
    }

    /// Activates a handler that was made, at a free place or in place of the one that its requester has
    /// brought before under the same name, and answers the request. `Err`: why it cannot be made. A handler
    /// without an asker is dropped.
    pub fn handler_made(&mut self, now: Instant, ticket: u64, made: Result<MadeHandler, String>) {
        let (requested, mut served) = self.parts();
        requested.handler_made(now, (ticket, made), &mut served);
    }
}

impl Live {
    /// Returns the handler, if it is one that a program has brought.
    pub(super) fn handler(&self) -> Option<&Brought> {
        match &self.runs {
            Runs::Handler(brought) => Some(brought),
            Runs::Wanted(_) => None,
        }
    }

    /// Returns the event for a handler that begins or replaces another one.
    pub(super) fn begins(&self) -> RequestNotice {
        let (channel, by) = (self.name().to_owned(), self.by.to_string());
        match &self.runs {
            Runs::Wanted(wanted) => RequestNotice::Granted { channel, by, sql: wanted.to_string() },
            Runs::Handler(brought) => {
                let (name, module) = (brought.name.clone(), brought.module.clone());
                RequestNotice::Supplied { channel, by, name, module }
            }
        }
    }

    /// Checks that a handler may continue under a new policy without being made again.
    pub(super) fn outlives(&self, spec: &RequestSpec, place: &RequestPlace) -> Result<(), QueryRefused> {
        let Some(brought) = self.handler() else { return Ok(()) };
        let rules = spec.handlers.as_ref().ok_or_else(|| refused("the policy lets nobody bring handlers"))?;
        rules.check(place.spec.keys.as_deref(), self.by)?;
        match rules.bounds == brought.bounds && self.place.spec.can_become(&place.spec) {
            true => Ok(()),
            false => Err(refused("the policy has changed what handlers run with; bring it again")),
        }
    }
}

/// Returns the plan of a handler's channel: the handler, and the stage that puts the topic before its output.
fn plan(of: u32, place: &RequestPlace, topic: &str, (runs, maker): (&Runs, StageMaker)) -> QueryPlan {
    let number = place.spec.number;
    let bounds = match runs {
        Runs::Handler(brought) => Some(&brought.bounds),
        Runs::Wanted(_) => None,
    };
    let context = bounds.map_or(0, |bounds| bounds.context);
    let stage = |handler: &str, maker| PathStage {
        handler: handler.to_owned(),
        context,
        parameters: String::new(),
        maker: Some(maker),
        auto: None,
        outputs: Vec::new(),
    };
    let longest = place.spec.channel.message_len_max;
    let stages = vec![stage(SUPPLIED, maker), stage(label::BEFORE, label::before(topic, longest))];
    let queue = bounds.map(|bounds| bounds.queue);
    let (format, becomes) = (FormatId::ANY, FormatId::ANY);
    QueryPlan {
        path: ChannelPath { queue, ..ChannelPath::new(number, stages) },
        feeds: vec![ChannelFeed { from: of, format, to: number, becomes }],
        schema: String::new(),
    }
}

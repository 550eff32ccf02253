//! Requests that are answered when a plan was made: queries, translations, and formats that publishers bring.

use std::sync::Arc;

use csp_handlers::FormatId;
use csp_types::{FlowLabel, Instant};
use serde_json::Value;

use super::answer::Asker;
use super::planning::{Done, PlanJob, Planned, Purpose, Task, Waiting};
use super::{BroughtFormat, Live, QueryPlan, QueryRefused, Requested, Runs, Wanted, labelled, refused};
use crate::messages::MessageBroker;
use crate::messages::served::Served;

impl Requested {
    /// Makes the waiting plans on this thread, if there is no planning thread.
    pub(in crate::messages) fn plan_here(&mut self, now: Instant, served: &mut Served<'_>) {
        while !self.plans.elsewhere
            && let Some(job) = self.plans.next_job()
        {
            self.planned(now, job.run(), served);
        }
    }

    /// Puts a finished plan into force and answers its askers. A plan without askers is dropped.
    fn planned(&mut self, now: Instant, planned: Planned, served: &mut Served<'_>) {
        let Some(waiting) = self.plans.take(now, &planned) else { return };
        let is_in_force = self
            .specs
            .iter()
            .any(|spec| spec.number == waiting.of && Arc::ptr_eq(&spec.planner, &waiting.planner));
        match planned.done {
            Done::Query(Ok(_)) | Done::Format(Ok(_), _) if !is_in_force => {
                let error = refused("the policy has changed meanwhile; ask again");
                self.refuse_waiting(&waiting, &error, served);
            }
            Done::Query(Ok(plan)) => self.begin_planned(now, waiting, &plan, served),
            Done::Format(Ok(found), renewed) => {
                let Some((label, asker)) = waiting.askers.first().copied() else { return };
                let Purpose::Format { name, xml, message, id } = waiting.purpose else { return };
                let asked = ((name, xml, message), id);
                let answer = self.add_format(now, asker, asked, (found, renewed), served);
                served.answer(label, waiting.ticket, &answer);
            }
            Done::Query(Err(error)) | Done::Format(Err(error), _) => {
                self.refuse_waiting(&waiting, &error, served);
            }
        }
    }

    /// Refuses requests that have waited for their plans for too long.
    pub(super) fn settle_plans(&mut self, now: Instant, served: &mut Served<'_>) {
        while let Some(ticket) = self.plans.overdue(now) {
            let Some(waiting) = self.plans.withdraw(ticket) else { return };
            let error = refused("the request was not planned in time; ask again");
            self.refuse_waiting(&waiting, &error, served);
        }
    }

    fn refuse_waiting(&mut self, waiting: &Waiting, error: &QueryRefused, served: &mut Served<'_>) {
        for (label, _) in &waiting.askers {
            self.counters.refused += 1;
            served.answer(*label, waiting.ticket, &error.clone().into());
        }
    }

    /// Accepts a request for a query or a translation. Returns the ticket of the answer, or, as an error, the
    /// answer.
    pub(in crate::messages) fn ask_for_query(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        (wanted, json): (Wanted, bool),
        served: &Served<'_>,
    ) -> Result<u64, Value> {
        if let Some(at) = self.shared(now, asker, (&wanted, json), served) {
            return Err(self.granted(at, true));
        }
        self.admit_query(now, (label, asker), (wanted, json), served).map_err(|refused| {
            self.counters.refused += 1;
            refused.into()
        })
    }

    fn admit_query(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        (wanted, json): (Wanted, bool),
        served: &Served<'_>,
    ) -> Result<u64, QueryRefused> {
        self.check_asker(asker, served)?;
        if let Some(ticket) = self.plans.join(label, asker, &wanted, json) {
            return Ok(ticket);
        }
        let place = self.place_for_query(asker)?;
        self.check_time(now, asker)?;
        let (topic, number) = (self.new_topic(&place, now, served), place.spec.number);
        let brought = self.brought.formats(asker.number).to_vec();
        let (kept_topic, kept) = (topic.clone(), wanted.clone());
        let task = Task::Query { topic, number, wanted, json, brought };
        let formats = brought_ids(self.brought.formats(asker.number));
        let purpose =
            Purpose::Query { wanted: kept, json, place: Box::new(place), topic: kept_topic, formats };
        let planner = self.spec(asker.number).map(|spec| spec.planner.clone());
        let planner = planner.ok_or_else(|| refused("the channel was removed"))?; // it was just found
        Ok(self.plans.add(now, (label, asker), (task, purpose), planner))
    }

    /// Checks that there is room and time for one more plan.
    pub(super) fn check_time(&mut self, now: Instant, asker: Asker) -> Result<(), QueryRefused> {
        let checked = self.plans.check(now, asker.source);
        self.counters.busy += u64::from(checked.is_err());
        checked
    }

    /// Begins a query for the first asker that may have it; the other askers share it.
    fn begin_planned(&mut self, now: Instant, waiting: Waiting, plan: &QueryPlan, served: &mut Served<'_>) {
        let Waiting { ticket, of, askers, purpose, .. } = waiting;
        let Purpose::Query { wanted, json, place, topic, formats } = purpose else { return };
        for (label, asker) in askers {
            let answer = match self.shared(now, asker, (&wanted, json), served) {
                Some(at) => Ok(self.granted(at, true)),
                None => {
                    let asked = (&wanted, json, &topic[..], place.spec.number);
                    self.begin_query(now, asker, asked, plan, served)
                }
            };
            let answer = answer.unwrap_or_else(|refused| {
                self.counters.refused += 1;
                refused.into()
            });
            served.answer(label, ticket, &answer);
        }
        // A translation reads the formats that have come since it was planned, too.
        if matches!(wanted, Wanted::Translation { .. }) && brought_ids(self.brought.formats(of)) != formats {
            self.renew_translations(now, of, Vec::new(), served);
        }
    }

    fn begin_query(
        &mut self,
        now: Instant,
        asker: Asker,
        (wanted, json, topic, number): (&Wanted, bool, &str, u32),
        plan: &QueryPlan,
        served: &mut Served<'_>,
    ) -> Result<Value, QueryRefused> {
        self.check_asker(asker, served)?;
        let changed = || refused("the channel's formats or places have changed meanwhile; ask again");
        let spec = self.spec(asker.number).ok_or_else(changed)?;
        let place = spec.places.iter().find(|place| place.spec.number == number).ok_or_else(changed)?;
        let is_free = self.live.iter().all(|live| live.number() != number);
        let has_formats = plan.feeds.iter().filter(|feed| feed.from == asker.number).all(|feed| {
            let known = self.brought.formats(asker.number);
            !feed.format.is_brought() || known.iter().any(|format| format.id == feed.format)
        });
        if !is_free || !has_formats {
            return Err(changed());
        }
        let live = Live {
            of: asker.number,
            place: place.clone(),
            topic: topic.to_owned(),
            runs: Runs::Wanted(wanted.clone()),
            json,
            by: asker.requester,
            holders: vec![asker.requester],
            plan: labelled(plan.clone(), topic),
            lease: spec.lease,
            seen: now,
            is_released: false,
        };
        self.begin_request(now, live, served).map_err(refused)?;
        self.counters.granted += 1;
        Ok(self.granted(self.live.len() - 1, false))
    }
}

impl MessageBroker {
    /// Leaves planning to another thread, which receives each [`PlanJob`] from
    /// [`poll_plan_job`](Self::poll_plan_job). Without it the broker plans on its own thread.
    pub fn plan_elsewhere(&mut self) {
        self.requested.plans.elsewhere = true;
    }

    /// Returns the next job for the planning thread, which passes the result to [`planned`](Self::planned).
    pub fn poll_plan_job(&mut self) -> Option<PlanJob> {
        self.requested.plans.next_job()
    }

    /// Puts a finished plan into force and answers its askers. A plan without askers is dropped.
    pub fn planned(&mut self, now: Instant, planned: Planned) {
        let (requested, mut served) = self.parts();
        requested.planned(now, planned, &mut served);
    }
}

fn brought_ids(formats: &[BroughtFormat]) -> Vec<FormatId> {
    formats.iter().map(|format| format.id).collect()
}

//! Formats that publishers bring to a channel. A format is leased to the publishers that have brought it.
//!
//! ```text
//!  REQ {"format": {"name": …, "schema": …}} ─▶ checked beside the channel's other formats ─▶ an id of its own
//!                                                     ▲                                          │
//!                                   no connection of its publishers for the lease ◀──── messages have it; queries
//!                                   and no query that reads it                          and translations read them
//! ```
//! The channel's path was made for the policy's formats: messages of others pass it untouched, as those of
//! unknown formats do.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use csp_formats::{Name, Schema};
use csp_handlers::FormatId;
use csp_operators::FormatSet;
use csp_types::{FlowLabel, Instant};
use serde_json::{Map, Value, json};

use super::answer::{Asker, check_is_here};
use super::planning::{Purpose, Renewal, Renewed, Task};
use super::{Live, QueryAsked, QueryRefused, Requested, Requester, Runs, Wanted, labelled, refused};
use crate::messages::connections::Connections;
use crate::messages::served::Served;

/// Most publishers of one format.
const PUBLISHERS_MAX: usize = 4_096;
/// Publishers that are listed.
const LISTED_MAX: usize = 64;

/// A format that a publisher has brought to a channel.
#[derive(Clone, Debug)]
pub struct BroughtFormat {
    /// Its name: queries read `channel/name`.
    pub name: String,
    /// Its id among the channel's messages.
    pub id: FormatId,
    /// The schema.
    pub schema: Arc<Schema>,
    /// The message of the schema.
    pub message: Name,
    /// The schema, as XML.
    pub xml: Arc<str>,
}

/// A format that a publisher wants to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatAsked<'a> {
    /// Its name.
    pub name: &'a str,
    /// The schema, as XML.
    pub xml: &'a str,
    /// The message of the schema; `None`: its only one.
    pub message: Option<&'a str>,
}

#[derive(Debug)]
struct Lease {
    /// The message name of the request; [`BroughtFormat::message`] is the one that was found.
    message: Option<String>,
    holders: BTreeSet<Requester>,
    /// When it was last in use, or was requested.
    seen: Instant,
}

impl Lease {
    fn is_due(&self, lease: csp_types::Duration, now: Instant) -> bool {
        self.holders.is_empty() || self.seen + lease <= now
    }
}

/// The formats of one channel.
#[derive(Debug, Default)]
struct OfChannel {
    /// Both lists have equal length: a format, and its lease.
    formats: Vec<BroughtFormat>,
    leases: Vec<Lease>,
    set: FormatSet,
}

/// The formats that publishers have brought, by the numbers of the channels.
#[derive(Debug, Default)]
pub(in crate::messages) struct Brought {
    channels: HashMap<u32, OfChannel>,
    /// How many have been.
    begun: u32,
}

impl OfChannel {
    fn remove(&mut self, at: usize) {
        self.formats.remove(at);
        self.leases.remove(at);
        self.apply();
    }

    fn apply(&mut self) {
        self.set = FormatSet::new();
        for format in &self.formats {
            // The ids are distinct, and the message is one of its schema's.
            let _ = self.set.add(format.id, format.schema.clone(), format.message.clone());
        }
    }
}

impl Brought {
    /// Returns the set in which messages of a channel are looked up; `None` if the channel has no brought
    /// formats.
    pub(in crate::messages) fn set(&self, number: u32) -> Option<&FormatSet> {
        // Most brokers have none at all.
        if self.channels.is_empty() {
            return None;
        }
        self.channels.get(&number).map(|known| &known.set)
    }

    /// Returns a channel's formats.
    pub(super) fn formats(&self, number: u32) -> &[BroughtFormat] {
        self.channels.get(&number).map_or(&[], |known| &known.formats)
    }

    /// Returns how many of a channel's formats the program has brought.
    fn held(&self, number: u32, requester: Requester) -> usize {
        let leases = self.channels.get(&number).map_or(&[][..], |known| &known.leases);
        leases.iter().filter(|lease| lease.holders.contains(&requester)).count()
    }

    /// Returns when the first lease must be examined; `lease` returns the lease time of a channel.
    pub(super) fn next_timeout(&self, lease: impl Fn(u32) -> csp_types::Duration) -> Option<Instant> {
        let of = |(number, known): (&u32, &OfChannel)| {
            known.leases.iter().map(|held| held.seen).min().map(|seen| seen + lease(*number))
        };
        self.channels.iter().filter_map(of).min()
    }

    /// Returns an id that no format of the channel has.
    fn next_id(&mut self, number: u32) -> FormatId {
        loop {
            self.begun = self.begun.wrapping_add(1);
            let id = FormatId(FormatId::BROUGHT_FIRST.0 | (self.begun & (FormatId::BROUGHT_FIRST.0 - 1)));
            if self.formats(number).iter().all(|known| known.id != id) {
                return id;
            }
        }
    }
}

/// Reads `{"name": NAME, "schema": XML, "message": NAME}`.
pub(super) fn read(request: &Map<String, Value>) -> Result<FormatAsked<'_>, QueryRefused> {
    let form = || refused("`format` is an object: {\"name\": NAME, \"schema\": XML, \"message\": NAME}");
    let object = request.get("format").and_then(Value::as_object).ok_or_else(form)?;
    let is_known = |key: &String| matches!(&key[..], "name" | "schema" | "message");
    if request.len() > 1 || !object.keys().all(is_known) {
        return Err(form());
    }
    let text = |name: &str| object.get(name).map(|text| text.as_str().ok_or_else(form));
    Ok(FormatAsked {
        name: text("name").ok_or_else(form)??,
        xml: text("schema").ok_or_else(form)??,
        message: text("message").transpose()?,
    })
}

impl Requested {
    /// Accepts a publisher's request to bring a format. Returns the ticket of the answer, or, as an error,
    /// the answer.
    pub(in crate::messages) fn ask_for_format(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        asked: FormatAsked<'_>,
        served: &Served<'_>,
    ) -> Result<u64, Value> {
        let waits = match self.share_format(now, asker, asked, served) {
            Ok(true) => return Err(self.brought(asker, asked.name, true)),
            Ok(false) => self.admit_format(now, (label, asker), asked),
            Err(refused) => Err(refused),
        };
        waits.map_err(|refused| {
            self.counters.refused += 1;
            refused.into()
        })
    }

    fn brought(&self, asker: Asker, name: &str, shared: bool) -> Value {
        let lease = self.lease(asker.number);
        json!({"format": name, "lease_s": lease.as_secs(), "shared": shared})
    }

    /// Checks that a publisher may bring a format. If the format is there already, the publisher shares it;
    /// returns whether it is.
    fn share_format(
        &mut self,
        now: Instant,
        asker: Asker,
        asked: FormatAsked<'_>,
        served: &Served<'_>,
    ) -> Result<bool, QueryRefused> {
        let (number, requester) = (asker.number, asker.requester);
        let spec = self.spec(number).filter(|spec| spec.formats_max > 0).ok_or_else(|| {
            refused(
                "publishers bring no formats to the channel: its `requests` in the policy have no `formats`",
            )
        })?;
        if !asker.may_publish {
            return Err(refused("the key has not the right `publish`"));
        }
        check_is_here(number, served)?;
        let brought = &self.brought;
        let held = brought.held(number, requester) + self.plans.asked(asker, true);
        let known = brought.channels.get(&number);
        let same = known.and_then(|known| {
            let same = |(format, lease): (&BroughtFormat, &Lease)| {
                let message = lease.message.as_deref();
                (&format.name[..], &format.xml[..], message) == (asked.name, asked.xml, asked.message)
            };
            known.formats.iter().zip(&known.leases).position(same)
        });
        let is_holder =
            same.is_some_and(|at| known.is_some_and(|known| known.leases[at].holders.contains(&requester)));
        if held >= spec.each && !is_holder {
            let most = spec.each;
            return Err(refused(format!("the publisher has {held} formats here, and may have {most}")));
        }
        if let Some(at) = same {
            let lease = &mut self.brought.channels.entry(number).or_default().leases[at];
            if !is_holder && lease.holders.len() >= PUBLISHERS_MAX {
                return Err(refused(format!(
                    "the format has {PUBLISHERS_MAX} publishers, as many as it may have"
                )));
            }
            lease.holders.insert(requester);
            lease.seen = now;
            return Ok(true);
        }
        let formats = brought.formats(number).len() + self.plans.formats(number);
        if formats >= spec.formats_max {
            let most = spec.formats_max;
            return Err(refused(format!("publishers may bring {most} formats to the channel, and have")));
        }
        Ok(false)
    }

    /// Requests the check of a format that is not there yet.
    fn admit_format(
        &mut self,
        now: Instant,
        (label, asker): (FlowLabel, Asker),
        asked: FormatAsked<'_>,
    ) -> Result<u64, QueryRefused> {
        self.check_time(now, asker)?;
        let number = asker.number;
        let planner = self.spec(number).map(|spec| spec.planner.clone());
        let planner = planner.ok_or_else(|| refused("the channel was removed"))?; // it was just found
        let of = |live: &Live| match &live.runs {
            Runs::Wanted(wanted @ Wanted::Translation { .. }) if live.of == number => Some(Renewal {
                number: live.number(),
                topic: live.topic.clone(),
                wanted: wanted.clone(),
                json: live.json,
            }),
            _ => None,
        };
        let renewals = self.live.iter().filter_map(of).collect();
        let id = self.brought.next_id(number);
        let brought = self.brought.formats(number).to_vec();
        let (name, xml): (_, Arc<str>) = (asked.name.to_owned(), asked.xml.into());
        let message = asked.message.map(str::to_owned);
        let purpose = Purpose::Format { name: name.clone(), xml: xml.clone(), message: message.clone(), id };
        let task = Task::Format { name, xml, message, id, brought, renewals };
        Ok(self.plans.add(now, (label, asker), (task, purpose), planner))
    }

    /// Adds a format that was checked, with the plans of translations that read it. Returns the answer.
    pub(super) fn add_format(
        &mut self,
        now: Instant,
        asker: Asker,
        ((name, xml, message), id): ((String, Arc<str>, Option<String>), FormatId),
        ((schema, found), renewed): ((Arc<Schema>, Name), Renewed),
        served: &mut Served<'_>,
    ) -> Value {
        let number = asker.number;
        let asked = FormatAsked { name: &name, xml: &xml, message: message.as_deref() };
        match self.share_format(now, asker, asked, served) {
            Ok(false) => {}
            Ok(true) => return self.brought(asker, &name, true),
            Err(refused) => {
                self.counters.refused += 1;
                return refused.into();
            }
        }
        let known = self.brought.formats(number);
        if known.iter().any(|format| format.id == id || format.name == name) {
            self.counters.refused += 1;
            return refused("the channel's formats have changed meanwhile; ask again").into();
        }
        let holders = BTreeSet::from([asker.requester]);
        let known = self.brought.channels.entry(number).or_default();
        let answer_name = name.clone();
        known.formats.push(BroughtFormat { name, id, schema, message: found, xml });
        known.leases.push(Lease { message, holders, seen: now });
        known.apply();
        self.counters.formats += 1;
        self.renew_translations(now, number, renewed, served);
        self.brought(asker, &answer_name, false)
    }

    /// Makes translations of a channel's messages read the formats that it has now. Plans that were made
    /// before are used where they exist. A translation that cannot be renewed stays as it is.
    pub(super) fn renew_translations(
        &mut self,
        now: Instant,
        number: u32,
        mut planned: Renewed,
        served: &mut Served<'_>,
    ) {
        let Requested { live, specs, brought, .. } = self;
        let Some(spec) = specs.iter().find(|spec| spec.number == number) else { return };
        let renewed = |(at, live): (usize, &Live)| {
            let Runs::Wanted(wanted @ Wanted::Translation { .. }) = &live.runs else { return None };
            let known = planned.iter().position(|(place, _)| *place == live.number());
            let plan = match known.map(|at| planned.swap_remove(at).1) {
                Some(plan) => plan,
                None => {
                    let (topic, json, brought) = (&live.topic[..], live.json, brought.formats(number));
                    let asked = QueryAsked { topic, number: live.number(), wanted, json, brought };
                    spec.planner.plan(asked).ok()?
                }
            };
            let plan = labelled(plan, &live.topic);
            (plan != live.plan).then_some((at, plan))
        };
        let of = live.iter().enumerate().filter(|(_, live)| live.of == number);
        let renewed: Vec<_> = of.filter_map(renewed).collect();
        for (at, plan) in renewed {
            // What has entered the former path leaves through it, as the formats were.
            if served.set_paths(now, plan.path.number, &[&plan.path]).is_ok() {
                self.live[at].plan = plan;
            }
        }
        self.apply_feeds(served);
    }

    /// Releases a publisher's share of a format, and returns the answer; `None` if there is no format of that
    /// name.
    pub(super) fn release_format(
        &mut self,
        now: Instant,
        asker: Asker,
        name: &str,
        connections: &Connections,
    ) -> Option<Value> {
        let number = asker.number;
        let at = self.brought.formats(number).iter().position(|format| format.name == name)?;
        let known = self.brought.channels.get_mut(&number)?;
        let lease = &mut known.leases[at];
        if !lease.holders.remove(&asker.requester) {
            return Some(json!({"error": format!("format {name} was brought by others")}));
        }
        let publishers = lease.holders.len();
        if publishers == 0 {
            self.settle_formats(now, connections);
        }
        let read = self.brought.formats(number).iter().any(|format| format.name == name);
        Some(json!({"released": name, "publishers": publishers, "in_use": read}))
    }

    /// Ends formats that neither a connection of their publishers nor a query has used for the time of their
    /// lease.
    pub(super) fn settle_formats(&mut self, now: Instant, connections: &Connections) {
        let is_due = |(number, known): (&u32, &OfChannel)| {
            let lease = self.lease(*number);
            known.leases.iter().any(|held| held.is_due(lease, now)).then_some(*number)
        };
        let due: Vec<u32> = self.brought.channels.iter().filter_map(is_due).collect();
        if due.is_empty() {
            return;
        }
        // All connections are looked at once, and all formats of a channel with them, so that they are due
        // together from then on.
        let of_due = connections.iter().filter(|peer| due.contains(&peer.number));
        let present: BTreeSet<(u32, Requester)> =
            of_due.map(|peer| (peer.number, Requester::of(peer))).collect();
        let mut channels = std::mem::take(&mut self.brought.channels);
        channels.retain(|number, known| {
            let (lease, mut at) = (self.lease(*number), 0);
            while let Some(held) = known.leases.get_mut(at).filter(|_| due.contains(number)) {
                let has_publisher = held.holders.iter().any(|holder| present.contains(&(*number, *holder)));
                let in_use = has_publisher || self.reads_format(*number, known.formats[at].id);
                if held.is_due(lease, now) && !in_use {
                    known.remove(at);
                    continue;
                }
                if in_use {
                    held.seen = now;
                }
                at += 1;
            }
            !known.formats.is_empty()
        });
        self.brought.channels = channels;
    }

    /// Returns whether a query or translation reads a channel's format.
    fn reads_format(&self, number: u32, id: FormatId) -> bool {
        let mut feeds = self.live.iter().flat_map(|live| &live.plan.feeds);
        feeds.any(|feed| feed.from == number && feed.format == id)
    }

    /// Keeps the formats that the rules of a new policy permit and that still fit beside the policy's own.
    /// The others end.
    pub(super) fn keep_formats(&mut self) {
        let Requested { specs, brought, .. } = self;
        brought.channels.retain(|number, known| {
            let Some(spec) = specs.iter().find(|spec| spec.number == *number) else { return false };
            let mut at = 0;
            while let Some(format) = known.formats.get(at) {
                let message = known.leases[at].message.as_deref();
                let asked = FormatAsked { name: &format.name, xml: &format.xml, message };
                let fits = at < spec.formats_max && spec.planner.bring(asked, &known.formats[..at]).is_ok();
                if fits { at += 1 } else { known.remove(at) }
            }
            !known.formats.is_empty()
        });
    }

    /// Describes the formats that publishers have brought to a channel.
    pub(in crate::messages) fn describe_brought(&self, number: u32) -> impl Iterator<Item = Value> + '_ {
        let known = self.brought.channels.get(&number);
        let of = |(format, lease): (&BroughtFormat, &Lease)| {
            let by: Vec<String> = lease.holders.iter().take(LISTED_MAX).map(Requester::to_string).collect();
            let publishers = lease.holders.len();
            let (name, message) = (&format.name, &*format.message);
            json!({"format": name, "message": message, "schema": &*format.xml, "by": by, "publishers": publishers})
        };
        known.into_iter().flat_map(|known| known.formats.iter().zip(&known.leases)).map(of)
    }
}

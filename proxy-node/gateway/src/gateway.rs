//! The gateway of one worker: a local service of the proxy.

use std::sync::Arc;

use csp_proxy_core::service::between::Between;
use csp_proxy_core::service::local::{LocalServices, Step};
use csp_proxy_core::service::upstream::{Ended, Ends, OpenError, Opened, Request, UpstreamEnd};
use csp_quality::OutputLink;
use csp_types::{FlowLabel, FourTuple, Instant};

use crate::challenges::Challenges;
use crate::client::Client;
use crate::client::h1::{Connection, Outcome};
use crate::clock::Random;
use crate::counters::{Served, Snapshot, UpstreamCounters};
use crate::exchange::of_token;
use crate::pool::{Use, stream_end};
use crate::record::{RECORDS_MAX, Record, Records};
use crate::shared::{Cx, Shared};
use crate::spec::HttpService;
use crate::table::Table;
use crate::watch::{WatchFilter, WatchId};

/// The HTTP gateway of one worker.
#[derive(Debug)]
pub struct Gateway {
    clients: Table<Client>,
    shared: Shared,
}

impl Gateway {
    /// Creates a gateway without services. `seed`: of ids and of choices by weight, different for each
    /// worker.
    pub fn new(seed: u64) -> Self {
        Gateway { clients: Table::default(), shared: Shared::new(seed, RECORDS_MAX) }
    }

    /// Sets the seed of ids and of choices by weight.
    pub fn seed(&mut self, seed: u64) {
        self.shared.work.random = Random::new(seed);
    }

    /// Replaces all services. Connections continue; the next request of each is processed by the new rules.
    /// Kept connections to members are closed if the services, their targets, how these are reached or their
    /// options of kept connections have changed. [`Ends::is_wanted`] says which members the pool of a target
    /// no longer has.
    pub fn set_services(&mut self, _: Instant, services: Vec<Arc<HttpService>>) {
        let shared = &mut self.shared;
        let known = |spec: &Arc<HttpService>| {
            shared.services.get(&spec.number).is_some_and(|served| served.spec.keeps_as(spec))
        };
        if services.len() != shared.services.len() || !services.iter().all(known) {
            shared.ready.extend(shared.members.renew());
            shared.links.renew(shared.members.epoch());
        }
        shared.spare.clear(); // they refer to services of the policy before
        shared.services.retain(|number, _| services.iter().any(|spec| spec.number == *number));
        for spec in services {
            match shared.services.get_mut(&spec.number) {
                Some(served) => served.replace(spec),
                None => {
                    shared.services.insert(spec.number, Served::new(spec));
                }
            }
        }
    }

    /// Replaces the challenges that are answered before any rule.
    pub fn set_challenges(&mut self, challenges: Challenges) {
        self.shared.work.challenges = challenges;
    }

    /// Ends all present connections of clients in order, since this proxy is to serve no more: idle ones end
    /// at once, others after the responses to the requests that have begun, with `Connection: close` or
    /// GOAWAY; those without a request yet after their first response. Connections that begin later are
    /// served as usual until the next call.
    pub fn drain_all(&mut self, now: Instant) {
        for (label, connection) in self.clients.iter_mut() {
            if connection.drain(now) {
                self.shared.ready.push_back(label);
            }
        }
    }

    /// Sets the civil time, for `Date`: nanoseconds since 1970. The caller does so now and then, since the
    /// clocks drift.
    pub fn set_clock(&mut self, now: Instant, unix_ns: u64) {
        self.shared.work.clock.set(now, unix_ns);
    }

    /// Sets the store of the cache, which all workers of a proxy share; `None`: nothing is stored.
    pub fn set_cache(&mut self, store: Option<Arc<csp_cache::Store>>) {
        self.shared.work.caching.store = store;
    }

    /// Returns whether there are records of the log.
    pub fn has_records(&self) -> bool {
        !self.shared.log.is_empty()
    }

    /// Removes and returns all records of the log, and how many there was no memory for since the last call.
    /// Further ones lie in the memory of `room`, which a former call has returned.
    pub fn take_records(&mut self, room: Records) -> (Records, u64) {
        self.shared.log.take(room)
    }

    /// Begins to copy the records of the next requests that meet a filter: at most `count`, and until a time.
    /// `None`: there are [`WATCHES_MAX`](crate::WATCHES_MAX) watches.
    pub fn watch(
        &mut self,
        now: Instant,
        filter: WatchFilter,
        count: usize,
        until: Instant,
    ) -> Option<WatchId> {
        self.shared.watches.begin(now, filter, count, until)
    }

    /// Returns how many records a watch has; `None`: it is gone.
    pub fn watched(&self, id: WatchId) -> Option<usize> {
        self.shared.watches.progress(id)
    }

    /// Ends a watch and returns its records, the oldest first.
    pub fn end_watch(&mut self, id: WatchId) -> Vec<Record> {
        self.shared.watches.end(id)
    }

    /// Returns a copy of what was counted.
    pub fn snapshot(&self) -> Snapshot {
        let shared = &self.shared;
        let services = shared.services.values();
        let (links, idle_links) = shared.links.count();
        Snapshot {
            services: services.map(|served| (Arc::clone(&served.spec), served.counters.clone())).collect(),
            upstreams: UpstreamCounters {
                open: (shared.members.table.len() + links) as u64,
                idle: (shared.members.kept_count() + idle_links) as u64,
                ..shared.upstreams
            },
            exchanges: shared.exchanges,
        }
    }

    /// Returns the number of connections of clients and of connections to members.
    pub fn connections(&self) -> (usize, usize) {
        (self.clients.len(), self.shared.members.table.len() + self.shared.links.count().0)
    }

    /// Serves a client's connection.
    fn serve_client(&mut self, now: Instant, label: FlowLabel, ends: &mut impl Ends) -> Step {
        let Gateway { clients, shared } = self;
        let cx = &mut Cx { now, client: label, shared, ends };
        let outcome = match clients.get_mut(label) {
            Some(Client::Http1(connection)) => connection.serve(cx),
            Some(Client::Http2(connection)) => Outcome::Step(connection.serve(cx)),
            None => Outcome::Step(Step::Idle),
        };
        if let Outcome::Step(step) = outcome {
            return step;
        }
        let Some(Client::Http1(connection)) = clients.remove(label) else { return Step::Idle };
        let Some(mut connection) = connection.into_http2(now, cx.shared) else { return Step::Reset };
        let step = connection.serve(cx);
        clients.insert(label, Client::Http2(Box::new(connection)));
        step
    }

    /// Serves a kept connection: whatever its member sends ends it, and so does a member that gets no new
    /// connections.
    fn serve_kept(&mut self, now: Instant, label: FlowLabel, until: Instant, ends: &mut impl Ends) -> Step {
        let Some(end) = ends.upstream(label) else { return Step::Idle };
        let (readable, is_open) = (end.readable(), stream_end(&end) == csp_http::exchange::StreamEnd::Open);
        drop(end);
        if is_open && readable == 0 && now < until && ends.is_wanted(label) {
            let Shared { members, timers, .. } = &mut self.shared;
            if let Some(member) = members.table.get_mut(label) {
                timers.arm(label, &mut member.armed, Some(until));
            }
            return Step::Idle;
        }
        self.shared.members.discard(label);
        if readable > 0 { Step::Reset } else { Step::Close }
    }
}

impl Between for Gateway {}

impl LocalServices for Gateway {
    fn connected(&mut self, now: Instant, label: FlowLabel, number: u32, tuple: FourTuple) -> bool {
        let Some(served) = self.shared.services.get_mut(&number) else { return false };
        served.counters.connections += 1;
        served.counters.open += 1;
        let connection = Client::Http1(Connection::new(now, label, tuple.remote, &served.spec));
        if let Some(old) = self.clients.insert(label, connection) {
            old.gone(now, &mut self.shared);
        }
        self.shared.ready.push_back(label); // its time begins
        true
    }

    fn drain(&mut self, now: Instant, number: u32) {
        self.shared.services.remove(&number);
        for (label, connection) in self.clients.iter_mut() {
            if connection.number() == number && connection.drain(now) {
                self.shared.ready.push_back(label);
            }
        }
    }

    fn serve(&mut self, now: Instant, label: FlowLabel, ends: &mut impl Ends, _: &mut OutputLink) -> Step {
        self.serve_client(now, label, ends)
    }

    fn next_request(&mut self) -> Option<Request> {
        self.shared.requests.pop_front()
    }

    fn opened(&mut self, now: Instant, token: u64, outcome: Result<Opened, OpenError>) {
        let Gateway { clients, shared } = self;
        shared.members.waits_no_more(token);
        let of =
            of_token(token).and_then(|(client, serial)| Some((client, serial, clients.get_mut(client)?)));
        let is_wanted = match of {
            Some((client, serial, connection)) => {
                shared.ready.push_back(client);
                connection.opened(now, serial, outcome, shared)
            }
            None => false,
        };
        if let Ok(opened) = outcome
            && !is_wanted
        {
            shared.ready.push_back(opened.label); // nobody knows it: it is reset
        }
    }

    fn waits(&mut self, _: Instant, token: u64, service: &Arc<str>) {
        let Shared { members, ready, .. } = &mut self.shared;
        ready.extend(members.waits(token, service));
    }

    fn serve_upstream(
        &mut self,
        now: Instant,
        label: FlowLabel,
        ends: &mut impl Ends,
        _: &mut OutputLink,
    ) -> Step {
        let Shared { links, timers, .. } = &mut self.shared;
        if links.has(label) {
            return links.serve(now, label, ends, timers);
        }
        let client = match self.shared.members.table.get(label).map(|member| member.used) {
            Some(Use::By(client, serial)) => {
                if let Some(connection) = self.clients.get_mut(client) {
                    connection.wake(serial);
                }
                client
            }
            Some(Use::Kept { until }) => return self.serve_kept(now, label, until, ends),
            Some(Use::Finished) => return Step::Close,
            Some(Use::Doomed) | None => return Step::Reset,
        };
        let step = self.serve_client(now, client, ends);
        match step {
            Step::Idle | Step::Moved => step,
            step => {
                ends.end(client, step);
                Step::Moved
            }
        }
    }

    fn upstream_gone(&mut self, now: Instant, label: FlowLabel, how: Ended) {
        let Gateway { clients, shared } = self;
        if let Some((client, serial)) = shared.starved.pop_front()
            && let Some(connection) = clients.get_mut(client)
        {
            connection.ask_again(now, serial, shared);
        }
        let Shared { members, links, timers, ready, .. } = shared;
        if links.has(label) {
            return links.gone(label, timers);
        }
        members.discard(label);
        let Some(member) = members.table.get_mut(label) else { return };
        timers.disarm(label, &mut member.armed);
        match member.used {
            Use::By(client, serial) => {
                member.gone = Some(how);
                if let Some(connection) = clients.get_mut(client) {
                    connection.wake(serial);
                }
                ready.push_back(client);
            }
            Use::Kept { .. } | Use::Finished | Use::Doomed => drop(members.table.remove(label)),
        }
    }

    fn gone(&mut self, now: Instant, label: FlowLabel) {
        let Some(connection) = self.clients.remove(label) else { return };
        if let Some(served) = self.shared.services.get_mut(&connection.number()) {
            served.counters.open = served.counters.open.saturating_sub(1);
        }
        connection.gone(now, &mut self.shared);
    }

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        let Gateway { clients, shared } = self;
        while let Some((client, serial)) =
            shared.links.next_woken().or_else(|| shared.work.caching.next_woken())
        {
            if let Some(connection) = clients.get_mut(client) {
                connection.wake(serial);
                shared.ready.push_back(client);
            }
        }
        shared.ready.pop_front().or_else(|| shared.links.next_dirty())
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.shared.timers.next()
    }

    fn on_timeout(&mut self, now: Instant) {
        while let Some(label) = self.shared.timers.next_due(now) {
            if let Some(connection) = self.clients.get_mut(label) {
                connection.timer_due();
            } else if let Some(member) = self.shared.members.table.get_mut(label) {
                member.armed.clear();
            } else {
                self.shared.links.timer_due(label);
            }
            self.shared.ready.push_back(label);
        }
    }
}

//! A client host: its own TCP engine on a LAN port, the transactions that it requests, and a server for those
//! that applications request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use csp_lan::LanPort;
use csp_tcp::{Event, Stack};
use csp_types::{Duration, FlowLabel, Instant, MacAddr};

use crate::conversation::{Conversation, Ended};
use crate::host::{LanHost, Router, host_tcp};
use crate::http::{Ask, Asking, Talk};
use crate::pattern::Request;
use crate::scenario::Scenario;
use crate::secure::Secure;

/// The port on which it serves applications.
pub(crate) const SERVER_PORT: u16 = 9_000;
const CHUNK: usize = 16 * 1024;

/// Progress of an upload of the client.
pub(crate) struct Upload {
    /// Identifies the transaction.
    pub key: u32,
    /// Bytes that the proxy has acknowledged.
    pub acknowledged: u64,
    /// Bytes that the proxy would accept now.
    pub window: u32,
}

/// Limits the bytes that a conversation sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Bytes that it may send at the end of each interval, and at its start.
    pub bytes: u64,
    /// The interval.
    pub every: Duration,
}

/// What a paced conversation may have sent, and when it may send more.
struct Paced {
    pace: Pace,
    allowed: u64,
    next: Instant,
}

/// One client host.
pub(crate) struct Client {
    lan: LanHost,
    talks: BTreeMap<FlowLabel, Talk>,
    /// Connections of HTTP to which other requests may be added, by their chain.
    chains: BTreeMap<usize, FlowLabel>,
    /// The service to which connections of HTTP go.
    http: Option<SocketAddr>,
    /// The sessions of TLS, as long as the conversations are there.
    secure: BTreeMap<FlowLabel, Secure>,
    tls: bool,
    /// Conversations that do not read, until when, and whether the other side has ended meanwhile.
    deaf: BTreeMap<FlowLabel, (Instant, bool)>,
    /// Conversations that did not read, and now do.
    woken: BTreeSet<FlowLabel>,
    /// Conversations that send slowly, until all is sent.
    paced: BTreeMap<FlowLabel, Paced>,
    /// When the last conversation that always read ended.
    pub(crate) prompt_end: Instant,
    /// The address from which it requested each transaction, by its key.
    pub(crate) addresses: BTreeMap<u32, SocketAddr>,
    /// How each transaction that it requested ended, by its key.
    pub(crate) ended: Vec<(u32, Ended)>,
    /// Connections of HTTP that ended before all of their requests were served, which others then were.
    pub(crate) resent: u64,
    /// Corrupt streams: must stay empty.
    pub(crate) corrupt: Vec<String>,
}

impl Client {
    pub(crate) fn new(address: Ipv4Addr, port: LanPort, scenario: &Scenario) -> Self {
        let router = Router { mtu: scenario.path_mtu, marks: scenario.marks };
        Client { tls: scenario.tls, ..Self::behind(router, address, port, scenario.seed) }
    }

    /// Creates a client host behind a router.
    pub(crate) fn behind(router: Router, address: Ipv4Addr, port: LanPort, seed: u64) -> Self {
        let mut tcp = host_tcp(seed, router.marks);
        tcp.listen((address, SERVER_PORT).into(), 0).expect("an empty table takes a listener");
        Client {
            lan: LanHost::new(address, port, router, tcp, Some(SERVER_PORT)),
            talks: BTreeMap::new(),
            chains: BTreeMap::new(),
            http: None,
            secure: BTreeMap::new(),
            tls: false,
            deaf: BTreeMap::new(),
            woken: BTreeSet::new(),
            paced: BTreeMap::new(),
            prompt_end: Instant::ZERO,
            addresses: BTreeMap::new(),
            ended: Vec::new(),
            resent: 0,
            corrupt: Vec::new(),
        }
    }

    /// Sends everything to the network node that answers for `service`.
    pub(crate) fn follow(&mut self, service: Ipv4Addr) {
        self.lan.follow(service);
    }

    /// Requests the MAC address of `service`; until the answer arrives no transaction can start.
    pub(crate) fn resolve(&mut self, service: Ipv4Addr) {
        self.lan.resolve(service);
    }

    /// Returns the number of network nodes that have answered.
    pub(crate) fn gateways(&self) -> usize {
        self.lan.gateways()
    }

    /// Removes a network node that is down: its connections use the others.
    pub(crate) fn remove_gateway(&mut self, mac: MacAddr) {
        self.lan.remove_gateway(mac);
    }

    /// Opens a connection and sends the request.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        service: SocketAddr,
        request: Request,
        abort_after: Option<u64>,
        deaf_until: Option<Instant>,
    ) {
        let label = self.lan.connect(now, service);
        self.addresses.extend(self.lan.tcp.info(label).map(|info| (request.key, info.tuple.local)));
        self.talks.insert(label, Talk::Bytes(Conversation::asking(request, abort_after)));
        if self.tls {
            self.secure.insert(label, Secure::new());
        }
        self.deaf.extend(deaf_until.map(|until| (label, (until, false))));
    }

    /// Sends a request of HTTP, on the connection of its chain if there is one that takes it. `more`: others
    /// of the chain follow.
    pub(crate) fn start_http(
        &mut self,
        now: Instant,
        service: SocketAddr,
        ask: Ask,
        (chain, more): (usize, bool),
    ) {
        self.http = Some(service);
        let known = self.chains.get(&chain).copied();
        let talk = known.and_then(|label| self.talks.get_mut(&label));
        match (known, talk.map_or(Some(ask), |talk| talk.add(ask, more))) {
            (Some(label), None) => self.converse(now, label),
            (_, ask) => self.open_http(now, Some(chain), Asking::new(ask, more)),
        }
    }

    fn open_http(&mut self, now: Instant, chain: Option<usize>, asking: Asking) {
        let Some(service) = self.http else { return };
        let label = self.lan.connect(now, service);
        self.chains.extend(chain.map(|chain| (chain, label)));
        self.talks.insert(label, Talk::Asking(Box::new(asking)));
        if self.tls {
            self.secure.insert(label, Secure::new());
        }
    }

    /// Sends what a connection of HTTP that has ended leaves on another one.
    fn go_on(&mut self, now: Instant, label: FlowLabel, talk: &mut Talk) {
        let (left, more) = talk.left();
        if left.is_empty() {
            return;
        }
        self.resent += 1;
        // Its chain may have another connection already.
        let chain = self.chains.iter().find(|(_, of_chain)| **of_chain == label).map(|(chain, _)| *chain);
        self.open_http(now, chain, Asking::new(left, more && chain.is_some()));
    }

    /// Limits from now on what the transaction `key` sends.
    pub(crate) fn pace(&mut self, now: Instant, key: u32, pace: Pace) {
        let Some((label, talk)) = self.talks.iter().find(|(_, talk)| talk.asks() && talk.key() == key) else {
            return;
        };
        let (allowed, next) = (talk.given() + pace.bytes, now + pace.every);
        self.paced.insert(*label, Paced { pace, allowed, next });
    }

    /// Receives frames, runs TCP, sends frames; returns whether anything was done.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let mut any = self.lan.receive(now);
        while let Some((label, event)) = self.lan.tcp.poll_event() {
            any = true;
            self.on_event(now, label, event);
        }
        while let Some((&label, &(_, finished))) = self.deaf.iter().find(|(_, (until, _))| *until <= now) {
            any = true;
            self.deaf.remove(&label);
            self.woken.insert(label);
            let event = if finished { Event::PeerFinished } else { Event::Readable };
            self.on_event(now, label, event);
        }
        any |= self.pace_on(now);
        any | self.lan.transmit(now)
    }

    /// Lets paced conversations send whose interval is over.
    fn pace_on(&mut self, now: Instant) -> bool {
        let due: Vec<FlowLabel> =
            self.paced.iter().filter(|(_, paced)| paced.next <= now).map(|(label, _)| *label).collect();
        for label in &due {
            if let Some(paced) = self.paced.get_mut(label) {
                (paced.allowed, paced.next) = (paced.allowed + paced.pace.bytes, now + paced.pace.every);
            }
            self.converse(now, *label);
        }
        !due.is_empty()
    }

    fn on_event(&mut self, now: Instant, label: FlowLabel, event: Event) {
        match event {
            Event::Established { passive, .. } => {
                if passive {
                    self.talks.insert(label, Talk::serving(false));
                }
                self.converse(now, label);
            }
            Event::Writable | Event::Readable | Event::Broken(_) => self.converse(now, label),
            Event::PeerFinished if self.deaf.contains_key(&label) => {
                self.deaf.entry(label).and_modify(|(_, finished)| *finished = true);
            }
            Event::PeerFinished => {
                self.read(now, label);
                if let Some(talk) = self.talks.get_mut(&label) {
                    match self.secure.get_mut(&label) {
                        None => talk.on_end(),
                        Some(secure) if !secure.closed => {
                            secure.wrong.get_or_insert("FIN without close_notify".to_owned());
                        }
                        Some(_) => {}
                    }
                }
                self.converse(now, label);
            }
            Event::Closed | Event::Reset => self.end(now, label, None),
            Event::Failed(reason) => self.end(now, label, Some(format!("{reason:?}"))),
        }
    }

    fn end(&mut self, now: Instant, label: FlowLabel, failure: Option<String>) {
        let Some(mut talk) = self.talks.remove(&label) else { return };
        self.paced.remove(&label);
        if self.deaf.remove(&label).is_none() && !self.woken.remove(&label) {
            self.prompt_end = now;
        }
        self.ended.extend(talk.ended(failure));
        self.corrupt.extend(talk.take_wrong());
        self.corrupt.extend(self.secure.remove(&label).and_then(|secure| secure.wrong));
        self.go_on(now, label, &mut talk);
    }

    fn read(&mut self, now: Instant, label: FlowLabel) {
        let Some(talk) = self.talks.get_mut(&label).filter(|_| !self.deaf.contains_key(&label)) else {
            return;
        };
        if talk.refusal().is_some() && !talk.asks() {
            return;
        }
        let mut secure = self.secure.get_mut(&label);
        self.lan.tcp.read_with(now, label, usize::MAX, |bytes| {
            match secure.as_deref_mut() {
                None => talk.take(bytes),
                Some(secure) => talk.take(&secure.receive(bytes)),
            }
            bytes.len()
        });
        if secure.is_some_and(|secure| secure.closed) {
            talk.on_end();
        }
    }

    /// Reads and writes until it would block.
    fn converse(&mut self, now: Instant, label: FlowLabel) {
        self.read(now, label);
        let Some(talk) = self.talks.get_mut(&label) else { return };
        let mut chunk = [0; CHUNK];
        loop {
            if talk.aborts() {
                self.lan.tcp.abort(now, label);
                self.ended.extend(talk.aborted());
                self.corrupt.extend(talk.take_wrong());
                self.secure.remove(&label);
                let talk = self.talks.remove(&label);
                talk.into_iter().for_each(|mut talk| self.go_on(now, label, &mut talk));
                return;
            }
            let len = talk.next(&mut chunk);
            let paced = self.paced.get(&label).map(|paced| (paced.allowed - talk.given()) as usize);
            if len == 0 {
                self.paced.remove(&label);
            }
            let len = len.min(paced.unwrap_or(len));
            let taken = match self.secure.get_mut(&label) {
                _ if len == 0 => 0,
                None => self.lan.tcp.write(now, label, &chunk[..len]),
                Some(secure) => secure.write(&chunk[..len], (&mut self.lan.tcp, now, label)),
            };
            talk.sent(taken);
            if taken < len || len == 0 {
                break;
            }
        }
        if let Some(secure) = self.secure.get_mut(&label) {
            if talk.ends_sending() || talk.is_over() {
                secure.close();
            }
            match secure.flush(&mut self.lan.tcp, now, label) {
                true if talk.is_over() => self.lan.tcp.close(now, label),
                true => self.lan.tcp.shutdown(now, label),
                false => {}
            }
            return;
        }
        if talk.ends_sending() {
            self.lan.tcp.shutdown(now, label);
        }
        if !talk.is_over() {
            return;
        }
        let refusal = talk.refusal().filter(|_| !talk.asks());
        if refusal.is_some_and(|refusal| refusal.shuts) {
            self.lan.tcp.shutdown(now, label);
        }
        match refusal.is_some_and(|refusal| refusal.resets) {
            true if !self.lan.tcp.reset(now, label) => self.end(now, label, None),
            true => {}
            false => self.lan.tcp.close(now, label),
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let wakes = self.deaf.values().map(|(until, _)| *until);
        let paced = self.paced.values().map(|paced| paced.next);
        self.lan.tcp.next_timeout().into_iter().chain(wakes).chain(paced).min()
    }

    /// Returns the number of transactions that it requested and that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.talks.values().filter(|t| t.asks()).count()
    }

    /// Returns the number of conversations of either kind that have not ended.
    pub(crate) fn open(&self) -> usize {
        self.talks.len()
    }

    /// Returns its uploads that have not ended.
    pub(crate) fn uploads(&self) -> impl Iterator<Item = Upload> + '_ {
        self.talks.iter().filter(|(_, talk)| talk.asks()).filter_map(|(label, talk)| {
            let info = self.lan.tcp.info(*label)?;
            // The queue has ciphertext, which is longer.
            let waiting = self.secure.get(label).map_or(0, Secure::waiting);
            let acknowledged = talk.given().saturating_sub((info.send_queue + waiting) as u64);
            Some(Upload { key: talk.key(), acknowledged, window: info.send_window })
        })
    }

    pub(crate) fn tcp(&self) -> &Stack {
        &self.lan.tcp
    }
}

//! A world with a gateway: clients send text, processes answer by text.

use std::sync::Arc;

use csp_gateway::spec::{Action, RuleConfig, ServiceConfig};
use csp_gateway::{Gateway, HttpService, Record, Records};
use csp_http::head::Scheme;
use csp_http::route::RouteSpec;
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;

use crate::world::{NUMBER, POOL, World};

pub const A: u16 = 8001;
pub const B: u16 = 8002;

/// The service that forwards everything to the pool.
pub fn service() -> ServiceConfig {
    let rule = RuleConfig::new("all", RouteSpec::default(), to_pool());
    ServiceConfig { trace: false, origin: Default::default(), rules: vec![rule], ..named() }
}

/// A service without rules.
pub fn named() -> ServiceConfig {
    ServiceConfig::new(NUMBER, "web", Scheme::Http)
}

pub fn to_pool() -> Action {
    Action::Forward(vec![(POOL.into(), 1)])
}

pub struct Http {
    pub w: World<Gateway>,
    /// What of each upstream connection was examined by the test.
    seen: std::collections::BTreeMap<u32, usize>,
    /// What of each upstream connection was credited.
    credited: std::collections::BTreeMap<u32, usize>,
    /// The same of each client.
    read: std::collections::BTreeMap<u16, usize>,
    /// Room of each connection at a process.
    pub room: u32,
}

impl Http {
    pub fn new(config: ServiceConfig) -> Self {
        Http::with_members(config, &[A, B])
    }

    pub fn with_members(config: ServiceConfig, members: &[u16]) -> Self {
        let mut gateway = Gateway::new(7);
        let service = HttpService::new(config).unwrap();
        gateway.set_services(csp_types::Instant::ZERO, vec![Arc::new(service)]);
        let (seen, credited, read) = Default::default();
        Http { w: World::new(gateway, members), seen, credited, read, room: 1 << 20 }
    }

    pub fn gateway(&mut self) -> &mut Gateway {
        self.w.core.local_mut()
    }

    /// Sets another policy of the service.
    pub fn set(&mut self, config: ServiceConfig) {
        let (now, service) = (self.w.now, HttpService::new(config).unwrap());
        self.gateway().set_services(now, vec![Arc::new(service)]);
        self.w.settle();
    }

    /// Has a client send text, all of it.
    pub fn send(&mut self, port: u16, text: impl AsRef<[u8]>) {
        let mut text = text.as_ref();
        while !text.is_empty() {
            let len = self.w.client_sends(port, text);
            assert!(len > 0, "the proxy has no room");
            text = &text[len..];
        }
    }

    /// Returns what a client has received since the last call.
    pub fn reads(&mut self, port: u16) -> String {
        let received = &self.w.clients[&port].received;
        let from = self.read.insert(port, received.len()).unwrap_or(0);
        String::from_utf8_lossy(&received[from..]).into_owned()
    }

    /// Accepts the oldest offer.
    pub fn accept(&mut self) -> FlowLabel {
        let room = self.room;
        self.w.accept(room).1
    }

    /// Returns what a process has received at a connection since the last call, and gives the room back.
    pub fn hears(&mut self, label: FlowLabel) -> String {
        let len = self.w.served[&label.to_wire()].received.len();
        let credited = self.credited.insert(label.to_wire(), len).unwrap_or(0);
        if len > credited && !self.w.served[&label.to_wire()].reset {
            self.w.says(label, MessageKind::Credit, (len - credited) as u32, &[]);
        }
        let from = self.seen.insert(label.to_wire(), len).unwrap_or(0);
        String::from_utf8_lossy(&self.w.served[&label.to_wire()].received[from..]).into_owned()
    }

    /// Has a process say text.
    pub fn says(&mut self, label: FlowLabel, text: impl AsRef<[u8]>) {
        let mut text = text.as_ref();
        while !text.is_empty() {
            let len = self.w.sends(label, text);
            assert!(len > 0, "the gateway has no room");
            text = &text[len..];
        }
    }

    /// Has a process close a connection.
    pub fn closes(&mut self, label: FlowLabel) {
        self.w.says(label, MessageKind::Close, 0, &[]);
    }

    /// Has a process reset a connection.
    pub fn resets(&mut self, label: FlowLabel) {
        self.w.says(label, MessageKind::Reset, 0, &[]);
    }

    /// Connects a client, which sends a request; returns the connection of the process that gets it.
    pub fn asks(&mut self, port: u16, text: &str) -> FlowLabel {
        self.w.connect(port);
        self.send(port, text);
        self.accept()
    }

    /// Returns the records of the log.
    pub fn records(&mut self) -> Vec<Record> {
        let (records, _) = self.gateway().take_records(Records::default());
        records.as_slice().to_vec()
    }

    /// Returns the status and the code of each record.
    pub fn codes(&mut self) -> Vec<(u16, &'static str)> {
        self.records().iter().map(|record| (record.status, record.code())).collect()
    }

    /// Checks that nothing is left, after clients have gone and kept connections have ended.
    pub fn assert_no_leak(&mut self) {
        let ports: Vec<u16> = self.w.clients.keys().copied().collect();
        for port in ports {
            let client = &self.w.clients[&port];
            if !client.rst {
                self.w.segment(port, csp_wire::tcp::Flags::RST | csp_wire::tcp::Flags::ACK, &[]);
            }
        }
        self.w.pass(std::time::Duration::from_secs(200));
        assert_eq!(self.gateway().connections(), (0, 0));
        assert_eq!(self.gateway().snapshot().exchanges, 0);
        self.w.assert_empty();
    }
}

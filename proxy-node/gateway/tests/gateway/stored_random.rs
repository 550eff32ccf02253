//! The cache between clients that go and servers that fail, in an order that a seed draws: whoever gets a
//! whole response gets one that the server has had since the request began, and nothing is left in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csp_cache::Store;
use csp_cache::freshness::Rules;
use csp_gateway::spec::CacheConfig;
use csp_support::Random;
use csp_types::FlowLabel;
use csp_wire::tcp::Flags;

use crate::cache::{with_cache, world_of};
use crate::http::{Http, service};

const PATHS: usize = 3;
const STEPS: usize = 250;

/// A request that a client has sent: which path, and the version that was in force then.
struct Asked {
    path: usize,
    version: u32,
    is_put: bool,
}

/// A request that a server has got.
struct Serving {
    path: usize,
    is_put: bool,
    condition: Option<u32>,
    /// What is left of a response that has begun.
    rest: Option<String>,
}

struct Course {
    seed: u64,
    h: Http,
    store: Arc<Store>,
    random: Random,
    versions: [u32; PATHS],
    clients: BTreeMap<u16, (Asked, String)>,
    servers: BTreeMap<u32, Option<Serving>>,
    next_port: u16,
    served: usize,
}

/// Returns the number behind `name` in a text.
fn number(text: &str, name: &str) -> Option<usize> {
    let (_, behind) = text.split_once(name)?;
    behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Course {
    fn new(seed: u64) -> Self {
        let rules = Rules { stale_if_error: 30, ..Rules::default() };
        let (h, store) = world_of(with_cache(service(), CacheConfig { rules, ..CacheConfig::default() }));
        Course {
            seed,
            h,
            store,
            random: Random::new(seed),
            versions: [1; PATHS],
            clients: BTreeMap::new(),
            servers: BTreeMap::new(),
            next_port: 2_000,
            served: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..4 if self.clients.len() < 8 => self.ask(),
            4 if !self.clients.is_empty() => {
                let at = self.random.below(self.clients.len() as u64) as usize;
                let port = *self.clients.keys().nth(at).unwrap();
                self.clients.remove(&port);
                self.h.w.segment(port, Flags::RST | Flags::ACK, &[]);
                self.h.w.clients.get_mut(&port).unwrap().rst = true;
            }
            5 => {
                let ms = [1, 20, 400, 3_000, 20_000][self.random.below(5) as usize];
                self.h.w.pass(Duration::from_millis(ms));
            }
            _ => self.respond(),
        }
        self.listen();
        self.read();
    }

    fn ask(&mut self) {
        let (port, path) = (self.next_port, self.random.below(PATHS as u64) as usize);
        self.next_port += 1;
        let is_put = self.random.below(8) == 0;
        let (method, length) = if is_put { ("PUT", "Content-Length: 0\r\n") } else { ("GET", "") };
        self.h.w.connect(port);
        self.h.send(
            port,
            format!("{method} /p{path} HTTP/1.1\r\nHost: a\r\n{length}Connection: close\r\n\r\n"),
        );
        self.clients.insert(port, (Asked { path, version: self.versions[path], is_put }, String::new()));
    }

    /// Has servers get what was sent to them.
    fn listen(&mut self) {
        while !self.h.w.offers.is_empty() {
            let label = self.h.accept();
            self.servers.insert(label.to_wire(), None);
        }
        let labels: Vec<u32> = self.servers.keys().copied().collect();
        for wire in labels {
            let label = FlowLabel::from_wire(wire).unwrap();
            let (is_reset, is_finished) = {
                let served = &self.h.w.served[&wire];
                (served.reset, served.finished)
            };
            let text = self.h.hears(label);
            if !text.is_empty() {
                let serving = Serving {
                    path: number(&text, " /p").unwrap(),
                    is_put: text.starts_with("PUT"),
                    condition: number(&text, "If-None-Match: \"").map(|version| version as u32),
                    rest: None,
                };
                assert!(!text.contains("Range"), "seed {}", self.seed);
                self.servers.insert(wire, Some(serving));
            }
            if is_reset || is_finished {
                self.servers.remove(&wire);
                if is_finished && !is_reset {
                    self.h.closes(label);
                }
            }
        }
    }

    /// Has a server go on with a response.
    fn respond(&mut self) {
        let busy: Vec<u32> =
            self.servers.iter().filter(|(_, s)| s.is_some()).map(|(wire, _)| *wire).collect();
        if busy.is_empty() {
            return;
        }
        let wire = busy[self.random.below(busy.len() as u64) as usize];
        let label = FlowLabel::from_wire(wire).unwrap();
        let mut serving = self.servers.insert(wire, None).unwrap().unwrap();
        if let Some(rest) = serving.rest.take() {
            match self.random.below(5) {
                0 => {
                    self.servers.remove(&wire);
                    return self.h.resets(label);
                }
                _ => return self.h.says(label, rest),
            }
        }
        if serving.is_put {
            self.versions[serving.path] += 1;
            return self.h.says(label, "HTTP/1.1 204 No Content\r\n\r\n");
        }
        let version = self.versions[serving.path];
        let control = ["max-age=5", "max-age=60", "no-cache", "private"][self.random.below(4) as usize];
        let head = format!("Cache-Control: {control}\r\nETag: \"{version}\"\r\n");
        let body = format!("p{}v{version};{}", serving.path, "x".repeat(self.random.below(3_000) as usize));
        let text = match self.random.below(10) {
            0 => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned(),
            1 => {
                self.servers.remove(&wire);
                return self.h.resets(label);
            }
            _ if serving.condition == Some(version) => format!("HTTP/1.1 304 Same\r\n{head}\r\n"),
            2..6 => format!("HTTP/1.1 200 OK\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len()),
            _ => {
                let (first, second) = body.split_at(body.len() / 2);
                let chunk = |text: &str| match text.len() {
                    0 => String::new(),
                    len => format!("{len:x}\r\n{text}\r\n"),
                };
                let chunks = chunk(first) + &chunk(second);
                format!("HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
            }
        };
        let cut = self.random.below(text.len() as u64 + 1) as usize;
        let (now, later) = text.split_at(if self.random.below(3) == 0 { cut } else { text.len() });
        if !later.is_empty() {
            serving.rest = Some(later.to_owned());
            self.servers.insert(wire, Some(serving));
        }
        if !now.is_empty() {
            self.h.says(label, now);
        }
    }

    /// Checks what clients have received.
    fn read(&mut self) {
        let ports: Vec<u16> = self.clients.keys().copied().collect();
        for port in ports {
            let news = self.h.reads(port);
            let (is_over, _) = (self.h.w.clients[&port].fin || self.h.w.clients[&port].rst, ());
            let (asked, text) = self.clients.get_mut(&port).unwrap();
            text.push_str(&news);
            if !is_over {
                continue;
            }
            let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text.as_str(), ""));
            let is_whole = match number(head, "Content-Length: ") {
                Some(len) => body.len() == len,
                None => body.ends_with("0\r\n\r\n"),
            };
            if head.starts_with("HTTP/1.1 200") && is_whole && !asked.is_put {
                let path =
                    number(body, "p").filter(|_| head.contains("Length")).or_else(|| number(body, "\np"));
                let version = number(body, "v").unwrap() as u32;
                let known = asked.version..=self.versions[asked.path];
                assert_eq!(path, Some(asked.path), "seed {}: {text}", self.seed);
                assert!(known.contains(&version), "seed {}: {version} is none of {known:?}", self.seed);
                self.served += 1;
            }
            self.clients.remove(&port);
        }
    }
}

#[test]
fn clients_get_what_the_server_has() {
    let one = std::env::var("CSP_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let (mut served, mut stored) = (0, 0);
    for seed in one.map_or(0..40, |seed| seed..seed + 1) {
        let mut course = Course::new(seed);
        (0..STEPS).for_each(|_| course.step());
        served += course.served;
        stored += course.store.status().stored;
        course.h.assert_no_leak();
        assert_eq!(course.store.status().filling, 0, "seed {seed}");
    }
    assert!(one.is_some() || (served > 1_000 && stored > 200), "{served} served, {stored} stored");
}

//! Clients over TLS in front of members of either kind.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use csp_proxy_core::{Certificate, ServerTls, ServiceSpec, TlsVersion};
use csp_support::Random;
use csp_types::FlowLabel;
use csp_wire::channel::MessageKind;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::lines::Lines;
use crate::talk::{Answering, Talk, body};
use crate::world::plain::plain;
use crate::world::{World, pool};

const NAME: &str = "www.csp.test";
const A: u16 = 8001;
const PORT: u16 = 1_000;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns what the service has, and a client that trusts it.
fn both() -> (ServerTls, ClientConnection) {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificate = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
    let tls = ServerTls::new(
        (provider(), Arc::new(DefaultTimeProvider)),
        &[certificate],
        TlsVersion::Tls12,
        &[],
        None,
    )
    .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.max_fragment_size = Some(4_096); // the world's windows are smaller than the longest record
    let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME).unwrap()).unwrap();
    client.set_buffer_limit(None);
    (tls, client)
}

/// A client of the world with its session.
struct Secure {
    session: ClientConnection,
    /// Ciphertext that was read, and that waits.
    taken: usize,
    waiting: Vec<u8>,
    read: Vec<u8>,
    /// The service has ended its stream.
    ended: bool,
}

impl Secure {
    fn run(&mut self, w: &mut World<Lines>) {
        let received = &w.clients[&PORT].received;
        let mut bytes = &received[self.taken..];
        self.taken = received.len();
        while !bytes.is_empty() {
            self.session.read_tls(&mut bytes).unwrap();
            let state = self.session.process_new_packets().unwrap();
            self.ended |= state.peer_has_closed();
            let mut plaintext = vec![0; state.plaintext_bytes_to_read()];
            self.session.reader().read_exact(&mut plaintext).unwrap();
            self.read.extend(plaintext);
        }
        while self.session.wants_write() {
            self.session.write_tls(&mut self.waiting).unwrap();
        }
        loop {
            let sent = w.client_sends(PORT, &self.waiting);
            if sent == 0 {
                return;
            }
            self.waiting.drain(..sent);
        }
    }
}

/// Lets the member read and answer what it can; returns its connection once there is one.
fn serve(w: &mut World<Lines>, random: &mut Random, at: &mut Answering) -> Option<FlowLabel> {
    if !w.offers.is_empty() {
        w.accept(5_000);
    }
    let len = random.below(20_000) as usize;
    if let Some(label) = w.servers.values().next().unwrap().accepted.first().copied() {
        let host = w.server(1);
        host.at_mut(label).stalls = random.below(3) == 0;
        at.read(&host.at(label).read.clone(), len);
        let part: Vec<u8> = at.answer.drain(..at.answer.len().min(len)).collect();
        host.write(label, &part);
        w.settle();
        return None;
    }
    let label = FlowLabel::from_wire(*w.served.keys().next()?)?;
    let received = w.served[&label.to_wire()].received.clone();
    at.read(&received, len);
    let more = at.read - at.credited;
    at.credited += more;
    w.says(label, MessageKind::Credit, more as u32, &[]);
    let sent = w.sends(label, &at.answer);
    at.answer.drain(..sent);
    Some(label)
}

#[test]
fn a_client_over_tls_gets_what_a_member_of_either_kind_answers() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let is_plain = seed % 2 == 0;
        let (tls, session) = both();
        let mut w = World::new(Lines::default(), &[A]);
        w.add_servers(&[1]);
        let of_pool = if is_plain { vec![plain(1)] } else { pool(&[A]).pool };
        w.policy(ServiceSpec { pool: of_pool, tls: Some(tls), ..pool(&[]) });
        w.connect(PORT);
        let mut client = Secure { session, taken: 0, waiting: vec![], read: vec![], ended: false };
        let mut talk = Talk::new(&mut random, 6);
        let len = 150_000;
        talk.asks.extend([format!("put {len}\n").as_bytes(), &body(len), b"get 150000\n"].concat());
        talk.expects.extend([format!("ok {len}\n{len}\n").as_bytes(), &body(len)].concat());
        client.session.writer().write_all(&talk.asks).unwrap();
        let (mut at, mut of_process) = (Answering::default(), None);
        for round in 0.. {
            assert!(round < 20_000, "seed {seed}: {} of {}", client.read.len(), talk.expects.len());
            w.clients.get_mut(&PORT).unwrap().stalled = random.below(4) == 0;
            client.run(&mut w);
            of_process = serve(&mut w, &mut random, &mut at).or(of_process);
            w.pass(Duration::from_millis(random.below(60)));
            if client.read.len() >= talk.expects.len() {
                break;
            }
        }
        assert!(client.read == talk.expects, "seed {seed}");
        w.clients.get_mut(&PORT).unwrap().stalled = false;
        client.session.send_close_notify();
        client.run(&mut w);
        w.client_finishes(PORT);
        w.pass(Duration::from_millis(500));
        client.run(&mut w);
        assert!(client.ended && w.clients[&PORT].fin, "seed {seed}");
        match of_process {
            Some(label) => w.says(label, MessageKind::Close, 0, &[]),
            None => {
                let label = w.server(1).accepted[0];
                w.server(1).finish(label);
                w.settle();
            }
        }
        w.pass(Duration::from_secs(60));
        assert_eq!(w.core.local().len(), 0, "seed {seed}");
        w.assert_empty();
    }
}

#[test]
fn connections_of_a_source_beyond_its_handshakes_are_reset() {
    let (tls, _) = both();
    let mut w = World::new(Lines::default(), &[A]);
    w.policy(ServiceSpec { tls: Some(tls), handshakes_per_source: 3, ..pool(&[A]) });
    let ports = PORT..PORT + 5;
    for port in ports.clone() {
        w.connect(port);
    }
    w.pass(Duration::from_millis(10));
    let reset = ports.filter(|port| w.clients[port].rst).count();
    assert_eq!((reset, w.core.counters().tls_handshakes_not_admitted), (2, 2));
    w.pass(Duration::from_millis(400));
    w.connect(PORT + 9);
    w.pass(Duration::from_millis(10));
    assert!(!w.clients[&(PORT + 9)].rst, "a third of a second is enough for one");
}

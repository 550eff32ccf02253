//! Tickets of one proxy at another: keys that both derive from a secret and the time.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Clock, NAME, connect, provider};
use csp_tls::{Certificate, ServerTls, TicketKeys, TlsVersion};
use rustls::server::ProducesTickets as _;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore};

const SECRET: &[u8] = b"forty random bytes of a file of proxies.";
const EPOCH: u64 = 6 * 3_600;
/// The middle of an epoch, in 2026.
const NOW: u64 = 82_000 * EPOCH + EPOCH / 2;

fn keys(clock: &Arc<Clock>, secret: &[u8], binding: &str) -> TicketKeys {
    TicketKeys::new((provider(), clock.clone()), secret, binding.as_bytes()).unwrap()
}

#[test]
fn a_ticket_is_opened_by_whoever_has_the_secret_for_an_epoch_more() {
    let (a, b) = (Clock::at(NOW), Clock::at(NOW));
    let (of_a, of_b) = (keys(&a, SECRET, "www"), keys(&b, SECRET, "www"));
    let ticket = of_a.encrypt(b"session").unwrap();
    assert_ne!(of_a.encrypt(b"session").unwrap(), ticket, "each has a key of its own");
    for (time, opens) in [
        (NOW, true),
        (NOW + EPOCH, true),
        (NOW + EPOCH + EPOCH / 2 - 1, true),
        (NOW + EPOCH + EPOCH / 2, false),
        (NOW + 2 * EPOCH, false),
        // Its clock is behind.
        (NOW - EPOCH, true),
        (NOW - 2 * EPOCH, false),
    ] {
        b.0.store(time, Ordering::Relaxed);
        let opened = of_b.decrypt(&ticket);
        assert_eq!(opened.as_deref(), opens.then_some(&b"session"[..]), "{time}");
    }
    assert_eq!(u64::from(of_a.lifetime()), EPOCH + EPOCH / 2, "to the end of the next epoch");
}

#[test]
fn another_secret_or_another_service_opens_none() {
    let clock = Clock::at(NOW);
    let ticket = keys(&clock, SECRET, "www").encrypt(b"session").unwrap();
    assert!(keys(&clock, SECRET, "www").decrypt(&ticket).is_some());
    assert!(keys(&clock, SECRET, "api").decrypt(&ticket).is_none());
    assert!(keys(&clock, SECRET, "").decrypt(&ticket).is_none());
    assert!(keys(&clock, &[SECRET, b"x"].concat(), "www").decrypt(&ticket).is_none());
    assert!(TicketKeys::new((provider(), clock), &[7; 31], b"").is_none(), "too short");
}

#[test]
fn hostile_tickets_open_nothing() {
    let clock = Clock::at(NOW);
    let keys = keys(&clock, SECRET, "www");
    let plain: Vec<u8> = (0..300).map(|n| n as u8).collect();
    let ticket = keys.encrypt(&plain).unwrap();
    for bit in 0..8 * ticket.len() {
        let mut changed = ticket.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(keys.decrypt(&changed).is_none(), "bit {bit}");
    }
    (0..ticket.len()).for_each(|len| assert!(keys.decrypt(&ticket[..len]).is_none(), "{len} bytes"));
    assert!(keys.decrypt(&[&ticket[..], &[0]].concat()).is_none());
    assert!(keys.decrypt(&[&ticket[..16], &vec![0; 60_000]].concat()).is_none());
    let longest = vec![1; 16 * 1024];
    assert_eq!(keys.decrypt(&keys.encrypt(&longest).unwrap()).as_deref(), Some(&longest[..]));
    assert!(keys.encrypt(&vec![1; 16 * 1024 + 1]).is_none());
    assert_eq!(keys.decrypt(&keys.encrypt(b"").unwrap()).as_deref(), Some(&b""[..]));
}

#[test]
fn a_session_of_one_proxy_is_resumed_at_another() {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificate = Certificate::from_pem(&provider(), NAME, chain.as_bytes(), key.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let offer = |clock: &Arc<Clock>, secret: &[u8]| {
        let tickets: Arc<TicketKeys> = Arc::new(keys(clock, secret, "www"));
        let with = (provider(), clock.clone() as Arc<_>);
        let certificates = std::slice::from_ref(&certificate);
        ServerTls::new(with, certificates, TlsVersion::Tls12, &[], Some(tickets)).unwrap()
    };
    let (a, b) = (Clock::at(NOW), Clock::at(NOW));
    let (of_a, of_b, of_other) = (offer(&a, SECRET), offer(&b, SECRET), offer(&b, &[9; 48]));
    for version in [&TLS12, &TLS13] {
        let client = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version]);
        let client = client.unwrap().with_root_certificates(roots.clone()).with_no_client_auth();
        let client = Arc::new(client);
        assert_eq!(connect(&client, &of_a).client, Ok(HandshakeKind::Full), "{version:?}");
        b.0.store(NOW + EPOCH, Ordering::Relaxed);
        assert_eq!(connect(&client, &of_b).client, Ok(HandshakeKind::Resumed), "{version:?}");
        a.0.store(NOW + 3 * EPOCH, Ordering::Relaxed);
        assert_eq!(connect(&client, &of_a).client, Ok(HandshakeKind::Full), "{version:?}: too late");
        a.0.store(NOW, Ordering::Relaxed);
        b.0.store(NOW, Ordering::Relaxed);
        assert_eq!(
            connect(&client, &of_other).client,
            Ok(HandshakeKind::Full),
            "{version:?}: another secret"
        );
    }
}

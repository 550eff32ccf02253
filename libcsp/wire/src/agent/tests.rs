//! Round trips, and valid messages with every truncation and every flipped byte.

use super::page::*;
use super::*;
use csp_types::{FlowLabel, Instant, TraceEvent, TraceKind};

fn destination(address: &str, length: u8, except: bool) -> Destination {
    Destination { prefix: Prefix::new(address.parse().unwrap(), length).unwrap(), except }
}

fn attached(buffer: &mut [u8]) -> usize {
    let proxies = [
        Proxy {
            node: "pn-1".parse().unwrap(),
            worker: 0,
            path: b"/run/csp/pn-1.w0.sock",
            direct: None,
            draining: true,
        },
        Proxy {
            node: "pn-2".parse().unwrap(),
            worker: 3,
            path: b"/run/csp/pn-2.w3.sock",
            direct: Some("10.77.0.2:7357".parse().unwrap()),
            draining: false,
        },
    ];
    let message = AttachedRepr {
        node: "an-1".parse().unwrap(),
        process: b"nginx.42.7",
        token: b"a token",
        expires: 1_800_000_000,
        listen: Some(&[80, 8080]),
        connect: &[destination("10.76.0.0", 24, false), destination("10.76.0.128", 25, true)],
        loopback: true,
        proxies: &proxies,
    };
    emit_attached(buffer, &message).unwrap()
}

#[test]
fn attached_comes_back_as_it_was_written() {
    let mut buffer = [0; MESSAGE_LEN_MAX];
    let len = attached(&mut buffer);
    let AgentMessage::Attached(a) = AgentMessage::parse(&buffer[..len]).unwrap() else {
        panic!("another kind")
    };
    assert_eq!((a.node.as_str(), a.process, a.token), ("an-1", &b"nginx.42.7"[..], &b"a token"[..]));
    assert_eq!((a.expires, a.loopback), (1_800_000_000, true));
    assert!(a.listen.covers(80) && a.listen.covers(8080) && !a.listen.covers(81));
    assert!(a.connect.covers("10.76.0.9".parse().unwrap()));
    assert!(a.connect.covers("::ffff:10.76.0.9".parse().unwrap()));
    assert!(!a.connect.covers("10.76.0.200".parse().unwrap()), "an exception");
    assert!(!a.connect.covers("10.76.1.9".parse().unwrap()) && !a.connect.covers("::1".parse().unwrap()));
    let paths: Vec<_> = a.proxies.iter().map(|p| (p.node.as_str().to_owned(), p.worker, p.path)).collect();
    assert_eq!(paths[1], ("pn-2".to_owned(), 3, &b"/run/csp/pn-2.w3.sock"[..]));
    assert_eq!(paths.len(), 2);
}

#[test]
fn the_other_messages_come_back() {
    let mut b = [0; 512];
    let name = "php-fpm 8".parse().unwrap();
    let n = emit_attach(&mut b, &Attach { pid: 42, program: name, former: b"nginx-42-1" }).unwrap();
    assert_eq!(
        AgentMessage::parse(&b[..n]),
        Ok(AgentMessage::Attach(Attach { pid: 42, program: name, former: b"nginx-42-1" }))
    );
    let n = emit_refused(&mut b, "user 33 may not").unwrap();
    assert_eq!(AgentMessage::parse(&b[..n]), Ok(AgentMessage::Refused(b"user 33 may not")));
    let n = emit_renew(&mut b).unwrap();
    assert_eq!(AgentMessage::parse(&b[..n]), Ok(AgentMessage::Renew));
    let n = emit_token(&mut b, b"t", 7).unwrap();
    assert_eq!(AgentMessage::parse(&b[..n]), Ok(AgentMessage::Token(b"t", 7)));
    let n = emit_proxies(&mut b, &[], &[]).unwrap();
    assert!(matches!(AgentMessage::parse(&b[..n]), Ok(AgentMessage::Proxies(p, _)) if p.is_empty()));
    let option = CarriedOption {
        ticket: Ticket([9; TICKET_LEN]),
        option: ChannelOption::KeepaliveIdle,
        value: 60_000,
    };
    let n = emit_option(&mut b, &option).unwrap();
    assert_eq!(AgentMessage::parse(&b[..n]), Ok(AgentMessage::Option(option)));
    assert!((0..n).all(|cut| AgentMessage::parse(&b[..cut]).is_err()), "cuts");
    b[HEADER_LEN + TICKET_LEN] = 99;
    assert!(matches!(AgentMessage::parse(&b[..n]), Err(WireError::Kind { found: 99, .. })));
}

#[test]
fn no_cut_or_changed_byte_panics_and_cuts_are_refused() {
    let mut buffer = [0; MESSAGE_LEN_MAX];
    let len = attached(&mut buffer);
    for cut in 0..len {
        assert!(AgentMessage::parse(&buffer[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..len {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bad = buffer[..len].to_vec();
            bad[at] = value;
            if let Ok(AgentMessage::Attached(a)) = AgentMessage::parse(&bad) {
                assert!(a.proxies.iter().count() == a.proxies.len());
                a.connect.destinations().for_each(|d| assert!(d.prefix.contains(d.prefix.address())));
            }
        }
    }
}

#[test]
fn a_page_shows_what_was_written_and_skips_nonsense() {
    let mut page = vec![0u8; PAGE_LEN];
    page[..16].copy_from_slice(&emit_header());
    let entry = SocketEntry {
        kind: SocketKind::Connection,
        reason: Reason::Accelerated,
        fd: 9,
        label: FlowLabel::new(5, 1),
        local: "10.76.0.100:80".parse().unwrap(),
        remote: "10.76.0.1:40000".parse().unwrap(),
        error: 104,
        queue: AcceptQueue { waiting: 3, backlog: 511 },
        option: Some((6, 14)),
    };
    page[socket_offset(3)..][..SOCKET_LEN].copy_from_slice(&entry.emit());
    page[socket_offset(4)..][..SOCKET_LEN].fill(0xff);
    let event = TraceEvent {
        at: Instant::from_nanos(77),
        label: FlowLabel::new(5, 1),
        kind: TraceKind::AppDataIn,
        len: 100,
        ..TraceEvent::default()
    };
    page[trace_offset(2050)..][..TRACE_LEN].copy_from_slice(&emit_trace(2050, &event));
    page[trace_offset(7)..][..TRACE_LEN].copy_from_slice(&emit_trace(9, &event));
    page[counter_offset(11)..][..8].copy_from_slice(&1234u64.to_le_bytes());
    let view = PageView::parse(&page).unwrap();
    assert_eq!(view.sockets().collect::<Vec<_>>(), [entry]);
    assert_eq!(view.trace().collect::<Vec<_>>(), [(2050, event)]);
    assert_eq!(view.counter(11), 1234);
    assert!(PageView::parse(&page[..PAGE_LEN - 1]).is_err());
    assert!(PageView::parse(&[0xff; PAGE_LEN]).is_err());
}

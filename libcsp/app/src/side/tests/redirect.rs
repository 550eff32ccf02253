//! Connections that a proxy worker refuses because another one serves their address.

use csp_types::{FlowLabel, Owner};
use csp_vi::ViAddress;
use csp_wire::channel::MessageKind::{Connect, Connected, Refused};
use csp_wire::channel::{CONNECT_BY_LAN, Redirect};

use super::harness::{Proxy, World, open_payload};
use crate::side::redirect::{CONNECTS_MAX, LINK_PATIENCE};
use crate::{AppError, FlowId, ProxyTarget, errno};

struct Two {
    w: World,
    other: Proxy,
}

fn target(name: &str) -> ProxyTarget {
    let address = ViAddress::Name(format!("{name}.w0"));
    ProxyTarget { node: name.parse().unwrap(), worker: 0, address, draining: false }
}

fn at(name: &str) -> u32 {
    Redirect::at(&Owner { proxy: name.parse().unwrap(), worker: 0 }).to_argument()
}

impl Two {
    /// A process that connects through `pn-1`; `pn-2` runs, and the process knows of it if `announced`.
    fn new(announced: bool) -> (Self, FlowId) {
        let mut w = World::new();
        let other = Proxy::named(&w.fabric, "pn-2");
        let flow = w.app.connect(w.now, "10.76.0.100:5556".parse().unwrap(), None).unwrap();
        if announced {
            w.app.set_proxies(&[target("pn-1"), target("pn-2")]);
        }
        let mut two = Two { w, other };
        two.run(10);
        (two, flow)
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.w.run_for(1);
            self.other.turn(self.w.now);
        }
    }

    /// Has `pn-1` refuse what it was asked for, naming this proxy.
    fn refuse(&mut self, name: &str) {
        let (kind, request, ..) = self.w.proxy.take().remove(0);
        assert_eq!(kind, Connect);
        self.w.proxy.send(Refused, request, at(name), &[]);
        self.run(10);
    }
}

fn error(w: &World, flow: FlowId) -> Option<i32> {
    w.app.error(flow)
}

#[test]
fn the_worker_that_is_named_is_asked_next() {
    let (mut two, flow) = Two::new(true);
    two.refuse("pn-2");
    let asked = two.other.take();
    let [(Connect, request, window, _)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((*window, two.other.last_flags), (super::harness::WINDOW, 0));
    two.other.send(Connected, FlowLabel::new(5, 0).to_wire(), *request, &open_payload());
    two.run(10);
    assert_eq!(two.w.app.write(two.w.now, flow, &[b"to the owner"]), Ok(12));
    two.run(10);
    assert_eq!(two.other.take()[0].3, b"to the owner");
    assert!(two.w.proxy.take().is_empty(), "nothing more for the first");
}

#[test]
fn a_worker_that_is_not_announced_is_reached_by_the_lan() {
    let (mut two, flow) = Two::new(false);
    two.refuse("pn-2");
    let asked = two.w.proxy.take();
    assert_eq!((asked.len(), asked[0].0, two.w.proxy.last_flags), (1, Connect, CONNECT_BY_LAN));
    two.w.proxy.send(Connected, FlowLabel::new(5, 0).to_wire(), asked[0].1, &open_payload());
    two.run(10);
    assert_eq!(two.w.app.write(two.w.now, flow, &[b"x"]), Ok(1));
}

#[test]
fn a_worker_without_a_link_is_waited_for_and_then_the_connection_fails() {
    for comes in [true, false] {
        let (mut two, flow) = Two::new(false);
        two.w.app.set_proxies(&[target("pn-1"), target("pn-9")]);
        two.refuse("pn-9");
        assert!(two.w.proxy.take().is_empty() && error(&two.w, flow).is_none());
        if comes {
            two.other = Proxy::named(&two.w.fabric, "pn-9");
            two.run(LINK_PATIENCE.as_millis() as u64 - 100);
            assert_eq!(two.other.take()[0].0, Connect);
        } else {
            two.run(LINK_PATIENCE.as_millis() as u64);
            assert_eq!(error(&two.w, flow), Some(errno::EHOSTUNREACH));
        }
        assert_eq!(two.w.app.close(two.w.now, flow, false), Ok(()));
        two.run(10);
    }
}

#[test]
fn workers_that_name_each_other_are_asked_a_few_times_only() {
    let (mut two, flow) = Two::new(true);
    for n in 1..=CONNECTS_MAX {
        let (from, name) = if n % 2 == 1 { (&mut two.w.proxy, "pn-2") } else { (&mut two.other, "pn-1") };
        let (kind, request, ..) = from.take().remove(0);
        assert_eq!(kind, Connect);
        from.send(Refused, request, at(name), &[]);
        two.run(10);
    }
    assert!(two.w.proxy.take().is_empty() && two.other.take().is_empty());
    assert_eq!(error(&two.w, flow), Some(errno::ECONNREFUSED));
    assert_eq!(two.w.app.counters().protocol_violations, 0);
}

#[test]
fn a_connection_that_was_closed_meanwhile_is_not_asked_for_again() {
    let (mut two, flow) = Two::new(false);
    two.w.app.set_proxies(&[target("pn-1"), target("pn-9")]);
    two.refuse("pn-9");
    two.w.app.close(two.w.now, flow, false).unwrap();
    two.run(10);
    assert_eq!(two.w.app.flow_count(), 0);
    assert_eq!(two.w.app.read(two.w.now, flow, &mut [0; 8], false), Err(AppError::Unknown));
}

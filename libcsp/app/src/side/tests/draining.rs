//! Proxies that drain.

use csp_vi::ViAddress;
use csp_wire::channel::MessageKind::Connect;

use super::harness::{Proxy, World};
use crate::ProxyTarget;

fn target(name: &str, draining: bool) -> ProxyTarget {
    let address = ViAddress::Name(format!("{name}.w0"));
    ProxyTarget { node: name.parse().unwrap(), worker: 0, address, draining }
}

#[test]
fn a_draining_proxy_opens_connections_only_where_no_other_is_up() {
    let mut w = World::new();
    let mut other = Proxy::named(&w.fabric, "pn-2");
    let mut connect = |w: &mut World, times: usize| {
        for _ in 0..times {
            w.app.connect(w.now, "192.0.2.1:443".parse().unwrap(), None).unwrap();
        }
        for _ in 0..5 {
            w.run_for(1);
            other.turn(w.now);
        }
        let count = |proxy: &mut Proxy| proxy.take().iter().filter(|sent| sent.0 == Connect).count();
        (count(&mut w.proxy), count(&mut other))
    };
    w.app.set_proxies(&[target("pn-1", true), target("pn-2", false)]);
    assert_eq!(connect(&mut w, 2), (2, 0), "the other one is not up yet");
    assert_eq!(w.app.channels_up(), 2);
    assert_eq!(connect(&mut w, 4), (0, 4));
    w.app.set_proxies(&[target("pn-1", true), target("pn-2", true)]);
    assert_eq!(connect(&mut w, 4), (2, 2), "if all drain, all are used");
    w.app.set_proxies(&[target("pn-1", false), target("pn-2", true)]);
    assert_eq!(connect(&mut w, 4), (4, 0));
    assert_eq!(w.app.channels_up(), 2, "no link was given up");
}

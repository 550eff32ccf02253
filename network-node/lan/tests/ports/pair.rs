//! A veth pair between two namespaces, and ports of both kinds on it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::thread;

use csp_classify::multifield::Match;
use csp_lan::LanPort;
use csp_lan::af_packet::{self, AfPacketConfig, Fanout, OpenError};
use csp_lan::af_xdp::{self, AfXdpConfig, Handoffs, Sharing};
use csp_plugins::{DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_types::MacAddr;
use csp_xdp::{Driver, Plan, PortConfig};

use super::frames::{OUR_MAC, US, VIP};

/// A kind of port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Raw,
    /// As on a device with zero-copy: segments are cut by the port.
    Xdp,
    /// As in copy mode.
    XdpKernelCuts,
}

/// The ports of an interface's workers. The program ends with them.
pub struct Ports {
    pub workers: Vec<LanPort>,
    _program: Option<Driver>,
}

/// A veth pair: `near` is the namespace that the port is opened in, `far` that of the peer. Removed when
/// dropped.
pub struct Pair {
    pub near: String,
    pub far: String,
}

pub fn run(command: &str) {
    let status = Command::new("sh").arg("-c").arg(command).status().unwrap();
    assert!(status.success(), "{command}");
}

impl Pair {
    pub fn new(test: &str) -> Option<Pair> {
        if !csp_support::is_root("the test makes network namespaces")
            || !csp_support::installed("ip", "iproute2")
        {
            return None;
        }
        let id = std::process::id();
        let pair = Pair { near: format!("csp-lan-{test}-n{id}"), far: format!("csp-lan-{test}-f{id}") };
        let (near, far) = (&pair.near, &pair.far);
        run(&format!("ip netns add {near} && ip netns add {far}"));
        run(&format!("ip link add lan0 netns {near} type veth peer name eth0 netns {far}"));
        // Without IPv6 the interfaces send no router solicitations.
        run(&format!("ip netns exec {near} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        run(&format!("ip netns exec {far} sysctl -qw net.ipv6.conf.all.disable_ipv6=1"));
        run(&format!("ip -n {near} link set lan0 address 02:00:00:00:00:0a up"));
        run(&format!("ip -n {far} link set eth0 address 02:00:00:00:00:0b up"));
        run(&format!("ip -n {far} addr add 10.9.9.2/24 dev eth0"));
        run(&format!("ip -n {far} neigh add 10.9.9.1 lladdr 02:00:00:00:00:0a dev eth0 nud permanent"));
        Some(pair)
    }

    /// Runs `work` on a thread in the namespace.
    pub fn within<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/{namespace}");
        let enter_and_work = move || {
            let namespace = std::fs::File::open(path).unwrap();
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .unwrap();
            work()
        };
        thread::spawn(enter_and_work).join().unwrap()
    }

    /// Opens a raw socket at the far end.
    pub fn open_far(&self) -> LanPort {
        Self::within(&self.far, || af_packet::open(&AfPacketConfig::new("eth0"))).unwrap()
    }

    /// Tries to open a port of one worker, without a program, on an interface of the near end.
    pub fn try_open(&self, kind: Kind, interface: &'static str) -> Result<LanPort, OpenError> {
        Self::within(&self.near, move || match kind {
            Kind::Raw => af_packet::open(&AfPacketConfig::new(interface)),
            _ => af_xdp::open(&AfXdpConfig::new(interface)).map(|open| open.port),
        })
    }

    /// Has the program redirect UDP from the first to the second of two interfaces at the near end; it runs
    /// at `other`, too, and does nothing there.
    pub fn redirect(&self, ports: [&'static str; 2], other: &'static str) -> Option<Driver> {
        Self::within(&self.near, move || redirecting(ports, other))
    }

    /// Opens the ports of so many workers at the near end; `None`, with a remark, where BPF is not permitted.
    pub fn open(&self, kind: Kind, workers: u8) -> Option<Ports> {
        match kind {
            Kind::Raw => {
                let open = |worker| {
                    let fanout = (workers > 1).then_some(Fanout { group: 7, worker });
                    let config = AfPacketConfig { fanout, ..AfPacketConfig::new("lan0") };
                    Self::within(&self.near, move || af_packet::open(&config)).unwrap()
                };
                Some(Ports { workers: (0..workers).map(open).collect(), _program: None })
            }
            _ => Self::within(&self.near, move || open_af_xdp(workers, kind == Kind::XdpKernelCuts)),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        run(&format!("ip netns del {} && ip netns del {}", self.near, self.far));
    }
}

/// Loads the program; `None`, with a remark, where BPF is not permitted.
pub fn program() -> Option<Driver> {
    match Driver::open(None) {
        Ok(program) => Some(program),
        Err(error) if format!("{error:?}").contains("Operation not permitted") => {
            csp_support::skip(format_args!("bpf(2) is not permitted: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The program at the first port, with a rule that redirects UDP to the second one, and without rules at an
/// interface that is no port.
fn redirecting(ports: [&str; 2], other: &str) -> Option<Driver> {
    let mut program = program()?;
    let config = ManagerConfig { rules_max: 16, ..ManagerConfig::new(1, HashKey(1, 2)) };
    let mut manager = Manager::new(config);
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(DRIVER, Level::Driver).unwrap();
    manager.start(DRIVER).unwrap();
    manager.create("out", "redirect", DRIVER, &[("interface", "1")]).unwrap();
    let udp = Match { protocol: Some(17), ..Match::ANY };
    manager.add_rule("udp", 1, udp, "out", Fallback::Pass).unwrap();
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, program.slots()).unwrap();
    program.apply(&plan, csp_types::Instant::ZERO, &HashMap::new()).unwrap();
    let port = |interface: &str, mac| PortConfig::of(interface, mac, false).unwrap();
    let known = [port(ports[0], OUR_MAC), port(ports[1], MacAddr([2, 0, 0, 0, 0, 0x0c]))];
    program.set_ports(&known.map(Some)).unwrap();
    program.attach(known[0].ifindex).unwrap();
    program.attach(port(other, OUR_MAC).ifindex).unwrap();
    Some(program)
}

fn open_af_xdp(workers: u8, kernel_cuts: bool) -> Option<Ports> {
    let mut program = program()?;
    let handoffs = Handoffs::new(workers).unwrap();
    let mut ports = Vec::new();
    for worker in 0..workers {
        let sharing = (workers > 1).then(|| Sharing { worker, handoffs: handoffs.clone() });
        let open = af_xdp::open(&AfXdpConfig { sharing, kernel_cuts, ..AfXdpConfig::new("lan0") }).unwrap();
        for (queue, socket) in &open.sockets {
            program.set_socket(0, *queue, std::os::fd::AsRawFd::as_raw_fd(socket)).unwrap();
        }
        ports.push(open.port);
    }
    let port = PortConfig::of("lan0", OUR_MAC, true).unwrap();
    program.set_ports(&[Some(port)]).unwrap();
    let own: [IpAddr; 5] = [
        US.into(),
        VIP.into(),
        Ipv6Addr::from(99).into(),
        // What ARP packets of the tests ask for.
        [1, 1, 1, 1].into(),
        [0, 0, 0, 0].into(),
    ];
    program.set_addresses(own.into_iter()).unwrap();
    program.attach(port.ifindex).unwrap();
    Some(Ports { workers: ports, _program: Some(program) })
}

//! The way back to the kernel: what is written to the TAP device arrives at a port's interface.
#![allow(clippy::unwrap_used, reason = "a test's module")]

use std::collections::HashMap;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use csp_classify::multifield::Match;
use csp_lan::TxOffload;
use csp_lan::af_packet::{self, AfPacketConfig};
use csp_lan::tap::Tap;
use csp_plugins::{DRIVER, Fallback, HashKey, Level, Manager, ManagerConfig, builtin};
use csp_xdp::{Driver, Plan, PortConfig};

use super::frames::{OUR_MAC, PEER, PEER_MAC, US, sum};
use super::pair::{Pair, program, run};

const PORT: u16 = 8001;

/// A UDP datagram to us, with its checksum left to the device.
fn datagram(len: usize) -> (Vec<u8>, TxOffload) {
    let udp_len = (8 + len) as u16;
    let mut frame = [&OUR_MAC.0[..], &PEER_MAC.0, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 7, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(PEER);
    frame.extend(US);
    let check = !sum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend(9000u16.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend(sum(&[&US, &PEER, &[0, 17], &udp_len.to_be_bytes()]).to_be_bytes());
    frame.resize(frame.len() + len, b'x');
    (frame, TxOffload { checksum_start: 34, checksum_offset: 6, gso: None, header_len: 42 })
}

/// The device of `port0`; `None`, with a remark, where there are no TAP devices. For a thread in the
/// namespace.
fn device() -> Option<Tap> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        csp_support::skip("needs /dev/net/tun");
        return None;
    }
    Some(Tap::open("port0").unwrap())
}

/// The program of level 1, generic since this kind of interface has none in its driver, with a rule that
/// drops everything.
fn dropping() -> Option<Driver> {
    let mut driver = program()?;
    let mut manager = Manager::new(ManagerConfig { rules_max: 16, ..ManagerConfig::new(1, HashKey(1, 2)) });
    builtin::MODULES.into_iter().for_each(|module| manager.install(module).unwrap());
    manager.add_environment(DRIVER, Level::Driver).unwrap();
    manager.start(DRIVER).unwrap();
    manager.create("nothing", "drop", DRIVER, &[]).unwrap();
    manager.add_rule("all", 1, Match::ANY, "nothing", Fallback::Pass).unwrap();
    let table = manager.publish_rules().table;
    let plan = Plan::new(&manager, &table, driver.slots()).unwrap();
    driver.apply(&plan, csp_types::Instant::ZERO, &HashMap::new()).unwrap();
    let port = PortConfig::of("port0", OUR_MAC, false).unwrap();
    driver.set_ports(&[Some(port)]).unwrap();
    driver.attach(port.ifindex).unwrap();
    Some(driver)
}

/// A namespace with an interface whose kind has no XDP in its driver: a bridge, on the pair.
fn interface(test: &str) -> Option<Pair> {
    let pair = Pair::new(test)?;
    let near = &pair.near;
    run(&format!("ip -n {near} link add port0 address 02:00:00:00:00:0a type bridge"));
    run(&format!("ip -n {near} link set lan0 master port0"));
    run(&format!("ip -n {near} link set port0 up && ip -n {near} addr add 10.9.9.1/24 dev port0"));
    Some(pair)
}

#[test]
fn what_is_written_to_the_device_arrives_at_the_port_and_not_at_its_program() {
    let Some(pair) = interface("tap") else { return };
    let near = pair.near.clone();
    Pair::within(&pair.near, move || {
        let Some(tap) = device() else { return };
        assert!(Tap::open("port0").is_err(), "there is a device of this name already");
        let mut transmitter = tap.transmitter();
        let Some(driver) = dropping() else { return };
        let mut port = af_packet::open(&AfPacketConfig::new("port0")).unwrap();
        let socket = UdpSocket::bind(("10.9.9.1", PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut data = [0; 2000];
        for len in [10, 1000, 1472] {
            let (frame, offload) = datagram(len);
            transmitter.transmit(&[&frame[..20], &frame[20..]], Some(offload)).unwrap();
            assert_eq!(socket.recv(&mut data).unwrap(), len);
            let mut seen = 0;
            let deadline = Instant::now() + Duration::from_secs(10);
            while seen == 0 {
                assert!(Instant::now() < deadline, "the frame is not the port's");
                port.receiver.receive(&mut |received| seen += usize::from(received.bytes == frame));
                thread::yield_now();
            }
        }
        assert_eq!(driver.counts().unwrap().totals.seen, 0);
        assert!(transmitter.transmit(&[&[0; 5]], None).is_err(), "too short for a frame");
        let counters = transmitter.counters();
        assert_eq!((counters.frames, counters.errors, counters.full), (3, 1, 0));
        let mut ip = std::process::Command::new("ip");
        let addresses = ip.args(["-n", &near, "-o", "addr", "show", "dev", "csp-port0"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&addresses.stdout), "", "the device has no address");
        drop((tap, transmitter));
        run(&format!("! ip -n {near} link show dev csp-port0 2> /dev/null"));
    });
}

#[test]
#[ignore = "a measurement (make bench-ports)"]
fn what_a_frame_back_to_the_kernel_costs() {
    const FRAMES: u32 = 200_000;
    let Some(pair) = interface("tapcost") else { return };
    Pair::within(&pair.near, || {
        let Some(tap) = device() else { return };
        let mut transmitter = tap.transmitter();
        // Its queue fills up: what follows is dropped by the socket.
        let _socket = UdpSocket::bind(("10.9.9.1", PORT)).unwrap();
        for len in [30, 1418] {
            let (frame, offload) = datagram(len);
            let mut rounds: Vec<u128> = (0..5)
                .map(|_| {
                    let begin = Instant::now();
                    (0..FRAMES).for_each(|_| transmitter.transmit(&[&frame], Some(offload)).unwrap());
                    begin.elapsed().as_nanos() / u128::from(FRAMES)
                })
                .collect();
            rounds.sort_unstable();
            println!("{} bytes: {} ns a frame ({rounds:?})", frame.len(), rounds[2]);
        }
    });
}

//! A client whose IPv6 packets are fragmented. Linux never fragments its own TCP there, so that a program
//! does: it has the packets of the client's kernel by a TUN device, and puts them on the LAN as a host behind
//! a link with a small MTU sends them. Answers reach the kernel as they are.

use std::fs;

use csp_cluster::{Cluster, Process, Tier, testing, wait_until};

const VIP: &str = "2001:db8:76::100";
const CLIENT: &str = "2001:db8:76:1::1/128";
/// Where the upload application listens for IPv6.
const PORT: &str = "8087";
pub const URL: &str = "http://[2001:db8:76::100]:8087/";

/// Sends packets to an address in fragments: ADDRESS MAC. Some are in inverse order. Those of connections
/// from ports above 20003 name another protocol in all fragments but the first, whose next header is the one
/// that counts (RFC 8200 §4.5).
const CUTTER: &str = r#"
import fcntl, os, socket, struct, sys
LEN = 544
address, mac = socket.inet_pton(socket.AF_INET6, sys.argv[1]), bytes.fromhex(sys.argv[2].replace(":", ""))
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"cut0", 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
lan = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
lan.bind(("lan0", 0))
ethernet = mac + lan.getsockname()[4] + b"\x86\xdd"
print("ready", flush=True)
number = 0
while True:
    packet = os.read(tun, 65535)
    if packet[24:40] != address:
        continue
    payload = packet[40:]
    if len(payload) <= LEN:
        lan.send(ethernet + packet)
        continue
    number += 1
    odd, fragments = struct.unpack("!H", payload[:2])[0] > 20003, []
    for at in range(0, len(payload), LEN):
        part = payload[at:at + LEN]
        base = packet[:4] + struct.pack("!HBB", 8 + len(part), 44, packet[7]) + packet[8:40]
        protocol = 17 if odd and at else packet[6]
        header = struct.pack("!BBHI", protocol, 0, at | (at + LEN < len(payload)), number)
        fragments.append(ethernet + base + header + part)
    for fragment in reversed(fragments) if number % 3 == 0 else fragments:
        lan.send(fragment)
"#;

/// Serves the upload application over IPv6, and has the client's packets to it fragmented while the process
/// lives.
pub fn fragment(cluster: &mut Cluster) -> Process {
    let script = cluster.scratch().join("upload.py");
    cluster.run_accelerated("upload6", "/usr/bin/python3", &[&script.to_string_lossy(), "::", PORT]).unwrap();
    let policy = cluster.scratch().join("demo.yaml");
    let service = format!(
        "services:\n  - {{name: upload6, vip: \"{VIP}\", port: {PORT}, pool: [{{node: an-1, port: {PORT}}}]}}\n"
    );
    let text = fs::read_to_string(&policy).unwrap();
    fs::write(&policy, text.replacen("services:\n", &service, 1)).unwrap();
    cluster.apply_policy().unwrap();

    let mac = cluster.host(Tier::NetworkNode).run("cat", &["/sys/class/net/lan0/address"]).unwrap();
    let mut command = cluster.client.command("/usr/bin/python3");
    command.args(["-c", CUTTER, VIP, mac.trim()]);
    let cutter = Process::spawn("cutter", command, &cluster.scratch().join("log/cutter.log")).unwrap();
    let ready = || cutter.log_tail(1).contains("ready").then_some(());
    wait_until("the program that fragments", testing::SERVING_DEADLINE, ready).unwrap();
    for line in [
        format!("address add {CLIENT} dev cut0 nodad"),
        "link set cut0 up".to_owned(),
        format!("route add {VIP} dev cut0"),
    ] {
        cluster.client.ip(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    wait_until("an answer", testing::SERVING_DEADLINE, || cluster.answers(URL).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", cutter.log_tail(20), cluster.all_logs()));
    cutter
}

//! Rule lines of packet plug-ins.

use csp_plugins::text::{MatchText, parse_match, parse_rule};
use csp_plugins::{parse_duration, parse_number};

use crate::{Bounds, Check, Target};

/// A rule, or conditions alone: what is accepted is written in the words of which it is read again.
pub static RULES: Target = Target {
    name: "rules",
    check: Check::Parser(check),
    examples,
    words: &[
        " prio ",
        " src ",
        " dst ",
        " sport ",
        " dport ",
        " proto ",
        " ip ",
        " dev ",
        " ingress ",
        " egress ",
        " flags ",
        " dscp ",
        " plugin ",
        " fallback ",
        "10.0.0.0/8",
        "::/0",
        "::ffff:1.2.3.4",
        "none",
        "syn,ack/syn",
        "/",
        "-",
        ",",
        "0-65535",
        "icmp6",
        "pass",
        "drop",
        "k",
        "ns",
        "forever",
    ],
    len_max: 4_096,
    bounds: Bounds { held: (16 << 10, 48), allocated: (32 << 10, 128) },
};

fn check(bytes: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(bytes) else { return false };
    let words: Vec<&str> = text.split_whitespace().collect();
    for word in words.iter().take(8) {
        let (number, time) = (parse_number(word), parse_duration(word));
        assert!(number.is_none() || time.is_none(), "{word} is a number and a time");
    }
    if let Ok(fields) = parse_match(&words) {
        let again = MatchText(&fields).to_string();
        let words: Vec<&str> = again.split_whitespace().collect();
        assert_eq!(parse_match(&words), Ok(fields), "{again}");
    }
    match parse_rule(&words) {
        Ok(rule) => {
            let conditions = MatchText(&rule.fields).to_string();
            let again = format!("{} prio {} {conditions} plugin {}", rule.name, rule.priority, rule.instance);
            let mut words: Vec<&str> = again.split_whitespace().collect();
            if rule.fallback != Default::default() {
                words.extend(["fallback", "drop"]);
            }
            assert_eq!(parse_rule(&words).as_ref(), Ok(&rule), "{again}");
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn examples() -> Vec<Vec<u8>> {
    let rules = [
        "web prio 10 src 192.0.2.0/24 dst 198.51.100.7 proto tcp dport 80 flags syn/syn,ack plugin limit fallback drop",
        "dns proto udp sport 1024-65535 dport 53 ip 6 dev 3 ingress plugin capture",
        "marked egress dscp 46 proto 255 src 2001:db8::/32 plugin count fallback pass",
        "pings proto icmp6 plugin p",
        "rest plugin no-op",
        "syn flags none/fin,rst,syn plugin x",
    ];
    rules.map(|text| text.as_bytes().to_vec()).to_vec()
}

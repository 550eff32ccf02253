//! Plug-in hosts (level 3) in virtual time: packets go there and come back, in order; death and return,
//! backpressure, moves, hosts that lie.

use csp_classify::multifield::HitCount;
use csp_network_node::core::{HostCounters, PluginChange, PluginCounts};
use csp_network_node::{HostInstances, HostSpec};
use csp_plugin_host::{HostWorker, SessionConfig};
use csp_plugins::remote::{RemoteAnswer, read_answer, write_call, write_hosted};
use csp_plugins::text::parse_rule;
use csp_plugins::{
    Desired, DesiredInstance, DesiredRule, EnvironmentId, HashKey, InstanceCount, Level, Manager, Plugin,
    PluginError, Settings, Supply,
};
use csp_policy::plugin_manager;
use csp_support::Random;
use csp_vi::memory::Delay;

use super::*;

/// The environment of the only host.
const H0: EnvironmentId = EnvironmentId(2);

pub fn identity(name: &str) -> PeerIdentity {
    PeerIdentity::daemon(Role::AppNode, name.parse().unwrap(), 3, 0)
}

fn endpoint(fabric: &MemoryFabric, key: u8) -> Endpoint {
    let config = EndpointConfig::tunnel(identity("an-1"), Some(ClusterKey::from_bytes([key; 32]).into()));
    let mut endpoint = Endpoint::new(Box::new(fabric.provider("h0")), config);
    endpoint.listen(&ViAddress::Name("h0".to_owned())).unwrap();
    endpoint
}

/// A network worker with a proxy, plug-ins, and perhaps their host.
pub struct Hosted {
    pub w: World,
    host: Option<HostWorker>,
    pub manager: Manager,
    sent: u64,
}

impl Hosted {
    /// Instances as `LEVEL NAME MODULE [SETTING=VALUE]... [-> NAME]`, and rules.
    pub fn new(instances: &[&str], rules: &[&str]) -> Hosted {
        Hosted::with_delay(Delay::default(), instances, rules)
    }

    fn with_delay(delay: Delay, instances: &[&str], rules: &[&str]) -> Hosted {
        let mut w = World::new();
        w.fabric.set_default_delay(delay);
        w.proxies.push(Proxy::new(&w.fabric, "pn-1", "pn-1", 1));
        w.set_proxies(&["pn-1"]);
        let host = Some(HostWorker::new(vec![endpoint(&w.fabric, 1)], SessionConfig::default()));
        let mut hosted = Hosted { w, host, manager: plugin_manager(1, HashKey(1, 2)), sent: 0 };
        hosted.set(instances, rules);
        hosted.name_host();
        hosted.run(50);
        hosted
    }

    pub fn name_host(&mut self) {
        let dial = DialSpec { worker: 0, endpoint: 0, address: ViAddress::Name("h0".to_owned()) };
        let spec = HostSpec { environment: H0, node: "an-1".parse().unwrap(), dial };
        self.w.worker.set_hosts(self.w.now, &[spec]);
    }

    pub fn set(&mut self, instances: &[&str], rules: &[&str]) {
        let desired = Desired {
            instances: instances.iter().map(|text| instance(text)).collect(),
            rules: rules.iter().map(|text| rule(text)).collect(),
        };
        self.manager.reconcile(&desired).unwrap();
        let commands: Vec<_> = core::iter::from_fn(|| self.manager.poll_command(0)).collect();
        let table = Some(self.manager.publish_rules());
        let directions = (!rules.is_empty(), !rules.is_empty());
        let mut change =
            PluginChange { commands, table, directions, retired: vec![], ..PluginChange::default() };
        let text = write_hosted(&self.manager, "h0").unwrap().into();
        self.w.worker.change_plugins(&mut change, &[HostInstances { environment: H0, text }]);
    }

    pub fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.w.now += Duration::from_millis(1);
            self.w.fabric.advance(self.w.now);
            for _ in 0..4 {
                self.w.worker.turn(self.w.now, UNIX_S);
                self.w.proxies.iter_mut().for_each(|p| p.turn(self.w.now));
                if let Some(host) = &mut self.host {
                    host.turn(self.w.now, UNIX_S);
                }
            }
            self.w.notices.extend(std::iter::from_fn(|| self.w.worker.poll_notice()));
        }
    }

    /// Sends a segment of one flow that is as long as it is numbered.
    pub fn send(&mut self, port: u16) {
        self.w.client_sends(port, 0x10, (self.sent % 1200) as usize);
        self.sent += 1;
    }

    /// Numbers of the segments that the proxy got since the last call.
    pub fn arrived(&mut self) -> Vec<usize> {
        self.w.proxies[0].seen.drain(..).map(|(_, len)| len - 40).collect()
    }

    pub fn counts(&self) -> PluginCounts {
        let rules = self.manager.rules().rules().iter().map(|(_, at)| (*at, HitCount::default())).collect();
        let instances = self.manager.instances().map(|(id, ..)| (id, InstanceCount::default())).collect();
        let environments = vec![(H0, false)];
        let mut counts = PluginCounts { rules, instances, environments, ..PluginCounts::default() };
        self.w.worker.core().count_plugins(&mut counts);
        counts
    }

    pub fn hosts(&self) -> HostCounters {
        self.counts().hosts
    }

    pub fn runs(&self) -> bool {
        self.counts().environments[0].1
    }

    pub fn kill(&mut self) {
        self.w.fabric.kill_node("h0", InFlight::Lost);
        self.host = None;
    }

    pub fn restart(&mut self) {
        self.restart_with(SessionConfig::default());
    }

    fn restart_with(&mut self, config: SessionConfig) {
        self.host = Some(HostWorker::new(vec![endpoint(&self.w.fabric, 1)], config));
    }
}

fn instance(text: &str) -> DesiredInstance {
    let (text, next) = text.split_once(" -> ").map_or((text, None), |(text, next)| (text, Some(next)));
    let mut words = text.split_whitespace();
    let level = Level::from_number(words.next().unwrap().parse().unwrap()).unwrap();
    let (name, module) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let settings =
        words.map(|word| word.split_once('=').map(|(k, v)| (k.into(), v.into())).unwrap()).collect();
    let outputs = vec![next.map(str::to_owned)];
    let outputs = if module == "drop" || module == "redirect" { vec![] } else { outputs };
    DesiredInstance { name, module, settings, outputs, level, host: "h0".to_owned(), auto: None }
}

fn rule(text: &str) -> DesiredRule {
    let rule = parse_rule(&text.split_whitespace().collect::<Vec<_>>()).unwrap();
    let (name, priority, instance) = (rule.name, rule.priority, rule.instance);
    DesiredRule { name, priority, fields: rule.fields, instance, fallback: rule.fallback }
}

#[test]
fn packets_go_to_the_host_and_come_back_in_order() {
    let mut h = Hosted::new(
        &[
            "2 before no-op -> far",
            "3 far counter -> there",
            "3 there no-op -> after",
            "2 after dscp dscp=46",
        ],
        &["all ingress plugin before"],
    );
    assert!(h.runs(), "{:?}", h.w.notices);
    for _ in 0..50 {
        (0..20).for_each(|_| h.send(4000));
        h.run(1);
    }
    h.run(300);
    assert_eq!(h.arrived(), (0..1000).collect::<Vec<_>>());
    let counts = h.counts();
    assert_eq!((counts.hosts.sent, counts.hosts.answered, counts.hosts.refused()), (1000, 1000, 0));
    let packets: Vec<u64> = counts.instances.iter().map(|(_, count)| count.packets).collect();
    assert_eq!(packets, [1000; 4], "the host reports what it counts");
    assert_eq!((counts.graph.passed, counts.rules[0].1.packets), (1000, 1000));
    assert_eq!(h.w.worker.core().packets_at_hosts(), 0);
}

#[test]
fn what_the_host_drops_redirects_and_copies_is_as_it_says() {
    let mut h = Hosted::new(
        &[
            "3 nothing drop",
            "3 away redirect interface=0",
            "3 tap mirror interface=0",
            "3 lost redirect interface=9",
        ],
        &[
            "a src 10.76.0.1/32 proto tcp sport 4001 ingress plugin nothing",
            "b proto tcp sport 4002 ingress plugin away",
            "c proto tcp sport 4003 ingress plugin tap",
            "d proto tcp sport 4004 ingress plugin lost",
        ],
    );
    let before = h.w.worker.lan_counters().transmit.frames;
    (4001..=4004).for_each(|port| h.send(port));
    h.run(300);
    assert_eq!(h.arrived(), [2], "what was copied passes");
    assert_eq!(h.w.worker.lan_counters().transmit.frames - before, 2, "the redirected one, and the copy");
    let counts = h.counts();
    assert_eq!((counts.graph.dropped, counts.graph.transmitted, counts.untransmitted), (1, 2, 1));
    assert_eq!((counts.instances[0].1.dropped, counts.hosts.answered), (1, 4));
}

#[test]
fn a_host_that_dies_is_noticed_within_a_second_and_the_fallback_applies_until_it_is_back() {
    let mut h = Hosted::with_delay(
        Delay { fixed: Duration::from_millis(5), jitter: Duration::ZERO },
        &["3 far counter"],
        &[
            "open proto tcp sport 4000 ingress plugin far",
            "shut proto tcp sport 4001 ingress plugin far fallback drop",
        ],
    );
    for _ in 0..10 {
        h.send(4000);
        h.run(1);
    }
    h.kill();
    h.run(1000);
    assert!(!h.runs());
    let counters = h.hosts();
    assert!(counters.lost > 0, "{counters:?}");
    assert_eq!(counters.sent, counters.answered + counters.lost, "what it had is lost, and counted");
    let before = h.arrived().len();
    for _ in 0..10 {
        h.send(4000);
        h.send(4001);
    }
    h.run(20);
    assert_eq!((before as u64, h.arrived().len()), (counters.answered, 10));
    let counts = h.counts();
    assert_eq!((counts.graph.fallback_passed, counts.graph.fallback_dropped), (10, 10));
    assert_eq!(counts.instances[0].1.packets, counters.answered.min(counts.instances[0].1.packets));
    h.restart();
    h.run(3000);
    assert!(h.runs(), "{:?}", h.w.notices);
    (0..10).for_each(|_| h.send(4001));
    h.run(300);
    assert_eq!((h.arrived().len(), h.hosts().answered), (10, counters.answered + 10));
}

#[test]
fn a_host_that_takes_nothing_costs_drops_not_memory_and_no_order() {
    let mut h = Hosted::new(&["3 far no-op"], &["all ingress plugin far"]);
    let host = h.host.take();
    // Silent for less than the time after which it counts as dead.
    for _ in 0..100 {
        (0..100).for_each(|_| h.send(4000));
        h.run(1);
    }
    let counters = h.hosts();
    assert!(counters.full > 0 && counters.sent > 1000, "{counters:?}");
    assert_eq!(counters.full + counters.sent, 10_000);
    assert!(h.arrived().is_empty());
    h.host = host;
    h.run(300);
    let counters = h.hosts();
    assert_eq!((counters.sent, counters.lost), (counters.answered, 0));
    let arrived = h.arrived();
    assert_eq!(arrived.len() as u64, counters.sent);
    let order: Vec<usize> = (0..10_000).map(|n| n % 1200).collect();
    let mut all = order.iter();
    assert!(arrived.iter().all(|n| all.any(|m| m == n)), "in the order in which they came");
}

/// Moves of a plug-in between levels 2 and 3 while packets of a flow come, over a link that takes its time.
#[test]
fn a_move_loses_doubles_and_reorders_nothing() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let levels = ["3 p counter", "2 p counter"];
        let fixed = Duration::from_millis(1 + random.below(4));
        let delay = Delay { fixed, jitter: Duration::from_millis(2) };
        let mut h = Hosted::with_delay(delay, &levels[..1], &["all ingress plugin p"]);
        let mut at = 0;
        for _ in 0..200 {
            if random.below(20) == 0 {
                at = 1 - at;
                h.set(&levels[at..=at], &["all ingress plugin p"]);
            }
            (0..random.below(8)).for_each(|_| h.send(4000));
            h.run(1);
        }
        h.run(600);
        let expected: Vec<usize> = (0..h.sent as usize).map(|n| n % 1200).collect();
        assert_eq!(h.arrived(), expected, "seed {seed}: {:?}", h.hosts());
        assert!(h.hosts().held > 0, "seed {seed}: some had to wait");
    }
}

#[test]
fn a_host_that_never_answers_holds_a_change_up_for_a_short_time_only() {
    let mut h = Hosted::new(&["3 p counter"], &["all ingress plugin p"]);
    let host = h.host.take();
    (0..5).for_each(|_| h.send(4000));
    h.run(1);
    h.set(&["2 p counter"], &["all ingress plugin p"]);
    (0..5).for_each(|_| h.send(4000));
    h.run(100);
    assert!(h.arrived().is_empty());
    h.run(150);
    assert_eq!(h.arrived(), [5, 6, 7, 8, 9]);
    assert_eq!((h.hosts().lost, h.hosts().held), (5, 5));
    // It answers late: these packets are nobody's any more.
    h.host = host;
    h.run(100);
    assert_eq!((h.arrived(), h.hosts().repeated), (vec![], 5));
}

#[test]
fn operations_reach_the_host() {
    let mut h = Hosted::new(&["3 blocked block-list"], &["all ingress plugin blocked"]);
    let id = h.manager.instance("blocked").unwrap();
    let call = |h: &mut Hosted, operation: &str, arguments: &[(&str, &str)]| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let answered = Box::new(move |answer| sender.send(answer).unwrap());
        h.w.worker.call_host(H0, id, write_call(operation, arguments), answered);
        h.run(10);
        receiver.try_recv().unwrap().map(|bytes| read_answer(&bytes).unwrap())
    };
    h.send(4000);
    h.run(5);
    assert_eq!(call(&mut h, "add", &[("prefix", "10.76.0.1"), ("from", "a test")]), Ok(RemoteAnswer::Done));
    h.send(4000);
    h.run(5);
    assert_eq!(h.arrived(), [0]);
    let Ok(RemoteAnswer::Rows(rows)) = call(&mut h, "list", &[]) else { panic!() };
    assert_eq!((rows[0].key.as_str(), rows[0].note.as_str()), ("10.76.0.1/32", "a test"));
    let Ok(RemoteAnswer::Refused(why)) = call(&mut h, "add", &[("prefix", "x")]) else { panic!() };
    assert!(why.contains("prefix=x"), "{why}");
    // 20,000 entries do not fit into one message.
    for at in 0..20_000u32 {
        let text =
            write_call("add", &[("prefix", &format!("11.{}.{}.{}", at >> 16, at >> 8 & 255, at & 255))]);
        h.w.worker.call_host(H0, id, text, Box::new(|answer| assert!(answer.is_ok())));
        if at % 16 == 15 {
            h.run(1);
        }
    }
    h.run(5);
    let Ok(RemoteAnswer::Rows(rows)) = call(&mut h, "dump", &[]) else { panic!() };
    assert_eq!(rows.len(), 20_001);
    h.kill();
    h.run(1000);
    assert_eq!(call(&mut h, "list", &[]), Err("the plug-in host does not run".to_owned()));
}

#[test]
fn instances_that_the_host_refuses_fall_back() {
    let mut h = Hosted::new(&["3 far counter"], &["all ingress plugin far fallback drop"]);
    let text = "instance 0 far no-such-module\n".into();
    h.w.worker.change_plugins(
        &mut PluginChange { directions: (true, false), ..Default::default() },
        &[HostInstances { environment: H0, text }],
    );
    h.run(10);
    assert!(!h.runs());
    assert!(
        h.w.notices.iter().any(
            |n| matches!(n, LinkNotice::HostRefused { reason, .. } if reason.contains("no-such-module"))
        )
    );
    h.send(4000);
    h.run(10);
    assert_eq!((h.arrived(), h.counts().graph.fallback_dropped), (vec![], 1));
    // It is asked again, since what it lacks may come, and that is not logged again.
    let generations = h.w.notices.len();
    h.run(25_000);
    let refused = |n: &&LinkNotice| matches!(n, LinkNotice::HostRefused { .. });
    assert_eq!((h.w.notices.len(), h.w.notices.iter().filter(refused).count()), (generations, 1));
}

/// A host has room for an instance after a while.
#[test]
fn a_host_that_has_refused_is_asked_again() {
    let mut h = Hosted::new(&["3 far counter"], &["all ingress plugin far fallback drop"]);
    h.kill();
    let supply: std::sync::Arc<dyn Supply> = std::sync::Arc::new(FullAtFirst::default());
    h.restart_with(SessionConfig { supply: Some(supply), ..SessionConfig::default() });
    let module = "1".repeat(64);
    let text = format!("instance 0 far {module}\n").into();
    h.w.worker.change_plugins(
        &mut PluginChange { directions: (true, false), ..Default::default() },
        &[HostInstances { environment: H0, text }],
    );
    h.run(1_000);
    assert!(!h.runs());
    h.run(15_000);
    assert!(h.runs());
}

/// Makes an instance at the second attempt.
#[derive(Debug, Default)]
struct FullAtFirst(std::sync::atomic::AtomicBool);

impl Supply for FullAtFirst {
    fn outputs(&self, _: &str) -> Option<u8> {
        Some(1)
    }

    fn make(&self, _: &str, _: &str, settings: &Settings) -> Result<Box<dyn Plugin>, PluginError> {
        match self.0.swap(true, std::sync::atomic::Ordering::Relaxed) {
            false => Err(PluginError::Supplied("no room".to_owned())),
            true => (csp_plugins::builtin::NO_OP.make)(settings, HashKey(1, 2)),
        }
    }
}

/// Traffic of several flows while the host dies and returns, its instances change and its link is slow.
#[test]
fn whatever_happens_no_packet_is_doubled_or_overtakes_one_of_its_flow() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let choices: [&[&str]; 3] =
            [&["3 p counter"], &["2 p counter"], &["2 p no-op -> q", "3 q counter -> r", "2 r no-op"]];
        let rules = ["all ingress plugin p"];
        let mut h = Hosted::new(choices[0], &rules);
        for _ in 0..300 {
            match random.below(60) {
                0 if h.host.is_some() => h.kill(),
                1 | 2 if h.host.is_none() => h.restart(),
                3 | 4 => h.set(choices[(random.below(3)) as usize], &rules),
                5 => {
                    let fixed = Duration::from_micros(random.below(5000));
                    h.w.fabric.set_default_delay(Delay { fixed, jitter: Duration::from_micros(500) });
                }
                _ => {}
            }
            (0..random.below(6)).for_each(|_| h.send(4000));
            h.run(1 + random.below(10));
        }
        h.run(2000);
        let counters = h.hosts();
        assert_eq!(counters.sent, counters.answered + counters.lost, "seed {seed}: {counters:?}");
        assert_eq!(
            (counters.refused(), h.w.worker.core().packets_at_hosts()),
            (0, 0),
            "seed {seed}: {counters:?}"
        );
        let order: Vec<usize> = (0..h.sent as usize).map(|n| n % 1200).collect();
        let mut all = order.iter();
        let arrived = h.arrived();
        assert!(arrived.iter().all(|n| all.any(|m| m == n)), "seed {seed}");
        assert_eq!(
            arrived.len() as u64 + counters.lost + counters.full + counters.dropped,
            h.sent,
            "seed {seed}"
        );
    }
}

use csp_types::options::Scheme;

use super::*;

/// Checks a policy as a proxy does that has planned it.
fn check(policy: &Policy, node: &NodeId, costs: &Costs) -> Result<(), String> {
    let planned = Planned::new(Arc::new(policy.clone()), "p.yaml").unwrap();
    super::check(&planned, node, costs)
}

fn check_text(promise: u64) -> Result<(), String> {
    let text = format!(
        "apiVersion: csp/v1\nchannels:\n  - {{name: gates, vip: 10.76.0.100, port: 5556}}\ninformation_flows:\n  - {{name: gates, match: {{channel: \
             gates}}, reserve: {{mbps: {promise}}}, message_bytes: 1500}}\n  - {{name: default, message_bytes: 1500}}\nlink:\n  mbps: \
             200\n  proxies: [{{node: proxy-2, mbps: 40}}]\n"
    );
    let policy = Policy::parse_yaml(&text, "p.yaml").unwrap();
    let costs = Costs::new(1);
    check(&policy, &NodeId::parse(b"proxy-1").unwrap(), &costs)?;
    check(&policy, &NodeId::parse(b"proxy-2").unwrap(), &costs)
}

#[test]
fn a_promise_that_a_proxy_cannot_keep_is_refused_with_what_is_left() {
    check_text(30).unwrap();
    let error = check_text(50).unwrap_err();
    assert!(error.contains("flow \"gates\" asks for 50 Mb/s, for which 52.4 have to be held"), "{error}");
    assert!(error.ends_with("; 40 of 40 Mb/s are left"), "{error}");
}

/// A policy with contexts, of whose flow so much is said.
fn with_contexts(flow: &str) -> Policy {
    let text = format!(
        "apiVersion: csp/v1\nchannels:\n  - {{name: gates, vip: 10.76.0.100, port: 5556, path: [{{handler: forward}}]}}\n  - {{name: bulk, vip: \
             10.76.0.100, port: 5557}}\ninformation_flows:\n  - {{name: gates, match: {{channel: gates}}, message_bytes: 1500, {flow}}}\n  - {{name: bulk, match: \
             {{channel: bulk}}, message_bytes: 1500}}\nlink: {{mbps: 200, contexts: {{count: 8, worker_percent: 50}}}}\n"
    );
    Policy::parse_yaml(&text, "p.yaml").unwrap()
}

#[test]
fn contexts_are_promised_by_what_handlers_take() {
    let (node, costs) = (NodeId::parse(b"proxy-1").unwrap(), Costs::new(1));
    let mut numbers = Numbers { flows: Known::new(node, costs.clone()), ..Numbers::default() };
    check(&with_contexts("reserve: {contexts: 8}, cost_us: 10"), &node, &costs).unwrap();
    let error = check(&with_contexts("reserve: {contexts: 9}, cost_us: 10"), &node, &costs).unwrap_err();
    assert!(error.contains("flow \"gates\" asks for 9.00 contexts; 8.00 of 8 are left"), "{error}");
    // 1,000 messages of 0.6 ms are more than half of a worker.
    let error =
        check(&with_contexts("reserve: {messages_per_s: 1000}, cost_us: 600"), &node, &costs).unwrap_err();
    assert!(error.contains("contexts; 8.00 of 8 are left"), "{error}");
    check(&with_contexts("reserve: {messages_per_s: 1000}, cost_us: 100"), &node, &costs).unwrap();
    // Without a stated cost it is the measured one.
    let promise = with_contexts("reserve: {messages_per_s: 1000}");
    let error = check(&promise, &node, &costs).unwrap_err();
    assert!(error.contains("was not measured yet: write cost_us"), "{error}");
    let measured = with_contexts("priority: 3");
    let config = translate(&measured, &Catalogue::of(&measured), &mut numbers).unwrap();
    let gates = config.link.plan.table().id("gates").unwrap();
    config.link.board.0.record_cost(gates, Duration::from_micros(100));
    check(&promise, &node, &costs).unwrap();
    config.link.board.0.record_cost(gates, Duration::from_micros(600));
    assert!(check(&promise, &node, &costs).unwrap_err().contains("are left"));
    let spec = |name: &str| {
        config.link.plan.table().id(name).and_then(|id| config.link.plan.table().flow(id)).unwrap()
    };
    assert_eq!((spec("gates").post.as_deref(), spec("bulk").post.as_deref()), (Some("gates"), None));
    assert_eq!((config.link.plan.capacity().contexts, config.link.worker_percent), (8, 50));
}

#[test]
fn the_examples_of_the_operators_page_are_right() {
    let page = include_str!("../../../../../docs/quality.md");
    let blocks = csp_support::yaml_blocks(page);
    let [example, fields, contexts, services, triggers] = blocks[..] else {
        panic!("{} examples", blocks.len())
    };
    let check = |text: &str| {
        let policy = Policy::parse_yaml(text, "docs/quality.md").unwrap();
        check(&policy, &NodeId::parse(b"proxy-1").unwrap(), &Costs::new(1)).unwrap();
        translate(&policy, &Catalogue::of(&policy), &mut Numbers::default()).unwrap()
    };
    let flows = check(example);
    let gates = flows.link.plan.table().id("gates").unwrap();
    assert!(flows.link.plan.held(gates).0 > 50e6 && flows.link.plan.left().bits_per_second < 150_000_000);
    let late = check(&format!("{FLIGHTS}{fields}link: {{mbps: 200}}\n"));
    let id = late.link.plan.table().id("late").unwrap();
    assert_eq!(late.link.plan.table().flow(id).unwrap().predicate.fields.len(), 2);
    let text = example.replace("mbps: 50", "mbps: 199");
    let planned = Planned::parse_yaml(&text, "docs/quality.md").unwrap();
    let error = super::check(&planned, &NodeId::parse(b"proxy-1").unwrap(), &Costs::new(1)).unwrap_err();
    assert!(page.contains(&format!("`{error}`")), "{error}");
    let shared = check(contexts);
    let gates = shared.link.plan.table().id("gates").unwrap();
    assert!(shared.link.plan.held(gates).1 > 2.0 && shared.link.plan.left().contexts > 5.0);
    let web = check(&format!("apiVersion: csp/v1\n{services}link: {{mbps: 200, scheme: PAR}}\n"));
    let id = web.link.plan.table().id("web").unwrap();
    assert!(web.link.plan.held(id).0 > 50e6);
    let (before, _) = example.split_once("link:").unwrap();
    assert_eq!(check(&(before.to_owned() + triggers)).link.triggers.len(), 1);
}

#[test]
fn flows_keep_their_plan_while_nothing_of_them_changes() {
    let text = "apiVersion: csp/v1\nchannels:\n  - {name: gates, vip: 10.76.0.100, port: 5556}\ninformation_flows:\n  - {name: gates, match: {channel: \
                    gates}}\nlink: {mbps: 200, scheme: RR, adapt: {flow: gates, surge_mbps: 20, ebb_mbps: 10}}\n";
    let mut policy = Policy::parse_yaml(text, "p.yaml").unwrap();
    let mut numbers = Numbers::default();
    let first = translate(&policy, &Catalogue::of(&policy), &mut numbers).unwrap();
    let again = translate(&policy, &Catalogue::of(&policy), &mut numbers).unwrap();
    assert!(Arc::ptr_eq(&first.link.plan, &again.link.plan));
    assert_eq!((first.link.triggers.len(), first.link.quality.link), (1, Scheme::RoundRobin));
    policy.information_flows[0].priority = 3;
    let other = translate(&policy, &Catalogue::of(&policy), &mut numbers).unwrap();
    assert!(!Arc::ptr_eq(&first.link.plan, &other.link.plan));
    assert_eq!(other.link.plan.table().id("gates"), first.link.plan.table().id("gates"));
    policy.link = None;
    policy.information_flows.clear();
    assert!(translate(&policy, &Catalogue::of(&policy), &mut numbers).is_none());
}

/// A channel of flights.
const FLIGHTS: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    schema: |
      <messageSchema id="40" version="1"><types><composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
      <type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/></composite>
      <type name="airport" primitiveType="char" length="3"/></types><message name="Flight" id="1"><field name="gate" id="1" type="int16"/>
      <field name="delay" id="2" type="int16"/><field name="origin" id="3" type="airport"/></message></messageSchema>
channels:
  - {name: flights, vip: 10.76.0.100, port: 5556, formats: [flight]}
"#;

#[test]
fn fields_of_a_format_are_words_of_descriptors() {
    let flows = "information_flows:\n  - {name: late, match: {channel: flights, where: delay >= 60}}\n  - {name: gate, match: {channel: flights, where: gate = 7 \
                     AND delay < 0}}\nlink: {mbps: 200}\n";
    let text = &format!("{FLIGHTS}{flows}");
    let (policy, mut numbers) = (Policy::parse_yaml(text, "p.yaml").unwrap(), Numbers::default());
    let config = translate(&policy, &Catalogue::of(&policy), &mut numbers).unwrap();
    let number = numbers.of("flights");
    let flow_of = |gate: i16, delay: i16| {
        let record =
            [&[7, 0, 1, 0, 40, 0, 1, 0][..], &gate.to_le_bytes(), &delay.to_le_bytes(), b"EWR"].concat();
        let mut descriptor = csp_quality::Descriptor::default().channel(number).format(1);
        config.fields.read(
            (number, FormatId(1)),
            || std::iter::once(&record[..]),
            record.len(),
            &mut descriptor,
        );
        let table = config.link.plan.table();
        table.flow(table.classify(&descriptor)).unwrap().name.clone()
    };
    assert_eq!(
        [flow_of(1, 60), flow_of(7, 59), flow_of(7, -1), flow_of(8, -1)],
        ["late", "default", "gate", "default"]
    );
    // A schema in which the field lies elsewhere is another generation, though flows ask for the same.
    let moved =
        text.replace("name=\"gate\" id=\"1\" type=\"int16\"", "name=\"gate\" id=\"1\" type=\"int64\"");
    let moved = Policy::parse_yaml(&moved, "p.yaml").unwrap();
    let again = translate(&policy, &Catalogue::of(&policy), &mut numbers).unwrap();
    assert!(Arc::ptr_eq(&config.link.plan, &again.link.plan));
    let other = translate(&moved, &Catalogue::of(&moved), &mut numbers).unwrap();
    assert!(!Arc::ptr_eq(&config.link.plan, &other.link.plan));
}

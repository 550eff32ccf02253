//! Handlers that programs bring, at the broker: who may, how many and how long, what is answered when, lease,
//! swap, release, and requests whose asker has gone. A fake makes the handlers.

mod keys;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use csp_formats::{Name, Schema};
use csp_handlers::{Call, Emit, Handler, Needs, ParameterError, Piece, State, Stop, builtin};
use csp_messages::{QueueLimits, StageMaker};
use csp_proxy_core::service::local::LocalServices as _;
use csp_services::{
    BroughtFormat, ChannelPolicy, ChannelSpec, FormatAsked, HandlerBounds, HandlerJob, HandlerRules,
    MadeHandler, QueryAsked, QueryPlan, QueryPlanner, QueryRefused, RequestCounters, RequestNotice,
    RequestPlace, RequestSpec,
};
use csp_types::Duration;
use csp_types::options::OnStop;
use serde_json::{Value, json};

use crate::common::*;

/// Numbers of the places.
const PLACES: [u32; 3] = [20, 21, 22];
const LEASE: Duration = Duration::from_secs(20);
const MODULE_LEN_MAX: usize = 300 << 10;

#[derive(Debug)]
struct NoPlanner;

fn none() -> QueryRefused {
    QueryRefused { message: "not here".to_owned(), place: None }
}

impl QueryPlanner for NoPlanner {
    fn plan(&self, _: QueryAsked<'_>) -> Result<QueryPlan, QueryRefused> {
        Err(none())
    }
    fn bring(&self, _: FormatAsked<'_>, _: &[BroughtFormat]) -> Result<(Arc<Schema>, Name), QueryRefused> {
        Err(none())
    }
}

fn rules(each: usize) -> HandlerRules {
    let bounds = HandlerBounds {
        module_len_max: MODULE_LEN_MAX,
        memory_max: 1 << 20,
        fuel_max: 1_000,
        on_stop: OnStop::Restart,
        context: 0,
        queue: QueueLimits::default(),
        formats: None,
    };
    HandlerRules { each, anyone: true, bounds }
}

fn requests(of: &ChannelSpec, handlers: Option<HandlerRules>) -> RequestSpec {
    let place = |(at, number): (usize, &u32)| {
        let mut channel = of.channel.clone();
        channel.name = format!("ticks.{}", at + 1);
        (channel.message_len_max, channel.budget.guaranteed) = (channel.message_len_max + 1_024, 1 << 20);
        let spec =
            ChannelSpec { keys: of.keys.clone(), derived: true, ..ChannelSpec::open(*number, channel) };
        RequestPlace { spec, address: ([127, 0, 0, 1], 9_000 + at as u16).into() }
    };
    RequestSpec {
        number: CHANNEL,
        places: PLACES.iter().enumerate().map(place).collect(),
        each: 2,
        formats_max: 0,
        handlers,
        lease: LEASE,
        planner: Arc::new(NoPlanner),
    }
}

/// The channel with its requests.
fn asked(spec: &ChannelSpec, handlers: Option<HandlerRules>) -> ChannelPolicy {
    ChannelPolicy { requests: Some(requests(spec, handlers)), ..spec.clone().into() }
}

/// Emits each message as one frame, with how many it had and a letter.
#[derive(Debug)]
struct Counting {
    letter: u8,
    /// Counts what lives.
    _alive: Alive,
}

#[derive(Debug)]
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Handler for Counting {
    fn needs(&self) -> Needs {
        Needs { state: 1, new_len_max: 1 << 16, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        if self.letter == b'!' {
            return Err(Stop::Fault("it was stopped"));
        }
        let count = call.state().block().first_mut().map_or(0, |count| {
            *count = *count % 9 + 1;
            *count
        });
        let message = *call.message();
        let mark = [b'0' + count, self.letter];
        let pieces = [Piece::Of { start: 0, len: message.len }, Piece::Bytes(&mark)];
        Ok(call.emit(0, Emit::New { format: message.format, frames: &[message.len + 2], pieces: &pieces })?)
    }
}

/// A broker, its peers, and how many handlers live.
struct Supply {
    w: World,
    alive: Arc<AtomicUsize>,
}

impl Supply {
    fn new(handlers: Option<HandlerRules>) -> Self {
        let spec = open_channel();
        let mut w = World::new(spec.clone());
        w.apply([asked(&spec, handlers)]).unwrap();
        w.connect_null(1, "PUB");
        w.connect_null(2, "REQ");
        Supply { w, alive: Arc::default() }
    }

    fn made(&self, letter: u8, key: &str) -> MadeHandler {
        self.alive.fetch_add(1, Ordering::Relaxed);
        let handler = Counting { letter, _alive: Alive(self.alive.clone()) };
        MadeHandler { maker: StageMaker::once(key, Box::new(handler)), module: "ab".repeat(32) }
    }

    fn ask(&mut self, n: u32, handler: Value, module: &[u8]) {
        let request = json!({"handler": handler}).to_string();
        self.w.arrive(n, &message(&[b"", request.as_bytes(), module]));
    }

    fn answer(&mut self, n: u32) -> Option<Value> {
        let frames = frames(&self.w.taken(n));
        frames.last().map(|text| serde_json::from_slice(text).unwrap())
    }

    fn error(&mut self, n: u32) -> String {
        self.answer(n).unwrap()["error"].as_str().unwrap().to_owned()
    }

    fn job(&mut self) -> HandlerJob {
        self.w.broker.poll_handler_job().unwrap()
    }

    fn done(&mut self, ticket: u64, made: Result<MadeHandler, String>) {
        self.w.broker.handler_made(self.w.now, ticket, made);
        self.w.settle();
    }

    /// Brings a handler; its letter stands in the place of code.
    fn bring(&mut self, n: u32, name: &str, letter: u8) -> Value {
        self.ask(n, json!({"name": name}), b"code");
        let Some(job) = self.w.broker.poll_handler_job() else { return self.answer(n).unwrap() };
        let made = self.made(letter, &format!("{letter} {}", job.ticket));
        self.done(job.ticket, Ok(made));
        self.answer(n).unwrap()
    }

    fn tell(&mut self, n: u32, request: Value) -> Value {
        self.w.arrive(n, &message(&[b"", request.to_string().as_bytes()]));
        self.answer(n).unwrap()
    }

    fn subscribe(&mut self, n: u32, place: u32, topic: &Value) {
        self.w.connect_null_from(n, "SUB", place, 3);
        self.w.arrive(n, &subscribe(topic.as_str().unwrap().as_bytes()));
    }

    fn publish(&mut self, body: &[u8]) {
        self.w.arrive(1, &message(&[body]));
    }

    /// What a subscriber has got behind the topic.
    fn got(&mut self, n: u32, topic: &Value) -> Vec<String> {
        let frames = frames(&self.w.taken(n));
        assert!(frames.chunks(2).all(|m| m[0] == topic.as_str().unwrap().as_bytes()), "{frames:?}");
        frames.chunks(2).map(|m| String::from_utf8(m[1].clone()).unwrap()).collect()
    }

    fn pass(&mut self, seconds: u64) {
        self.w.now += Duration::from_secs(seconds);
        if self.w.broker.next_timeout().is_some_and(|at| at <= self.w.now) {
            self.w.broker.on_timeout(self.w.now);
        }
        self.w.settle();
    }

    fn running(&self) -> usize {
        self.w.broker.requested().len()
    }

    fn counters(&self) -> RequestCounters {
        self.w.broker.request_counters()
    }
}

#[test]
fn a_handler_makes_a_channel_of_its_own_and_is_answered_when_it_was_made() {
    let mut s = Supply::new(Some(rules(1)));
    s.ask(2, json!({"name": "count", "parameters": "7"}), b"code");
    assert_eq!(s.answer(2), None, "it is not made yet");
    assert!(!s.w.connect_from(9, PLACES[0], 3), "nobody is admitted meanwhile");
    // What the peer asks next waits for the answer.
    s.w.arrive(2, &message(&[b"", br#"{"get": "handlers"}"#]));
    assert_eq!(s.answer(2), None);
    let job = s.job();
    assert_eq!((&job.channel[..], &job.of[..], &job.by[..]), ("ticks.1", "ticks", "10.0.0.2"));
    assert_eq!((job.module.as_deref(), &job.parameters[..], job.lease), (Some(&b"code"[..]), "7", LEASE));
    let made = s.made(b'a', "a");
    s.done(job.ticket, Ok(made));
    let answers = frames(&s.w.taken(2));
    let [_, answer, _, listed] = &answers[..] else { panic!("{answers:?}") };
    let (answer, listed): (Value, Value) =
        (serde_json::from_slice(answer).unwrap(), serde_json::from_slice(listed).unwrap());
    let expected = json!({
        "handler": "ticks.1", "name": "count", "module": "ab".repeat(32), "parameters": "7", "address": "tcp://127.0.0.1:9000",
        "topic": answer["topic"], "lease_s": 20, "swapped": false,
    });
    assert_eq!(answer, expected);
    assert_eq!((&listed["pending"], &listed["handlers"][0]["yours"]), (&json!(0), &json!(true)), "{listed}");
    s.subscribe(3, PLACES[0], &answer["topic"]);
    s.publish(b"x");
    s.publish(b"y");
    assert_eq!(s.got(3, &answer["topic"]), ["x1a", "y2a"]);
    assert_eq!(s.counters(), RequestCounters { handlers: 1, ..RequestCounters::default() });
    let notice = s.w.broker.poll_request_notice();
    assert!(
        matches!(notice, Some(RequestNotice::Supplied { by, name, .. }) if by == "10.0.0.2" && name == "count")
    );
}

#[test]
fn messages_keep_their_frames_behind_the_topic() {
    let mut s = Supply::new(Some(rules(1)));
    s.ask(2, json!({"name": "same"}), b"code");
    let job = s.job();
    let maker = StageMaker::once("same", builtin::make("forward").unwrap());
    s.done(job.ticket, Ok(MadeHandler { maker, module: String::new() }));
    let topic = s.answer(2).unwrap()["topic"].clone();
    s.subscribe(3, PLACES[0], &topic);
    let sixteen: Vec<&[u8]> = vec![b"f"; 16];
    s.w.arrive(1, &message(&[b"t", b"", b"body"]));
    s.w.arrive(1, &message(&sixteen));
    s.w.arrive(1, &message(&sixteen[1..]));
    let topic = topic.as_str().unwrap().as_bytes().to_vec();
    let expected =
        [vec![topic.clone(), b"t".to_vec(), vec![], b"body".to_vec(), topic], vec![b"f".to_vec(); 15]];
    assert_eq!(frames(&s.w.taken(3)), expected.concat(), "with 16 frames there is no room for one more");
}

#[test]
fn nobody_brings_handlers_unless_the_policy_says_so() {
    let mut s = Supply::new(None);
    s.ask(2, json!({"name": "count"}), b"");
    assert!(s.error(2).starts_with("nobody brings handlers"));
    s.ask(2, json!({"name": "count"}), b"code");
    assert!(s.error(2).starts_with("nobody brings handlers"));
    let mut s = Supply::new(Some(HandlerRules { anyone: false, ..rules(1) }));
    s.ask(2, json!({"name": "count"}), b"code");
    assert!(s.error(2).contains("do not say `anyone: true`"));
    assert!(s.w.broker.poll_handler_job().is_none());
    assert_eq!((s.counters().refused, s.running()), (1, 0));
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let mut s = Supply::new(Some(rules(1)));
    for (handler, module, expected) in [
        (json!("count"), &b"code"[..], "`handler` is an object"),
        (json!({"name": "count", "more": 1}), b"code", "`handler` is an object"),
        (json!({"name": "Count"}), b"code", "1 to 63 of a-z 0-9 -"),
        (json!({"name": "count", "module": "9f86"}), b"code", "64 hex digits"),
        (json!({"name": "count", "parameters": 7}), b"code", "`handler` is an object"),
        (json!({"name": "count"}), &vec![0; MODULE_LEN_MAX + 1], "has 307201 bytes, and may have 307200"),
    ] {
        s.ask(2, handler, module);
        let error = s.error(2);
        assert!(error.contains(expected), "{error}");
    }
    let request = br#"{"handler": {"name": "count"}}"#;
    s.w.arrive(2, &message(&[b"", request]));
    assert!(s.error(2).contains("neither the module's bytes"));
    s.w.arrive(2, &message(&[b"", request, b"code", b"more"]));
    assert!(s.error(2).contains("there may be one frame more"));
    s.w.arrive(2, &message(&[b"", br#"{"get": "channel"}"#, b"code"]));
    assert!(s.error(2).contains("only a request for a handler"));
    s.ask(2, json!({"name": "count"}), b"code");
    let ticket = s.job().ticket;
    s.done(ticket, Err("the module is not valid".to_owned()));
    assert_eq!(s.error(2), "the module is not valid");
    assert_eq!(s.running(), 0);
}

#[test]
fn handlers_and_requests_that_wait_are_bounded() {
    let mut s = Supply::new(Some(rules(2)));
    for name in ["a", "b"] {
        assert_eq!(s.bring(2, name, b'a')["name"], name);
    }
    let full = s.bring(2, "c", b'a');
    assert!(full["error"].as_str().unwrap().contains("has 2 handlers, and may have 2"), "{full}");
    // One request of a requester waits, whatever its connections are.
    s.ask(2, json!({"name": "a"}), b"code");
    s.w.connect_null(3, "DEALER");
    s.ask(3, json!({"name": "b"}), b"code");
    assert!(s.error(3).contains("is not answered yet"));
    // A place is kept for the first of another host, and there is no further one.
    for (n, host) in [(4, 4), (5, 5)] {
        s.w.connect_null_from(n, "REQ", CHANNEL, host);
        s.ask(n, json!({"name": "a"}), b"code");
    }
    assert!(s.error(5).contains("all 3 places"));
    // Bytes that wait: those of the module of each.
    let mut s = Supply::new(Some(rules(1)));
    let mut places = requests(&open_channel(), Some(rules(1)));
    let place = |n: u32| {
        let mut place = places.places[0].clone();
        (place.spec.number, place.spec.channel.name) = (100 + n, format!("ticks.{n}"));
        place
    };
    places.places = (1..=40).map(place).collect();
    s.w.apply([ChannelPolicy { requests: Some(places), ..open_channel().into() }]).unwrap();
    let module = vec![0; MODULE_LEN_MAX];
    let ask = |s: &mut Supply, n: u32, module: &[u8]| {
        s.w.connect_null_from(n, "REQ", CHANNEL, n as u8);
        s.ask(n, json!({"name": "a"}), module);
        s.answer(n)
    };
    let refused = (10..40).find_map(|n| Some((n, ask(&mut s, n, &module)?))).unwrap();
    assert_eq!(refused.0, 23, "13 of 300 KiB are less than 4 MiB, 14 are more");
    assert!(refused.1["error"].as_str().unwrap().contains("ask again"), "{}", refused.1);
    let refused = (40..60).find_map(|n| Some((n, ask(&mut s, n, b"code")?))).unwrap();
    assert_eq!(refused.0, 43, "16 wait");
}

#[test]
fn code_is_changed_between_two_messages_and_channel_subscribers_and_state_stay() {
    let mut s = Supply::new(Some(rules(1)));
    let topic = s.bring(2, "count", b'a')["topic"].clone();
    s.subscribe(3, PLACES[0], &topic);
    s.publish(b"x");
    let again = s.bring(2, "count", b'b');
    assert_eq!(
        (&again["topic"], &again["swapped"], &again["handler"]),
        (&topic, &json!(true), &json!("ticks.1"))
    );
    s.publish(b"y");
    assert_eq!(s.got(3, &topic), ["x1a", "y2b"], "the count goes on");
    assert_eq!(s.alive.load(Ordering::Relaxed), 1, "the former one is over");
    // One that cannot take the place leaves it to the former one.
    s.ask(2, json!({"name": "count"}), b"code");
    let job = s.job();
    let maker = StageMaker::new("none", || None);
    s.done(job.ticket, Ok(MadeHandler { maker, module: String::new() }));
    assert!(s.error(2).contains("there is no handler"));
    s.publish(b"z");
    assert_eq!(s.got(3, &topic), ["z3b"]);
    assert_eq!((s.counters().handlers, s.counters().swapped, s.counters().refused), (1, 1, 1));
    // The same name of another requester is another handler.
    s.w.connect_null_from(4, "REQ", CHANNEL, 4);
    assert_eq!(s.bring(4, "count", b'c')["handler"], "ticks.2");
}

#[test]
fn a_handler_ends_with_its_lease_or_when_its_owner_says_so() {
    let mut s = Supply::new(Some(rules(1)));
    let topic = s.bring(2, "count", b'a')["topic"].clone();
    s.subscribe(3, PLACES[0], &topic);
    (0..5).for_each(|_| s.pass(20));
    assert_eq!(s.running(), 1, "a subscriber keeps it");
    s.w.connect_null_from(4, "REQ", CHANNEL, 4);
    let others = s.tell(4, json!({"release": "ticks.1"}));
    assert!(others["error"].as_str().unwrap().contains("was brought by others"), "{others}");
    assert!(s.tell(4, json!({"release": "count"}))["error"].as_str().unwrap().contains("there is no query"));
    assert!(s.tell(4, json!({"release": 7}))["error"].is_string());
    s.w.hang_up(3);
    s.pass(19);
    assert_eq!(s.running(), 1);
    s.pass(1);
    assert_eq!((s.running(), s.alive.load(Ordering::Relaxed), s.counters().expired), (0, 0, 1));
    assert!(!s.w.connect_from(9, PLACES[0], 3), "its place is closed");
    let topic = s.bring(2, "count", b'a')["topic"].clone();
    s.subscribe(5, PLACES[1], &topic);
    let released = s.tell(2, json!({"release": "count"}));
    assert_eq!((&released["released"], &released["subscriptions"]), (&json!("ticks.2"), &json!(1)));
    assert_eq!((s.running(), s.w.has_ended(5), s.counters().released), (0, true, 1), "its subscriber too");
}

#[test]
fn what_an_asker_that_has_gone_asked_for_is_dropped() {
    let mut s = Supply::new(Some(rules(1)));
    s.w.connect_null_from(3, "REQ", CHANNEL, 3);
    s.ask(2, json!({"name": "count"}), b"code");
    s.ask(3, json!({"name": "count"}), b"code");
    let first = s.job();
    assert!(first.is_wanted());
    s.w.hang_up(2);
    s.w.hang_up(3);
    assert!(!first.is_wanted() && s.w.broker.poll_handler_job().is_none(), "nothing more is to be made");
    let made = s.made(b'a', "a");
    s.done(first.ticket, Ok(made));
    assert_eq!((s.running(), s.alive.load(Ordering::Relaxed)), (0, 0));
    // Its place and its share are free.
    s.w.connect_null(4, "REQ");
    assert_eq!(s.bring(4, "count", b'a')["handler"], "ticks.1");
    // An asker that stays is answered in the end.
    s.ask(4, json!({"name": "count"}), b"code");
    let late = s.job().ticket;
    s.subscribe(5, PLACES[0], &json!(""));
    s.pass(60);
    assert!(s.error(4).contains("not made in time"));
    s.done(late, Err("late".to_owned()));
    assert_eq!(s.answer(4), None, "once");
}

#[test]
fn modules_that_wait_for_the_compiler_are_bounded_though_their_askers_go() {
    let mut s = Supply::new(Some(rules(1)));
    let mut jobs = Vec::new();
    for n in 10..26 {
        s.w.connect_null(n, "REQ");
        s.ask(n, json!({"name": "count"}), b"code");
        jobs.push(s.job());
        s.w.hang_up(n);
    }
    s.w.connect_null(30, "REQ");
    s.ask(30, json!({"name": "count"}), b"code");
    let error = s.error(30);
    assert!(error.contains("16 requests for handlers with 64 bytes wait"), "{error}");
    drop(jobs);
    assert_eq!(s.bring(30, "count", b'a')["handler"], "ticks.1");
}

#[test]
fn a_policy_ends_handlers_that_it_does_not_allow_as_they_are() {
    let spec = open_channel();
    let mut s = Supply::new(Some(rules(1)));
    let topic = s.bring(2, "count", b'a')["topic"].clone();
    s.subscribe(3, PLACES[0], &topic);
    let apply = |s: &mut Supply, handlers: Option<HandlerRules>| {
        s.w.apply([asked(&spec, handlers)]).unwrap();
        s.w.settle();
    };
    apply(&mut s, Some(rules(5)));
    s.publish(b"x");
    assert_eq!(s.got(3, &topic), ["x1a"], "nothing of it was made anew");
    let mut less = rules(5);
    less.bounds.fuel_max /= 2;
    s.ask(2, json!({"name": "count"}), b"code");
    let job = s.job();
    apply(&mut s, Some(less.clone()));
    assert_eq!((s.running(), s.w.has_ended(3), s.counters().withdrawn), (0, true, 1));
    let made = s.made(b'b', "b");
    s.done(job.ticket, Ok(made));
    assert!(s.error(2).contains("the policy has changed meanwhile"));
    assert_eq!(s.bring(2, "count", b'c')["swapped"], false);
    apply(&mut s, None);
    assert_eq!((s.running(), s.alive.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_handler_that_fails_at_every_message_takes_none_from_others() {
    let mut s = Supply::new(Some(rules(2)));
    let (bad, good) = (s.bring(2, "bad", b'!'), s.bring(2, "good", b'a'));
    s.w.connect_null(3, "SUB");
    s.w.arrive(3, &subscribe(b""));
    s.subscribe(4, PLACES[0], &bad["topic"]);
    s.subscribe(5, PLACES[1], &good["topic"]);
    (0..100).for_each(|_| s.publish(b"x"));
    assert_eq!(frames(&s.w.taken(3)).len(), 100);
    assert_eq!((s.got(5, &good["topic"]).len(), s.got(4, &bad["topic"]).len()), (100, 0));
    let dropped = |name: &str| {
        let snapshots = s.w.broker.snapshots();
        snapshots.iter().find(|channel| channel.name == name).unwrap().status.counters.dropped_path
    };
    assert_eq!((dropped("ticks"), dropped("ticks.2")), (0, 0));
    let paths = s.w.broker.contexts().paths;
    let faults =
        |name: &str| paths.iter().find(|(known, _)| known == name).unwrap().1.counters.dropped_faults;
    assert_eq!((faults("ticks.1"), faults("ticks.2")), (100, 0), "counted where they were");
}

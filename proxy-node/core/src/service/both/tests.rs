//! Pairs of pairs: numbers and tokens reach the service of their place.

use super::*;

/// Records the numbers of its connections and of its notices of drain, and asks for one connection.
#[derive(Debug, Default)]
struct Leaf {
    connected: Vec<u32>,
    begun: Vec<u32>,
    drained: Vec<u32>,
    opened: Vec<u64>,
    asks: bool,
}

impl Between for Leaf {
    fn begun(&mut self, _: Instant, _: FlowLabel, number: u32, _: FourTuple) -> bool {
        self.begun.push(number);
        true
    }
}

impl LocalServices for Leaf {
    fn connected(&mut self, _: Instant, _: FlowLabel, number: u32, _: FourTuple) -> bool {
        self.connected.push(number);
        true
    }

    fn drain(&mut self, _: Instant, number: u32) {
        self.drained.push(number);
    }

    fn serve(&mut self, _: Instant, _: FlowLabel, _: &mut impl Ends, _: &mut OutputLink) -> Step {
        Step::Idle
    }

    fn gone(&mut self, _: Instant, _: FlowLabel) {}

    fn next_ready(&mut self, _: &mut OutputLink) -> Option<FlowLabel> {
        None
    }

    fn next_request(&mut self) -> Option<Request> {
        std::mem::take(&mut self.asks).then_some(Request::Cancel(5))
    }

    fn opened(&mut self, _: Instant, token: u64, _: Result<Opened, OpenError>) {
        self.opened.push(token);
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant) {}
}

type Pair = Both<Leaf, Leaf>;
type Left = Both<Pair, Leaf>;
type Right = Both<Leaf, Pair>;

fn leaf() -> Leaf {
    Leaf { asks: true, ..Leaf::default() }
}

/// Each of `numbers` reaches the leaf of its place with number 3, and the answer to its request the leaf that
/// asked.
fn check<S: LocalServices>(services: &mut S, numbers: [u32; 3], leaves: impl Fn(&S) -> [&Leaf; 3]) {
    let tuple = FourTuple { local: ([10, 0, 0, 1], 1).into(), remote: ([10, 0, 0, 2], 2).into() };
    for (at, number) in numbers.into_iter().enumerate() {
        let label = FlowLabel::new(at as u32, 0);
        assert!(services.connected(Instant::ZERO, label, number, tuple));
        assert!(services.begun(Instant::ZERO, label, number, tuple));
        services.drain(Instant::ZERO, number);
        for (leaf, known) in leaves(services).into_iter().enumerate() {
            let expected = vec![3; usize::from(leaf <= at)];
            assert_eq!([&known.connected, &known.begun, &known.drained], [&expected; 3], "{at} at {leaf}");
        }
    }
    let mut tokens = Vec::new();
    while let Some(Request::Cancel(token)) = services.next_request() {
        tokens.push(token);
        services.opened(Instant::ZERO, token, Err(OpenError::NoServer));
    }
    assert_eq!(tokens.len(), 3);
    assert!(leaves(services).iter().all(|leaf| leaf.opened == [5]), "{tokens:?}");
}

#[test]
fn pairs_of_pairs_have_a_bit_for_each_level() {
    let numbers = [3, Pair::second_number(3), Left::second_number(3)];
    let mut left = Left::new(Pair::new(leaf(), leaf()), leaf());
    check(&mut left, numbers, |s| [s.first().first(), s.first().second(), s.second()]);
    let of_pair = [3, Pair::second_number(3)].map(Right::second_number);
    let mut right = Right::new(leaf(), Pair::new(leaf(), leaf()));
    check(&mut right, [3, of_pair[0], of_pair[1]], |s| [s.first(), s.second().first(), s.second().second()]);
}

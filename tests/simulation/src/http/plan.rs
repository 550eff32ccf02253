//! What a seed determines of HTTP: which requests share a connection, and the times of the service.

use std::collections::BTreeMap;

use csp_types::Duration;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::dice;
use crate::pattern::Request;
use crate::scenario::{Incident, Scenario, Transaction};

/// Makes the random source of HTTP independent of all others.
const SEED: u64 = 0x6874_7470_312e_3100;
/// Most connections of the client on which requests follow each other.
const CHAINS_MAX: usize = 6;

/// HTTP of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpPlan {
    /// The chain of each transaction of the client, by its position in the work, and whether others follow.
    /// The requests of a chain use one connection as long as it lasts.
    pub chains: BTreeMap<usize, (usize, bool)>,
    /// How long the proxies keep an idle connection of a client.
    pub idle: Duration,
    /// How long they keep an idle connection to a process.
    pub upstream_idle: Duration,
    /// Most requests of a connection to a process; 0: any number.
    pub requests_max: u32,
    /// When another policy of the same services comes, relative to the earliest start.
    pub reload: Option<Duration>,
}

impl HttpPlan {
    /// Draws the plan for the work of a scenario.
    fn of(scenario: &Scenario) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(scenario.seed ^ SEED);
        let chains_max = random.random_range(1..=CHAINS_MAX);
        // The client learns of the end of a proxy by its next request.
        let ends = matches!(scenario.incident, Incident::ProxyDies | Incident::ProxyRestarts);
        let mut chains = BTreeMap::new();
        let mut last = BTreeMap::new();
        for (at, transaction) in scenario.work.iter().enumerate() {
            let late = if transaction.late && ends { CHAINS_MAX } else { 0 };
            let chain = late + random.random_range(0..chains_max);
            if transaction.by_process.is_none() {
                chains.insert(at, (chain, true));
                last.insert(chain, at);
            }
        }
        for at in last.values() {
            chains.entry(*at).and_modify(|(_, more)| *more = false);
        }
        let mut millis = |most| Duration::from_millis(random.random_range(20..most));
        let (idle, upstream_idle) = (millis(2_000), millis(1_000));
        let requests_max = if random.random_range(0..4) == 0 { random.random_range(1..4) } else { 0 };
        let reload =
            (random.random_range(0..3) == 0).then(|| Duration::from_micros(random.random_range(0..400_000)));
        HttpPlan { chains, idle, upstream_idle, requests_max, reload }
    }
}

impl Scenario {
    /// Returns the scenario of a seed with HTTP, half of the seeds with TLS, which programs of the cluster do
    /// not speak.
    pub fn with_http(seed: u64) -> Self {
        let mut scenario = Scenario { tls: seed / 2 % 2 == 1, ..Scenario::of(seed) };
        for transaction in &mut scenario.work {
            let is_http = transaction.by_process.is_none() || transaction.hairpin && !scenario.tls;
            let gets = is_http && dice(transaction.download, 40, 2) == 0;
            let of_get = Request::LEN as u64 + u64::from(transaction.download);
            *transaction = Transaction {
                upload: if gets { 0 } else { transaction.upload },
                abort_after: transaction.abort_after.map(|after| if gets { after % of_get } else { after }),
                hairpin: transaction.hairpin && !scenario.tls,
                // A response to a request that its server does not read may be lost.
                refusal: transaction.refusal.filter(|_| !is_http && !transaction.hairpin),
                duplex: transaction.duplex || is_http && transaction.refusal.is_some(),
                ..*transaction
            };
        }
        scenario.http = Some(HttpPlan::of(&scenario));
        scenario
    }
}

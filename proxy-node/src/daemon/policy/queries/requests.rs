//! Queries on request: what programs may ask of each channel, and how it is planned.

use std::collections::HashMap;
use std::sync::Arc;

use csp_control::{Catalogue, Policy, QueryRequest, RequestError, RowFormat};
use csp_services::{
    ChannelSpec, QueryAsked, QueryPlan, QueryPlanner, QueryRefused, RequestPlace, RequestSpec,
};
use csp_types::Duration;

use super::{feeds_of, path_of};
use crate::daemon::policy::{Numbers, translate_channel};

/// Plans queries that are asked of one channel, by the policy that was translated.
struct Planner {
    policy: Arc<Policy>,
    catalogue: Arc<Catalogue>,
    channel: String,
    numbers: HashMap<String, u32>,
    seed: u64,
}

impl std::fmt::Debug for Planner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planner").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl QueryPlanner for Planner {
    fn plan(&self, asked: QueryAsked<'_>) -> Result<QueryPlan, QueryRefused> {
        let output = if asked.json { RowFormat::Json } else { RowFormat::Sbe };
        let request = QueryRequest { channel: &self.channel, name: asked.topic, sql: asked.sql, output };
        let found = self
            .catalogue
            .request(&self.policy, request)
            .map_err(|RequestError { message, place }| QueryRefused { message, place })?;
        let number = |name: &str| self.numbers.get(name).copied().unwrap_or(u32::MAX);
        Ok(QueryPlan {
            path: path_of(&found.query, &found.planned, asked.number, self.seed),
            feeds: feeds_of(&found.planned, asked.number, number),
            schema: found.planned.plan.derived.xml.clone(),
        })
    }
}

/// Returns what programs may ask of channels. `served` are the channels that this proxy serves.
pub(in crate::daemon::policy) fn specs(
    policy: &Arc<Policy>,
    catalogue: &Arc<Catalogue>,
    served: &[ChannelSpec],
    numbers: &mut Numbers,
) -> Vec<RequestSpec> {
    let names = policy.all_channels().map(|channel| channel.name);
    let all: HashMap<String, u32> = names.map(|name| (name.clone(), numbers.of(&name))).collect();
    let mut specs: Vec<RequestSpec> = Vec::new();
    for (at, place) in policy.requested_channels() {
        let channel = &policy.channels[at];
        let number = numbers.of(&channel.name);
        // A channel whose secret key is not here is not served, nor are queries over it.
        let Some(asked) = served.iter().find(|spec| spec.number == number) else { continue };
        let spec = ChannelSpec {
            derived: true,
            keys: asked.keys.clone(),
            ..ChannelSpec::open(numbers.of(&place.name), translate_channel(&place))
        };
        let place = RequestPlace { spec, address: (place.vip, place.port).into() };
        match specs.last_mut().filter(|last| last.number == number) {
            Some(last) => last.places.push(place),
            None => specs.extend(channel.requests.as_ref().map(|requests| RequestSpec {
                number,
                places: vec![place],
                each: requests.each.into(),
                lease: Duration::from_secs(requests.lease_s.into()),
                planner: Arc::new(Planner {
                    policy: policy.clone(),
                    catalogue: catalogue.clone(),
                    channel: channel.name.clone(),
                    numbers: all.clone(),
                    seed: numbers.seed,
                }),
            })),
        }
    }
    specs
}

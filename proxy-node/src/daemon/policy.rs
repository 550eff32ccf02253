//! Converts a policy to what the workers need of it.

pub mod flows;
mod framing;
mod queries;

pub(super) use queries::{formats as channel_formats, outputs as stage_outputs};

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use csp_messages::{Budget, CacheConfig, ChannelConfig, ChannelKind, QueueLimits};
use csp_planner::Planned;
use csp_policy::{Curve, Pattern, Permission, TcpOptions, UnknownFormat};
use csp_services::{ChannelKeys, ChannelSpec, ContextSpec, Rights};
use csp_types::{Duration, NodeId};

use crate::WorkerPolicy;
use crate::core::{BacklogLimits, EgressRule, PoolServer, ServiceSpec, ServiceTcp};

use super::curve_keys::KeyRing;
use super::modules::Modules;

/// The numbers of local services: the same for a name as long as the daemon runs.
#[derive(Debug, Default)]
pub struct Numbers {
    known: HashMap<String, u32>,
    /// Determines the hashes of the keys of queries and operators; random, so that no publisher knows it.
    seed: u64,
    /// The numbers of information flows.
    flows: flows::Known,
}

impl Numbers {
    /// No numbers yet.
    pub fn new(seed: u64) -> Self {
        Numbers { seed, ..Numbers::default() }
    }

    /// The same for a proxy whose workers share its link and measure what handlers of flows take.
    #[must_use]
    pub fn of_proxy(self, node: NodeId, costs: flows::Costs) -> Self {
        Numbers { flows: flows::Known::new(node, costs), ..self }
    }

    fn of(&mut self, name: &str) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(name.to_owned()).or_insert(next)
    }
}

/// Returns what workers need of a policy. Channels whose secret key is not in `ring` are not served.
pub fn translate(
    planned: &Planned,
    numbers: &mut Numbers,
    (ring, modules): (&KeyRing, &Arc<Modules>),
) -> WorkerPolicy {
    let service = |s: &csp_policy::Service| ServiceSpec {
        name: s.name.clone(),
        address: (s.vip, s.port).into(),
        pool: pool(&s.pool),
        local: None,
        between: None,
        tcp: translate_tcp(&s.tcp),
        backlog: BacklogLimits {
            connections: s.backlog.connections as usize,
            time: (s.backlog.time_s > 0).then(|| Duration::from_secs(s.backlog.time_s.into())),
        },
    };
    let rule = |e: &csp_policy::Egress| EgressRule {
        address: e.address,
        destinations: e.destinations.clone(),
        except: e.except.clone(),
        tcp: translate_tcp(&e.tcp),
    };
    let (policy, catalogue) = (planned.policy(), planned.catalogue());
    let mut services: Vec<ServiceSpec> = policy.services.iter().map(service).collect();
    let (mut channels, mut streams, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for (at, channel) in policy.all_channels().enumerate() {
        let channel = &channel;
        let number = numbers.of(&channel.name);
        let passes = !channel.pool.is_empty();
        match passes {
            true => streams.push(framing::stream(channel, number)),
            false => {
                let keys = channel.curve.as_ref().map(|curve| translate_curve(curve, ring));
                if keys != Some(None) {
                    let query = at.checked_sub(policy.channels.len());
                    let source = policy.source_of(&channel.name);
                    let formats = match source {
                        Some(source) => queries::derived_formats(policy, catalogue, source, numbers.seed),
                        None => queries::formats(policy, catalogue, at, numbers.seed),
                    };
                    match (query, source) {
                        (Some(query), _) => {
                            paths.push(queries::path(policy, catalogue, query, number, numbers.seed));
                        }
                        (None, Some(source)) => {
                            paths.push(queries::derived_path(source, &channel.name, number));
                        }
                        (None, None) => {
                            let (formats, supplied) = (formats.as_ref(), &policy.handlers[..]);
                            let known = &catalogue.channels[at];
                            let of =
                                queries::PathSource { channel, number, known, formats, supplied, modules };
                            paths.extend(queries::channel_paths(&of, |name| numbers.of(name)));
                        }
                    }
                    let derived = query.is_some() || source.is_some();
                    channels.push(ChannelSpec {
                        formats,
                        drops_unknown: channel.unknown == UnknownFormat::Drop,
                        derived,
                        number,
                        channel: translate_channel(channel),
                        prefixed: framing::prefixed_ports(channel, derived),
                        heartbeat: (channel.heartbeat_s > 0)
                            .then(|| Duration::from_secs(channel.heartbeat_s.into())),
                        keys: keys.flatten().map(Arc::new),
                    });
                }
            }
        }
        services.extend(channel.ports().map(|port| ServiceSpec {
            name: channel.service_name(port.port),
            address: (channel.vip, port.port).into(),
            pool: pool(&channel.pool),
            local: (!passes).then_some(number),
            between: passes.then_some(number),
            tcp: translate_tcp(&channel.tcp),
            backlog: BacklogLimits::default(),
        }));
    }
    let requests = queries::requests::specs(policy, catalogue, &channels, numbers);
    services.extend(policy.requested_channels().map(|(_, place)| ServiceSpec {
        name: place.service_name(place.port),
        address: (place.vip, place.port).into(),
        pool: Vec::new(),
        local: Some(numbers.of(&place.name)),
        between: None,
        tcp: translate_tcp(&place.tcp),
        backlog: BacklogLimits::default(),
    }));
    let placements = policy.placements();
    let contexts = policy.contexts.iter().filter_map(|context| {
        services.push(context_service(context));
        Some(ContextSpec { number: context.number()?, service: context.service_name() })
    });
    let contexts = contexts.collect();
    let flows = flows::translate(policy, catalogue, numbers);
    WorkerPolicy {
        services,
        flows,
        contexts,
        egress: policy.egress.iter().map(rule).collect(),
        channels,
        requests,
        streams,
        paths,
        feeds: queries::feeds(policy, catalogue, numbers),
        places: placements.into_iter().map(|(name, key)| (numbers.of(&name), key)).collect(),
    }
}

/// The service of which a process is a context: nobody but the proxy connects to it.
fn context_service(context: &csp_policy::GContext) -> ServiceSpec {
    ServiceSpec {
        name: context.service_name(),
        address: (Ipv4Addr::UNSPECIFIED, 0).into(),
        pool: pool(&context.pool),
        local: None,
        between: None,
        tcp: ServiceTcp::default(),
        backlog: BacklogLimits::default(),
    }
}

fn pool(members: &[csp_policy::PoolMember]) -> Vec<PoolServer> {
    members.iter().map(|m| PoolServer { node: m.node, port: m.port }).collect()
}

/// Returns the keys of a channel; `None` if this proxy does not have the secret one.
fn translate_curve(curve: &Curve, ring: &KeyRing) -> Option<ChannelKeys> {
    let rights = |may: &[Permission]| Rights {
        publish: may.contains(&Permission::Publish),
        subscribe: may.contains(&Permission::Subscribe),
        control: may.contains(&Permission::Control),
        query: may.contains(&Permission::Query),
        supply: may.contains(&Permission::Supply),
    };
    let clients = curve.clients.iter().map(|client| (client.key.0, rights(&client.may))).collect();
    let server = ring.get(&curve.server_key)?.clone();
    Some(ChannelKeys { server, require: curve.require, clients, any: rights(&curve.any) })
}

fn translate_channel(channel: &csp_policy::Channel) -> ChannelConfig {
    let csp_policy::Channel { name, pattern, message_kib, queue, memory, last_value, sequence, .. } = channel;
    let limits =
        QueueLimits { messages: queue.messages, bytes: u64::from(queue.kib) << 10, ..QueueLimits::default() };
    let cache = last_value.map(|last| CacheConfig {
        key: last.key,
        entries: last.entries,
        bytes: u64::from(last.kib) << 10,
    });
    ChannelConfig {
        name: name.clone(),
        kind: match pattern {
            Pattern::Publish => ChannelKind::PublishSubscribe { policy: queue.full, cache },
            Pattern::Push => ChannelKind::PushPull { backlog: limits },
        },
        budget: Budget {
            guaranteed: u64::from(memory.guaranteed_mib) << 20,
            max: u64::from(memory.max_mib) << 20,
        },
        message_len_max: message_kib << 10,
        queue: limits,
        sequence: *sequence,
    }
}

fn translate_tcp(tcp: &TcpOptions) -> ServiceTcp {
    ServiceTcp {
        congestion: Some(tcp.congestion),
        ecn: Some(tcp.ecn),
        pacing: Some(tcp.pacing),
        keepalive_s: Some(tcp.keepalive_s),
        user_timeout_s: Some(tcp.user_timeout_s),
        mss: tcp.mss,
    }
}

#[cfg(test)]
mod tests {
    use csp_tcp::{CongestionControl, EcnMode};

    use super::*;

    #[test]
    fn all_that_policy_says_of_a_service_s_connections_reaches_them() {
        let tcp = TcpOptions {
            congestion: CongestionControl::NewReno,
            ecn: EcnMode::Active,
            pacing: false,
            keepalive_s: 30,
            user_timeout_s: 0,
            mss: Some(1_200),
        };
        let expected = ServiceTcp {
            congestion: Some(CongestionControl::NewReno),
            ecn: Some(EcnMode::Active),
            pacing: Some(false),
            keepalive_s: Some(30),
            user_timeout_s: Some(0),
            mss: Some(1_200),
        };
        assert_eq!(translate_tcp(&tcp), expected);
    }
}

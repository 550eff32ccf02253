//! Converts one channel: what the planner knows of it becomes what the broker serves.

use std::sync::Arc;

use csp_messages::{Budget, CacheConfig, ChannelConfig, ChannelKind, QueueLimits};
use csp_planner::{Origin, Planned, PlannedChannel};
use csp_policy::{Channel, Curve, Pattern, Permission, UnknownFormat};
use csp_services::{ChannelKeys, ChannelPolicy, ChannelSpec, Rights};
use csp_types::Duration;

use super::{Numbers, framing, queries};
use crate::daemon::curve_keys::KeyRing;
use crate::daemon::modules::Modules;

/// Returns what the broker needs of a channel; `None` if its secret key is not in `ring`: it is not served.
pub(super) fn translate(
    planned: &Planned,
    of: &PlannedChannel<'_>,
    numbers: &mut Numbers,
    (ring, modules): (&KeyRing, &Arc<Modules>),
) -> Option<ChannelPolicy> {
    let (policy, channel, seed) = (planned.policy(), &*of.channel, numbers.seed);
    let number = numbers.of(&channel.name);
    let keys = match &channel.curve {
        Some(curve) => Some(Arc::new(translate_curve(curve, ring)?)),
        None => None,
    };
    let (mut paths, mut feeds) = (Vec::new(), Vec::new());
    let formats = match of.origin {
        Origin::Publishers { formats: known } => {
            let formats = queries::formats(policy, channel, known, seed);
            let supplied = &policy.handlers[..];
            let source =
                queries::PathSource { channel, number, known, formats: formats.as_ref(), supplied, modules };
            paths = queries::channel_paths(&source, |name| numbers.of(name));
            formats
        }
        Origin::Outputs { of: source, formats: known } => {
            paths.push(queries::derived_path(source, &channel.name, number));
            queries::derived_formats(policy, source, known, seed)
        }
        Origin::Query { query, plan } => {
            if let Some(plan) = plan {
                paths.push(queries::path_of(query, plan, number, seed));
                feeds = queries::feeds_of(&plan.sources, number, |name| numbers.of(name));
            }
            None
        }
    };
    let derived = !matches!(of.origin, Origin::Publishers { .. });
    let spec = ChannelSpec {
        number,
        channel: config(channel),
        prefixed: framing::prefixed_ports(channel, derived),
        heartbeat: (channel.heartbeat_s > 0).then(|| Duration::from_secs(channel.heartbeat_s.into())),
        keys,
        formats,
        drops_unknown: channel.unknown == UnknownFormat::Drop,
        derived,
    };
    let requests = queries::requests::spec(planned, of, &spec, numbers);
    Some(ChannelPolicy { spec, paths, feeds, requests, place: Some(of.place) })
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

/// Returns the distribution of a channel's messages, and their bounds.
pub(super) fn config(channel: &Channel) -> ChannelConfig {
    let Channel { name, pattern, message_kib, queue, memory, last_value, sequence, .. } = channel;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::certificates::Certificates;
    use crate::daemon::names::Names;
    use crate::daemon::policy;

    const KEYED: &str = r#"apiVersion: csp/v1
formats:
  - {name: tick, schema: "<messageSchema package='t' id='1'><types><composite name='messageHeader'><type name='blockLength' primitiveType='uint16'/><type name='templateId' primitiveType='uint16'/><type name='schemaId' primitiveType='uint16'/><type name='version' primitiveType='uint16'/></composite></types><message name='Tick' id='1'><field name='price' id='1' type='int64'/></message></messageSchema>"}
channels:
  - {name: open, vip: 10.76.0.100, port: 5555}
  - name: ticks
    vip: 10.76.0.100
    port: 5556
    formats: [tick]
    requests: {port: 5650, queries: 1}
    curve: {server_key: "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", any: [subscribe]}
"#;

    /// Without its secret key a channel is not served. It still has a place, to which programs are sent.
    #[test]
    fn a_channel_without_its_secret_key_keeps_its_place() {
        let planned = Planned::parse_yaml(KEYED, "p.yaml").unwrap_or_else(|error| panic!("{error}"));
        let (mut numbers, modules) = (Numbers::default(), Modules::new("none".into()));
        let wanted = policy::translate(
            &planned,
            &mut numbers,
            (&KeyRing::default(), &modules),
            (&Names::default(), &Certificates::default()),
        );
        let served: Vec<u32> = wanted.messages.channels.iter().map(|channel| channel.spec.number).collect();
        assert_eq!(served, [numbers.of("open")]);
        let place = planned.policy().channels[1].placement();
        let unserved = ["ticks", "ticks.1"].map(|name| (numbers.of(name), place));
        assert_eq!(wanted.messages.unserved, unserved, "with the channel of its requested query");
        assert!(unserved.iter().all(|(number, _)| wanted.services.iter().any(|s| s.local == Some(*number))));
    }
}

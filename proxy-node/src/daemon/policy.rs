//! Converts a policy to the core's services and egress rules.

use csp_control::{ActivePolicy, Congestion, EcnPolicy, TcpOptions};
use csp_tcp::{CongestionControl, EcnMode};
use csp_types::Duration;

use crate::core::{BacklogLimits, EgressRule, PoolServer, ServiceSpec, ServiceTcp};

/// Returns the services and egress rules of `active`.
pub fn translate(active: &ActivePolicy) -> (Vec<ServiceSpec>, Vec<EgressRule>) {
    let service = |s: &csp_control::Service| ServiceSpec {
        name: s.name.clone(),
        address: (s.vip, s.port).into(),
        pool: s.pool.iter().map(|m| PoolServer { node: m.node, port: m.port }).collect(),
        local: None,
        tcp: translate_tcp(&s.tcp),
        backlog: BacklogLimits {
            connections: s.backlog.connections as usize,
            time: (s.backlog.time_s > 0).then(|| Duration::from_secs(s.backlog.time_s.into())),
        },
    };
    let rule = |e: &csp_control::Egress| EgressRule {
        address: e.address,
        destinations: e.destinations.clone(),
        except: e.except.clone(),
        tcp: translate_tcp(&e.tcp),
    };
    (active.policy.services.iter().map(service).collect(), active.policy.egress.iter().map(rule).collect())
}

fn translate_tcp(tcp: &TcpOptions) -> ServiceTcp {
    let congestion = match tcp.congestion {
        Congestion::Newreno => CongestionControl::NewReno,
        Congestion::Cubic => CongestionControl::Cubic,
    };
    let ecn = match tcp.ecn {
        EcnPolicy::Off => EcnMode::Off,
        EcnPolicy::Passive => EcnMode::Passive,
        EcnPolicy::Active => EcnMode::Active,
    };
    ServiceTcp {
        congestion: Some(congestion),
        ecn: Some(ecn),
        pacing: Some(tcp.pacing),
        keepalive_s: Some(tcp.keepalive_s),
        user_timeout_s: Some(tcp.user_timeout_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_policy_says_of_a_service_s_connections_reaches_them() {
        let tcp = TcpOptions {
            congestion: Congestion::Newreno,
            ecn: EcnPolicy::Active,
            pacing: false,
            keepalive_s: 30,
            user_timeout_s: 0,
        };
        let expected = ServiceTcp {
            congestion: Some(CongestionControl::NewReno),
            ecn: Some(EcnMode::Active),
            pacing: Some(false),
            keepalive_s: Some(30),
            user_timeout_s: Some(0),
        };
        assert_eq!(translate_tcp(&tcp), expected);
    }
}

//! What a worker needs of a policy.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use csp_election::GroupId;
use csp_gateway::HttpService;
use csp_services::MessagesPolicy;

use super::FlowsConfig;
use crate::core::{EgressRule, ServiceSpec};

/// What a worker needs of a policy.
#[derive(Clone, Debug, Default)]
pub struct WorkerPolicy {
    /// What clients can reach, channels of messages included.
    pub services: Vec<ServiceSpec>,
    /// How applications' own connections leave.
    pub egress: Vec<EgressRule>,
    /// The channels of messages at addresses of `services`, and contexts that are programs of the cluster.
    pub messages: MessagesPolicy,
    /// Services at addresses of `services` whose HTTP is read.
    pub http: Vec<Arc<HttpService>>,
    /// What is answered to an ACME authority.
    pub challenges: csp_gateway::Challenges,
    /// Information flows, and the link that they share.
    pub flows: Option<FlowsConfig>,
    /// The groups of addresses that move from one network node to another.
    pub vip_groups: HashMap<IpAddr, GroupId>,
    /// Which connections are recorded; `None`: none.
    pub log: Option<csp_policy::ConnectionLog>,
    /// How much of clients' addresses records of HTTP requests have.
    pub http_addresses: csp_policy::LogAddresses,
}

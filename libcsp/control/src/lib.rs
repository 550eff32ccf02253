//! The control plane as every daemon sees it: its configuration, its registration, the other members, and the policy.
//!
//! Owns everything CSP keeps in etcd (`/csp/v1/...`) and on disk (the last-known-good policy). The data path never
//! calls into this crate: daemons hand its results to their workers.
#![forbid(unsafe_code)]
// This crate owns clocks (leases, back-off) and sockets (etcd).
#![allow(clippy::disallowed_types)]

mod client;
pub mod config;
mod daemon;
pub mod drain;
mod durable;
mod endpoints;
mod error;
mod etcd_process;
mod follow;
pub mod key_file;
pub mod keys;
mod lkg;
mod manager;
mod membership;
pub mod policy;
mod policy_store;
mod positions;
mod predecessor;
mod registration;
mod registry;
mod signatures;
mod state_files;
mod status;
pub mod users;

#[cfg(test)]
mod tests;

pub use client::{EtcdAccess, EtcdClient};
pub use config::{
    AdminSection, ConfigError, EtcdSection, LogFormat, LogSection, NodeSection, Problems, SanProvider,
    SanSection,
};
pub use daemon::{ControlOptions, ControlPlane, PolicyCheck};
pub use error::{ControlError, exit_code};
pub use etcd_process::{EtcdProcess, EtcdProcessError, EtcdProcessOptions};
pub use manager::{ApplyOutcome, GenerationSummary, ManagerError, PolicyManager, Signer, StageFailure};
pub use membership::{Change, Member, MemberState, Membership};
pub use policy::{
    AccessRule, Backlog, BroughtHandlers, Catalogue, Channel, ChannelMemory, ChannelPort, ChannelTime,
    Clients, Congestion, Curve, CurveClient, EcnPolicy, Egress, Format, Framing, FullQueue, GContext,
    GivenUp, Headers, KnownFormat, LastValue, LastValueKey, LengthCounts, LengthHeader, LengthOrder,
    OUTPUTS_MAX, OnStop, PACKET_RULES_MAX, PLUGIN_HOSTS_MAX, PLUGINS_MAX, PacketPlugin, PacketRule,
    PathStage, Pattern, Permission, PlannedQuery, PluginHost, PluginLevel, PluginPlacement, Policy,
    PoolMember, ProgramRule, Query, QueryLimits, QueryRequest, QuerySource, REQUESTED_MAX, ReceiverQueue,
    RequestError, RequestedQuery, RequestedTranslation, Requests, RowFormat, RuleFallback, SOFH_ENCODING,
    SOFH_LEN, SUPPLIED_MAX, Service, StagePlacement, Subject, SuppliedHandler, TcpOptions, TimeUnit,
    TranslationRequest, UnknownFormat, format_set, path_formats, path_order, plugin_manager,
};
pub use policy::{
    Adapt, DEFAULT_FLOW, FLOW_FIELDS_MAX, FLOWS_MAX, Flow, FlowCondition, FlowContexts, FlowFull, FlowMatch,
    FlowMonitor, FlowQueue, FlowReserve, FlowTrigger, FormatFields, Limit, Link, LinkScheme, LinkShare,
    MonitorMode, TriggerAction, TriggerWhen,
};
pub use policy_store::{AckState, ActivePolicy, GenerationRecord, NodeAck, PolicySource};
pub use registry::{NodeRecord, SanAddress};
pub use signatures::{Activation, PolicySignature};
pub use status::ControlStatus;

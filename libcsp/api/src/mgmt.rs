//! Bodies of the management node's API, `/api/v1/…`, which `cspctl` and the operations page read.

mod actions;
mod cluster;
mod flows;
mod http;
mod login;
mod messages;
mod policy;
mod series;

pub use actions::{AuditRecord, AuditView, SchemeRequest, SessionView};
pub use cluster::{
    ChannelView, ChannelsView, DropView, EtcdView, EventsEndpoint, Figure, NodeState, NodeView, NodesView,
    OverviewView, PoolMemberView, ServiceView, ServicesView, TierView, Unreachable, VipGroupView,
    VipGroupsView,
};
pub use flows::{
    ClockView, FlowView, FlowsView, QueuesView, RecentFlowView, RecentView, SocketView, SocketsView,
    TraceEventView, TraceView,
};
pub use http::HttpTraceView;
pub use login::{LinkRequest, LinkView, LoginRequest, LoginView, RedeemRequest};
pub use messages::{MessageTraceView, PeerView, SubscriptionsView, TracedMessageView};
pub use policy::{
    AckView, Acknowledged, DryRunView, ErrorBody, FieldError, GenerationView, LeaderView, Phase, PolicyView,
};
pub use series::{FigureSeries, ObjectSeries, PathView, SeriesView, TopologyView};

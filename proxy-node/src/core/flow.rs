//! What the SAN proxy service knows of one flow, beside its TCB: where it goes and how far both directions got.
//!
//! ```text
//!  client SYN..ACK      pool choice          ACCEPTED            CLOSE / RESET, both ends
//! ───────────────▶ Pending ──────▶ Offered ───────────▶ Open ─────────────────────────────▶ (gone)
//!                     ▲               │ REFUSED, process died
//!                     └───────────────┘
//!  CONNECT ──▶ Connecting ──▶ Open            Open ── CLOSE, process ended ──▶ Finishing ──▶ (gone)
//! ```

use csp_types::{FlowLabel, FourTuple, Instant};

use super::output::Lane;
use super::pool::{ChannelId, Choice};

/// Where a flow stands between the client's connection and the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The client is connected; no process was found yet.
    Pending,
    /// OPEN was sent; the process has not answered.
    Offered(Choice),
    /// Bytes flow.
    Open(Attachment),
    /// An active open: the SYN is out.
    Connecting {
        /// Who asked.
        channel: ChannelId,
        /// By which request id.
        request: u32,
    },
    /// The application is done with it; the TCB delivers what is left.
    Finishing,
}

/// The process at the other end of an open flow, and the pool choice to give back when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// The process.
    pub channel: ChannelId,
    /// `None` for active opens.
    pub choice: Option<Choice>,
}

/// One flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Its label.
    pub label: FlowLabel,
    /// Client and service address.
    pub tuple: FourTuple,
    /// Index of the service; `u32::MAX` for active opens.
    pub service: u32,
    /// Where it stands.
    pub stage: Stage,
    /// The VI that carries it, once a process is chosen.
    pub lane: Lane,
    /// When the stage began.
    pub since: Instant,
    /// Bytes that may still be sent to the application.
    pub to_app_credit: u32,
    /// Window granted to the application for bytes to the client; fits the send buffer whole.
    pub from_app_window: u32,
    /// Bytes received from the application and not credited back yet.
    pub from_app_outstanding: u32,
    /// The client's FIN arrived in order.
    pub client_finished: bool,
    /// SHUTDOWN was sent to the application.
    pub shutdown_sent: bool,
    /// The application sent SHUTDOWN.
    pub app_finished: bool,
    /// Processes that handed the connection back.
    pub refusals: u8,
    /// Waiting in the list of flows to pump.
    pub queued: bool,
    /// Bytes passed to the application.
    pub bytes_to_app: u64,
    /// Bytes taken from the application.
    pub bytes_from_app: u64,
}

impl Flow {
    /// The process this flow is bound to, if any.
    pub fn channel(&self) -> Option<ChannelId> {
        match self.stage {
            Stage::Pending | Stage::Finishing => None,
            Stage::Offered(choice) => Some(choice.channel),
            Stage::Open(attachment) => Some(attachment.channel),
            Stage::Connecting { channel, .. } => Some(channel),
        }
    }

    /// The pool choice to give back when the flow ends.
    pub fn choice(&self) -> Option<Choice> {
        match self.stage {
            Stage::Offered(choice) => Some(choice),
            Stage::Open(attachment) => attachment.choice,
            Stage::Pending | Stage::Connecting { .. } | Stage::Finishing => None,
        }
    }
}

/// Flows by label: one slot per label index of this worker's share, generation checked.
#[derive(Debug)]
pub struct FlowTable {
    first_index: usize,
    slots: Box<[Option<Flow>]>,
    live: usize,
}

impl FlowTable {
    /// A table for the label indices from `first_index` on, `capacity` of them.
    pub fn new(first_index: u32, capacity: usize) -> Self {
        FlowTable {
            first_index: first_index as usize,
            slots: vec![None; capacity].into_boxed_slice(),
            live: 0,
        }
    }

    fn slot(&self, label: FlowLabel) -> Option<usize> {
        label.index().checked_sub(self.first_index).filter(|at| *at < self.slots.len())
    }

    /// The flow of this very label.
    pub fn get(&self, label: FlowLabel) -> Option<&Flow> {
        self.slots[self.slot(label)?].as_ref().filter(|f| f.label == label)
    }

    /// The flow of this very label, to change.
    pub fn get_mut(&mut self, label: FlowLabel) -> Option<&mut Flow> {
        let at = self.slot(label)?;
        self.slots[at].as_mut().filter(|f| f.label == label)
    }

    /// Takes a new flow in; what was left in the slot by an older generation comes back.
    pub fn insert(&mut self, flow: Flow) -> Option<Flow> {
        let at = self.slot(flow.label)?;
        let old = self.slots[at].replace(flow);
        self.live += usize::from(old.is_none());
        old
    }

    /// Takes a flow out.
    pub fn remove(&mut self, label: FlowLabel) -> Option<Flow> {
        let at = self.slot(label)?;
        let gone = self.slots[at].take_if(|f| f.label == label);
        self.live -= usize::from(gone.is_some());
        gone
    }

    /// Live flows.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Slots.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// All flows, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.slots.iter().flatten()
    }

    /// The label in slot `at`, for walks that change the table on the way.
    pub fn label_at(&self, at: usize) -> Option<FlowLabel> {
        self.slots.get(at)?.as_ref().map(|f| f.label)
    }
}

//! What an operator says of an information flow (IQ §2.1): which data items belong to it, how important it
//! is, what it is promised, and how much of it may wait.

use csp_types::Duration;

use crate::descriptor::{Predicate, PredicateError};

pub use csp_types::options::Overflow;

/// Most flows of a resource manager, the default flow included.
pub const FLOWS_MAX: usize = 16_384;
/// Longest name of a flow or handler, in bytes.
pub const NAME_LEN_MAX: usize = 64;

/// The small number of a flow. Flow 0 takes what no predicate matches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FlowId(pub u16);

impl FlowId {
    /// The flow of data items that no predicate matches.
    pub const DEFAULT: FlowId = FlowId(0);

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a flow is promised as long as it has items waiting. Zero: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reservation {
    /// Contexts that serve the flow whenever it has items, and that are lent while it has none.
    pub contexts: u16,
    /// Data items a second.
    pub items_per_second: u32,
    /// Bits a second at the output link.
    pub bits_per_second: u64,
}

/// What makes a data item: one message, or a run of messages of one connection that differ in no field that a
/// predicate reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemRule {
    /// Most messages of an item.
    pub messages_max: u16,
    /// Most bytes of an item. A single message may be longer; it is counted as oversized, and promises of
    /// other flows don't allow for it.
    pub bytes_max: u32,
    /// Longest time from the first message of an item to its last.
    pub window: Duration,
}

impl Default for ItemRule {
    fn default() -> Self {
        ItemRule { messages_max: 1, bytes_max: 64 * 1024, window: Duration::from_millis(1) }
    }
}

/// Most of a flow that waits or is being processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueBounds {
    /// Data items.
    pub items: u32,
    /// Bytes. One item is taken whatever its length.
    pub bytes: u64,
}

impl Default for QueueBounds {
    fn default() -> Self {
        QueueBounds { items: 256, bytes: 4 << 20 }
    }
}

/// A flow as the policy describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowSpec {
    /// Its name. A flow that keeps its name keeps its id and its queue.
    pub name: String,
    /// Which data items belong to it.
    pub predicate: Predicate,
    /// Its priority: a higher number is served first.
    pub priority: u8,
    /// What it is promised.
    pub reservation: Reservation,
    /// What makes a data item.
    pub item: ItemRule,
    /// How much of it may wait.
    pub bounds: QueueBounds,
    /// What happens when more arrives.
    pub overflow: Overflow,
    /// Handlers that see a data item before it is queued, by name.
    pub pre: Vec<String>,
    /// The handler that a context runs for each data item, by name. Without one, items go straight to the
    /// output link.
    pub post: Option<String>,
}

impl FlowSpec {
    /// A flow of priority 0 without promises or handlers.
    pub fn new(name: &str, predicate: Predicate) -> Self {
        FlowSpec {
            name: name.to_owned(),
            predicate,
            priority: 0,
            reservation: Reservation::default(),
            item: ItemRule::default(),
            bounds: QueueBounds::default(),
            overflow: Overflow::default(),
            pre: Vec::new(),
            post: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), FlowError> {
        let refuse = |reason| Err(FlowError { flow: self.name.clone(), reason });
        let names = std::iter::once(&self.name).chain(&self.pre).chain(&self.post);
        for name in names {
            if name.is_empty() || name.len() > NAME_LEN_MAX {
                return refuse(FlowErrorReason::Name(name.clone()));
            }
        }
        if self.pre.len() > PRE_HANDLERS_MAX {
            return refuse(FlowErrorReason::PreHandlers(self.pre.len()));
        }
        if self.item.messages_max == 0 || self.item.bytes_max == 0 {
            return refuse(FlowErrorReason::EmptyItem);
        }
        if self.bounds.items == 0 || self.bounds.bytes == 0 {
            return refuse(FlowErrorReason::EmptyQueue);
        }
        self.predicate.check().or_else(|error| refuse(FlowErrorReason::Predicate(error)))
    }
}

/// Most handlers before a queue, those that triggers install included.
pub const PRE_HANDLERS_MAX: usize = 4;

/// A flow that cannot be: the operator's mistake.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("flow {flow:?}: {reason}")]
pub struct FlowError {
    /// The flow's name.
    pub flow: String,
    /// What is wrong.
    pub reason: FlowErrorReason,
}

/// Why a flow cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FlowErrorReason {
    /// A name is empty or too long.
    #[error("the name {0:?} has not 1 to {NAME_LEN_MAX} bytes")]
    Name(String),
    /// Two flows have the same name.
    #[error("there is another flow of this name")]
    Twice,
    /// More flows than ids.
    #[error("there are more than {0} flows")]
    TooMany(usize),
    /// More handlers than one queue may have.
    #[error("{0} handlers stand before the queue; at most {PRE_HANDLERS_MAX} can")]
    PreHandlers(usize),
    /// A data item without messages or bytes.
    #[error("a data item has at least one message and one byte")]
    EmptyItem,
    /// A queue without room.
    #[error("the queue has no room for an item")]
    EmptyQueue,
    /// The predicate.
    #[error("{0}")]
    Predicate(PredicateError),
}

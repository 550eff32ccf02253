//! A bounded table whose ids carry a generation, so that the id of a removed value is invalid.

/// Bits of an id that hold the slot's index. With those of the generation they leave the two top bits for the
/// wire.
const INDEX_BITS: u32 = 18;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u32 = (1 << (30 - INDEX_BITS)) - 1;

/// The top bits of a request id on the wire, distinct from those of labels and listeners.
const REQUEST_TAG: u32 = 0x4000_0000;
/// The top bits of a listener id on the wire.
const LISTENER_TAG: u32 = 0x8000_0000;
const TAG_MASK: u32 = 0xc000_0000;

/// Identifies a flow of one application end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub(super) u32);

/// Identifies a listener of one application end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ListenerId(pub(super) u32);

impl FlowId {
    /// Its slot, below `flows_max`: an index for tables kept beside the application end.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// The id as CONNECT carries it; also for owners that need a number for it.
    pub const fn to_wire(self) -> u32 {
        self.0 | REQUEST_TAG
    }

    /// The id that [`to_wire`](Self::to_wire) returned; it may belong to a removed flow. `None` for a number
    /// that `to_wire` never returns.
    pub const fn from_wire(id: u32) -> Option<Self> {
        if id & TAG_MASK == REQUEST_TAG { Some(FlowId(id & !TAG_MASK)) } else { None }
    }
}

impl ListenerId {
    /// Its slot, below `listeners_max`.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// The id as LISTEN carries it.
    pub(super) const fn to_wire(self) -> u32 {
        self.0 | LISTENER_TAG
    }

    pub(super) const fn from_wire(id: u32) -> Option<Self> {
        if id & TAG_MASK == LISTENER_TAG { Some(ListenerId(id & !TAG_MASK)) } else { None }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// At most `capacity` values; memory grows with use.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    capacity: usize,
    len: usize,
}

impl<T> Slots<T> {
    pub fn new(capacity: usize) -> Self {
        Slots { slots: Vec::new(), free: Vec::new(), capacity: capacity.min(1 << INDEX_BITS), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// How many more values [`insert`](Self::insert) would take.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len)
    }

    /// Adds a value; `None` when the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.capacity => {
                self.slots.push(Slot { generation: 0, value: None });
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.value = Some(value);
        self.len += 1;
        Some((slot.generation << INDEX_BITS) | index)
    }

    fn slot(&self, id: u32) -> Option<&Slot<T>> {
        self.slots.get((id & INDEX_MASK) as usize).filter(|s| s.generation == id >> INDEX_BITS)
    }

    pub fn get(&self, id: u32) -> Option<&T> {
        self.slot(id)?.value.as_ref()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((id & INDEX_MASK) as usize)?;
        if slot.generation == id >> INDEX_BITS { slot.value.as_mut() } else { None }
    }

    pub fn remove(&mut self, id: u32) -> Option<T> {
        self.slot(id)?;
        let index = id & INDEX_MASK;
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push(index);
        self.len -= 1;
        Some(value)
    }

    /// Returns the slot and id of the first value at or after slot `index`, for walking the table while
    /// changing it.
    pub fn at_or_after(&self, index: usize) -> Option<(usize, u32)> {
        let rest = self.slots.get(index..)?;
        let at = index + rest.iter().position(|s| s.value.is_some())?;
        let slot = self.slots.get(at)?;
        Some((at, (slot.generation << INDEX_BITS) | at as u32))
    }
}

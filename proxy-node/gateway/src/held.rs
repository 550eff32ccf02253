//! Memory that connections of HTTP/2 have for payload: of all of a worker within one bound.

use std::collections::BTreeSet;

use csp_types::FlowLabel;

/// Most payload in memory of a worker's connections, in bytes. Beyond it the largest connection is reset.
const HELD_MAX: usize = 64 << 20;
/// Bytes by which parts are counted; a connection with less is not counted.
const UNIT: usize = 4 << 10;

/// A connection's part, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Part(usize);

/// The memory of all connections.
#[derive(Debug, Default)]
pub(crate) struct Held {
    units: usize,
    /// Connections that have a part, by its size.
    parts: BTreeSet<(usize, u32)>,
}

impl Held {
    /// Sets a connection's part to `bytes`.
    pub(crate) fn set(&mut self, label: FlowLabel, part: &mut Part, bytes: usize) {
        let units = bytes / UNIT;
        if units == part.0 {
            return;
        }
        self.parts.remove(&(part.0, label.to_wire()));
        if units > 0 {
            self.parts.insert((units, label.to_wire()));
        }
        self.units = (self.units + units).saturating_sub(part.0);
        part.0 = units;
    }

    /// Returns the largest connection if all together have more than the bound.
    pub(crate) fn excess(&self) -> Option<FlowLabel> {
        let (_, label) = self.parts.last().filter(|_| self.units > HELD_MAX / UNIT)?;
        FlowLabel::from_wire(*label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_connection_is_in_excess() {
        let labels: Vec<FlowLabel> = (1..=3).filter_map(FlowLabel::from_wire).collect();
        let (mut held, mut parts) = (Held::default(), [Part::default(); 3]);
        let mut set = |held: &mut Held, at: usize, bytes| held.set(labels[at], &mut parts[at], bytes);
        set(&mut held, 0, HELD_MAX / 2);
        set(&mut held, 1, HELD_MAX / 4);
        set(&mut held, 2, HELD_MAX / 4);
        assert_eq!(held.excess(), None);
        set(&mut held, 2, HELD_MAX / 4 + UNIT);
        assert_eq!(held.excess(), Some(labels[0]));
        set(&mut held, 0, 0);
        assert_eq!(held.excess(), None);
        set(&mut held, 1, HELD_MAX);
        assert_eq!(held.excess(), Some(labels[1]));
        (0..3).for_each(|at| set(&mut held, at, UNIT - 1));
        assert_eq!((held.units, held.parts.len()), (0, 0));
    }
}

//! The order of listeners for the next connection. Those in doubt come last, except for a trial at intervals.

use std::collections::BTreeSet;

use csp_types::{Duration, Instant};

use super::ChannelId;

/// How long a process is in doubt before it is tried again.
pub(super) const DOUBT: Duration = Duration::from_millis(200);

/// Sort key of a listener: the time since when it is in doubt, its number of open connections, its channel
/// and id.
pub(super) type Place = (Instant, u32, ChannelId, u32);

/// Smallest key of a listener in doubt.
const FIRST_DOUBTED: Place = (Instant::from_nanos(1), 0, ChannelId(0), 0);

/// Returns the best of these places without the `barred` ones, and whether its process is still in doubt.
pub(super) fn best(
    places: &BTreeSet<Place>,
    now: Instant,
    barred: impl Fn(&Place) -> bool,
) -> Option<(bool, Place)> {
    let open = |place: &&Place| !barred(place);
    let first = *places.iter().find(open)?;
    let in_doubt = |place: &Place| place.0 > Instant::ZERO && place.0 + DOUBT > now;
    let trial = places.range(FIRST_DOUBTED..).find(open);
    let trial = trial.filter(|place| !in_doubt(place) && place.1 < first.1);
    let place = trial.copied().unwrap_or(first);
    Some((in_doubt(&place), place))
}

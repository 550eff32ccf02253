//! Which of several listeners gets the next connection: those in doubt after the others, but for a trial now and then.

use std::collections::BTreeSet;

use csp_types::{Duration, Instant};

use super::ChannelId;

/// How long a process is in doubt before it is tried again.
pub(super) const DOUBT: Duration = Duration::from_millis(200);

/// A listener's place among others: since when it is in doubt, its open connections, its name.
pub(super) type Place = (Instant, u32, ChannelId, u32);

/// The first place of one that is in doubt.
const FIRST_DOUBTED: Place = (Instant::from_nanos(1), 0, ChannelId(0), 0);

/// The best of these places but the `barred` ones, and whether it is in doubt still.
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

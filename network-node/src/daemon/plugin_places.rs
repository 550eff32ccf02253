//! The control thread's part of placement: provides [`Places`] with observations, and carries out the moves.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use csp_api::plugins as api;
use csp_daemon::clock;
use csp_plugins::{Desired, DesiredInstance, Level, Manager, Move, Node, Observation, Places};
use csp_telemetry::SnapshotCell;

use crate::core::PluginCounts;

use super::metrics::Published;
use super::plugins::PluginControl;

/// The instances whose level the node chooses.
#[derive(Default)]
pub struct Placing {
    places: Places,
    /// The state in force, with the chosen levels.
    desired: Desired,
    /// Observations of the instances. Their static parts are valid as long as the policy is.
    observations: Vec<Observation>,
    /// The snapshots that workers publish.
    published: Vec<Arc<SnapshotCell<Published>>>,
    /// Frames that LAN ports had lost at the last observation.
    overrun: u64,
}

impl Placing {
    /// Creates a placement without instances.
    pub fn new(published: Vec<Arc<SnapshotCell<Published>>>) -> Self {
        Placing { published, ..Placing::default() }
    }

    /// Returns what the admin endpoint shows of an instance; `None` if the policy sets its level.
    pub fn shown(&self, name: &str) -> Option<api::Auto> {
        let reason = self.places.why(name)?.to_string().into();
        let of = |(known, _, moves)| (known == name).then_some(moves);
        let moves_total = self.places.moves().find_map(of).unwrap_or_default();
        Some(api::Auto { reason, packets_per_s: self.places.rate(name), moves_total })
    }

    /// Returns name, module and number of moves of each instance.
    pub fn moves(&self) -> Vec<(String, String, u64)> {
        let owned = |(name, module, moves): (&str, &str, u64)| (name.to_owned(), module.to_owned(), moves);
        self.places.moves().map(owned).collect()
    }

    /// Adopts a desired state that is in force in the manager.
    fn keep(&mut self, desired: Desired, manager: &Manager) {
        let auto: BTreeSet<&str> = placed(&desired).map(|instance| instance.name.as_str()).collect();
        self.observations.clear();
        if !auto.is_empty() {
            let mut obstacles: HashMap<String, String> =
                csp_xdp::obstacles(manager, |name| auto.contains(name));
            let observations = placed(&desired).map(|instance| Observation {
                name: instance.name.clone(),
                packets: None,
                obstacle: obstacles.remove(&instance.name),
                next: instance
                    .outputs
                    .iter()
                    .flatten()
                    .filter(|to| auto.contains(to.as_str()))
                    .cloned()
                    .collect(),
            });
            self.observations = observations.collect();
        }
        self.desired = desired;
    }

    fn evaluate(&mut self, no_driver: Option<&str>, overrun: bool) -> Vec<Move> {
        let fixed = self.desired.instances.iter().filter(|one| one.auto.is_none());
        let fixed = fixed.filter(|one| one.level == Level::Driver).count();
        let no_driver = no_driver.map(|error| format!("level 1 is not available: {error}"));
        let node = Node { no_driver, room: csp_xdp::INSTANCES_MAX.saturating_sub(fixed), overrun };
        self.places.evaluate(clock::now(), &node, &self.observations)
    }

    /// Returns whether LAN ports have lost frames since the last call.
    fn has_overrun(&mut self) -> bool {
        let overrun = self.published.iter().map(|cell| cell.read().overrun()).sum();
        core::mem::replace(&mut self.overrun, overrun) < overrun
    }
}

/// Returns the instances whose level the node chooses.
fn placed(desired: &Desired) -> impl Iterator<Item = &DesiredInstance> {
    desired.instances.iter().filter(|instance| instance.auto.is_some())
}

impl PluginControl {
    /// Reconciles the manager with a desired state after choosing the levels that the policy leaves open:
    /// those in force, or those expected.
    pub(super) fn reconcile(&mut self, mut desired: Desired) -> Result<(), String> {
        if placed(&desired).next().is_some() {
            self.driver.take_over();
        }
        let environments = self.manager.environments();
        let of_manager = |name: &str| {
            let (.., environment) = self.manager.instances().find(|(_, known, ..)| *known == name)?;
            environments.iter().find(|known| known.name == environment).map(|known| known.level)
        };
        // Instances that an earlier daemon left in the driver stay there.
        let level_of =
            |name: &str| of_manager(name).or(self.driver.has_place_of(name).then_some(Level::Driver));
        self.placing.places.declare(clock::now(), &mut desired, level_of);
        self.manager.reconcile(&desired).map_err(|error| error.to_string())?;
        self.placing.keep(desired, &self.manager);
        self.driver.retry();
        self.place(false).map(drop)
    }

    /// Moves the instances whose rate has lasted long enough, and puts the result into force.
    pub(super) async fn place_by_rate(&mut self, counts: &PluginCounts) {
        if self.placing.places.is_empty() {
            return;
        }
        for one in &mut self.placing.observations {
            let id = self.manager.instance(&one.name).ok();
            let count = counts.instances.iter().find(|(known, _)| Some(*known) == id);
            one.packets = count.map(|(_, count)| count.packets);
        }
        let overrun = self.placing.has_overrun();
        let placed = match self.place(overrun) {
            Ok(false) => return,
            Ok(true) => self.put_into_force().await,
            Err(error) => Err(error),
        };
        if let Err(error) = placed {
            tracing::error!(error, "packet plug-ins were not placed");
        }
    }

    /// Evaluates all instances, and makes the manager move those that are to move. Returns whether there were
    /// any.
    fn place(&mut self, overrun: bool) -> Result<bool, String> {
        let mut moves = self.placing.evaluate(self.driver.unavailable(), overrun);
        if moves.iter().any(|one| one.to == Level::Driver) && !self.driver.prepare() {
            moves = self.placing.evaluate(self.driver.unavailable(), overrun);
        }
        if moves.is_empty() {
            return Ok(false);
        }
        let now = clock::now();
        for Move { name, to } in &moves {
            let Placing { places, desired, .. } = &mut self.placing;
            desired.instances.iter_mut().filter(|one| one.name == *name).for_each(|one| one.level = *to);
            places.moved(now, name);
            let why = places.why(name).map(ToString::to_string).unwrap_or_default();
            tracing::info!(plugin = name, level = *to as u8, why, "the packet plug-in moves");
        }
        self.manager.reconcile(&self.placing.desired).map_err(|error| error.to_string())?;
        Ok(true)
    }
}

//! Checks for progress: no two ends wait for each other forever.

use csp_tcp::Event;
use csp_types::Duration;

use crate::app::App;
use crate::host::{EngineHost, Host};
use crate::world::World;

/// A connection without progress for this time, while the link works, is stuck.
const STUCK: Duration = Duration::from_secs(200);

impl World {
    /// After every step: each conversation made progress recently, or pauses by its script.
    pub fn check_progress(&mut self) {
        let now = self.now;
        let mut stuck = None;
        for (n, conversation) in self.conversations.iter_mut().enumerate() {
            let mut done = 0;
            for (side, end) in conversation.ends.iter().enumerate() {
                done += end.received + end.written + u64::from(end.is_over()) + u64::from(end.peer_finished);
                done += u64::from(end.id.is_some());
                let tuple = conversation.tuple_at(side);
                let view = self.watches[side].as_ref().and_then(|watch| watch.views.get(&tuple));
                done += view.map_or(0, |view| view.top - view.outstanding());
            }
            let pauses = conversation.ends.iter().any(|end| !end.is_over() && end.pauses(now));
            if !conversation.begun || pauses || done != conversation.progress.0 {
                conversation.progress = (done, now);
            } else if !conversation.is_over() && now - conversation.progress.1 > STUCK {
                stuck = Some(n);
            }
        }
        if stuck.is_none() && self.next_time().is_none() {
            stuck = stuck.or(self.conversations.iter().position(|c| !c.is_over()));
        }
        if let Some(n) = stuck {
            self.give_up(n);
        }
    }

    /// A conversation makes no progress. If one end is gone without the other's knowledge, the other's
    /// application aborts; otherwise it is an error.
    fn give_up(&mut self, n: usize) {
        let gone = self.conversations[n].ends.iter().any(App::is_over) || self.conversations[n].refused;
        assert!(gone || self.scenario.is_rough(), "conversation {n} is stuck: {:#?}", self.stuck());
        for side in 0..2 {
            let end = &mut self.conversations[n].ends[side];
            let Some(id) = end.id.filter(|_| !end.is_over()) else { continue };
            let notices = |engine: &EngineHost| engine.stack.config().keepalive_idle < Some(STUCK);
            let engine = self.hosts[side].engine().is_some_and(notices);
            assert!(
                !engine || self.scenario.is_rough(),
                "conversation {n}: the other end is gone, and nobody notices: {:#?}",
                self.stuck()
            );
            self.hosts[side].abort(self.now, id);
            self.conversations[n].ends[side].outcome = Some(Event::Closed);
            self.conversations[n].ends[side].left = true;
            self.flush(side);
        }
    }

    /// The state of all conversations, for the message of a failure.
    pub fn stuck(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (side, host) in self.hosts.iter().enumerate() {
            match host {
                Host::Engine(engine) => {
                    lines.extend(engine.stack.connections().map(|info| format!("{side}: {info:?}")));
                }
                Host::Model(model) => lines.extend(model.describe().iter().map(|d| format!("{side}: {d}"))),
            }
        }
        let unfinished = self.conversations.iter().enumerate().filter(|(_, c)| !c.is_over());
        lines.extend(unfinished.map(|(n, c)| format!("conversation {n}: {:?}", c.ends)));
        lines
    }
}

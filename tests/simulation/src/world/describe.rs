//! The state of all nodes as text.

use super::{World, proxy_name};

impl World {
    /// Describes the state of all nodes, for debugging a seed.
    pub(super) fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = format!("at {:?}", self.now);
        for talk in self.client.tcp().connections() {
            let _ = write!(text, "\n  client: {talk:?}");
        }
        for (at, proxy) in self.proxies.iter().enumerate() {
            for flow in proxy.iter().flat_map(|p| p.core().flows(self.now, 64)) {
                let _ = write!(text, "\n  {}: {flow:?}", proxy_name(at));
            }
        }
        for (worker, _) in self.network_workers() {
            let _ = write!(text, "\n  network node wakes {:?}", worker.get().next_timeout());
        }
        for application in self.applications.iter().flatten() {
            let _ =
                write!(text, "\n  process wakes {:?}:{}", application.next_timeout(), application.describe());
        }
        text
    }
}

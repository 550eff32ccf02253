//! Connects a process's VI to a VI over the SAN, and ends both.

use csp_types::Instant;
use csp_vi::{BufferId, ConnectRequest, Piece, Provider, ViAddress, ViConfig, ViError, ViId};

use super::counters::Reason;
use super::forwarding::{Ending, Forwarding, San};
use super::{CONNECT_TIMEOUT, PER_TURN, Relay, Target, path_of};

impl Relay {
    /// Replaces the proxy workers that the relay listens for. Returns those that it listens for. Workers no
    /// longer listed get no new VIs; existing ones continue.
    pub fn set_targets(&mut self, now: Instant, targets: &[Target]) -> Vec<Target> {
        while let Some(listener) = self.routes.retire(targets) {
            // The relay was listening, with this listener number.
            let _ = self.shm.unlisten(listener);
        }
        for target in targets {
            if self.routes.contains(target) {
                continue;
            }
            let via = self.sides.iter().position(|side| side.provider.name() == target.provider);
            let Some(via) = via else { continue };
            let path = path_of(&self.config.folder, self.config.node, target.node, target.worker);
            match self.shm.listen(&ViAddress::Path(path.clone())) {
                Ok(()) => {
                    let listener = self.listens;
                    self.listens += 1;
                    self.routes.add(target.clone(), via, listener);
                }
                Err(error) => {
                    tracing::error!(%error, socket = %path.display(), "processes cannot reach a proxy: the relay cannot listen");
                }
            }
        }
        self.remove_left_routes(now);
        self.routes.iter().map(|route| route.target.clone()).collect()
    }

    /// Stops watching routes that the relay no longer listens for, as soon as they carry no VI.
    pub(super) fn remove_left_routes(&mut self, now: Instant) {
        while let Some(route) = self.routes.take_left(|route| self.table.carries(route)) {
            self.watch.remove(now, route);
        }
    }

    /// Processes a process's request for a VI.
    pub(super) fn on_request(&mut self, request: &ConnectRequest) {
        let config = self.towards_process();
        let admitted = self.admit(request).and_then(|way| {
            let accepted = self.shm.accept(request.id, config, &[]);
            accepted.map(|vi| (way, vi)).map_err(|_| Reason::Protocol)
        });
        match admitted {
            Ok(((number, via), vi)) => {
                let new = Forwarding::new(number, via, request.peer_uid, vi, config.receive_depth);
                if let Some(at) = self.table.insert(new) {
                    self.by_app.insert(vi, at);
                }
            }
            Err(reason) => {
                self.counters.refused.count(reason);
                // The process may have closed the request meanwhile.
                let _ = self.shm.reject(request.id);
            }
        }
    }

    /// Returns the route and provider for a process's request, or why it gets no VI.
    pub(super) fn admit(&self, request: &ConnectRequest) -> Result<(u32, usize), Reason> {
        let user = request.peer_uid;
        let may = |users: &Vec<u32>| user.is_some_and(|uid| users.contains(&uid));
        if !self.config.users.as_ref().is_none_or(may) {
            return Err(Reason::User);
        }
        let route = request.listener.and_then(|listener| self.routes.by_listener(listener));
        let route = route.ok_or(Reason::Gone)?;
        let left = self.table.capacity() - self.table.len();
        if left == 0 {
            return Err(Reason::Full);
        }
        // One user gets at most half of the table, several get less each, and a user without VIs still finds
        // free entries.
        if self.table.held_by(user) >= left {
            return Err(Reason::Share);
        }
        // The ring is allocated, and then registered with the SAN, with the depth that the process requests.
        let deepest = self.config.vi.receive_depth;
        if self.shm.wanted(request.id).is_some_and(|wanted| wanted.receive_depth > deepest) {
            return Err(Reason::Depth);
        }
        Ok((route.number, route.via))
    }

    /// Returns the configuration of VIs towards processes, with half as many buffers again as the proxy has:
    /// the completion of a message that the proxy has read, and for which the process may send another, may
    /// still be outstanding.
    fn towards_process(&self) -> ViConfig {
        let depth = self.config.vi.receive_depth;
        ViConfig { receive_depth: (depth + depth / 2).min(*csp_vi::DEPTH_RANGE.end()), ..self.config.vi }
    }

    /// Processes the opening of a process's VI: its slots become the receive buffers of a VI over the SAN.
    pub(super) fn on_process_open(&mut self, now: Instant, app: ViId) {
        let Some(at) = self.of_app(app) else { return };
        match self.start_san(now, at, app) {
            Ok(()) => {
                self.counters.opened += 1;
                self.next_check = self.next_check.min(now + CONNECT_TIMEOUT);
            }
            Err(error) => {
                let refused = &mut self.counters.refused;
                match error {
                    ViError::Protocol(_) | ViError::NotConnected => refused.protocol += 1,
                    ViError::Unknown(_) => refused.gone += 1,
                    _ => {
                        refused.san += 1;
                        tracing::warn!(%error, "a process's VI cannot be forwarded");
                    }
                }
                self.drop_forwarding(at, Ending::Broken);
            }
        }
    }

    fn start_san(&mut self, now: Instant, at: u32, app: ViId) -> Result<(), ViError> {
        let loan = self.shm.lend(app)?;
        // Initially all slots are posted in ascending order, in which the SAN will fill them.
        for expected in 0..loan.slots.len() as u32 {
            if self.shm.claim(app)? != Some(expected) {
                return Err(ViError::Protocol("the process's slots are not all posted"));
            }
        }
        let forwarding = self.table.get_mut(at).ok_or(ViError::Unknown("VI"))?;
        let route = self.routes.by_number(forwarding.route).ok_or(ViError::Unknown("proxy"))?;
        let side = self.sides.get_mut(forwarding.via).ok_or(ViError::Unknown("provider"))?;
        side.used = true;
        let region = side.provider.register(&loan.memory)?;
        (forwarding.region, forwarding.memory) = (Some(region), Some(loan.memory));
        let len = self.config.vi.message_len as usize;
        self.pieces.clear();
        self.pieces.extend(loan.slots.iter().map(|&offset| Piece { region, offset, len }));
        let config = ViConfig {
            receive_depth: loan.slots.len() as u32,
            send_depth: self.config.vi.receive_depth * 2,
            message_len: self.config.vi.message_len,
        };
        config.check()?;
        let vi = side.provider.connect_into(&route.target.address, config, &[], &self.pieces)?;
        forwarding.san = San::Connecting(vi, now + CONNECT_TIMEOUT);
        side.by_vi.insert(vi, at);
        self.watch.want(route);
        Ok(())
    }

    pub(super) fn on_san_open(&mut self, via: usize, vi: ViId, unix_now_s: u64) {
        let Some(at) = self.of_san(via, vi) else { return };
        let Some(forwarding) = self.table.get_mut(at) else { return };
        forwarding.san = San::Open(vi);
        self.send_waiting(at, unix_now_s);
    }

    pub(super) fn on_san_refused(&mut self, via: usize, vi: ViId, reason: &ViError) {
        let Some(at) = self.of_san(via, vi) else { return };
        tracing::debug!(%reason, "a proxy cannot be reached over the SAN");
        self.counters.refused.san += 1;
        self.drop_forwarding(at, Ending::Broken);
    }

    /// Processes the end of the proxy's VI; what the proxy sent is in the process's ring already.
    pub(super) fn on_san_end(&mut self, via: usize, vi: ViId, clean: bool) {
        if let Some(at) = self.of_san(via, vi) {
            self.drop_forwarding(at, if clean { Ending::Clean } else { Ending::Broken });
        }
    }

    /// Processes the end of a process's VI; what it sent is forwarded before the SAN's VI ends.
    pub(super) fn on_process_end(&mut self, app: ViId) {
        let Some(at) = self.of_app(app) else {
            // A VI that was never forwarded.
            let _ = self.shm.disconnect(app);
            return;
        };
        if self.shm.is_broken(app) {
            // The process violated the rules of its ring or aborted its VI, so that what it sent may be
            // incomplete.
            self.counters.refused.protocol += 1;
            return self.drop_forwarding(at, Ending::Broken);
        }
        self.end_app(at, Ending::Clean);
        self.end_if_done(at);
    }

    /// Ends the SAN's VI of a process that is gone, as soon as none of its messages waits. A clean end means
    /// to the proxy that the process has ended and that it has received everything that the process sent.
    pub(super) fn end_if_done(&mut self, at: u32) {
        let Some(forwarding) = self.table.get_mut(at) else { return };
        if forwarding.app.is_none() && forwarding.waiting.is_empty() {
            let ending = if forwarding.lost { Ending::Broken } else { Ending::Clean };
            self.drop_forwarding(at, ending);
        }
    }

    fn end_app(&mut self, at: u32, ending: Ending) {
        let Some(app) = self.table.get_mut(at).and_then(|forwarding| forwarding.app.take()) else { return };
        self.by_app.remove(app);
        // The VI is ours, and is ended once.
        let _ = end_vi(&mut self.shm, app, ending);
    }

    /// Ends both sides and removes the forwarding. What was passed to the SAN is delivered if the end is
    /// clean.
    pub(super) fn drop_forwarding(&mut self, at: u32, ending: Ending) {
        self.end_app(at, ending);
        let Some(forwarding) = self.table.remove(at) else { return };
        self.ended = true;
        if forwarding.stuck {
            self.stuck.retain(|&of| of != at);
        }
        let Some(side) = self.sides.get_mut(forwarding.via) else { return };
        if let Some(vi) = forwarding.san_vi() {
            side.by_vi.remove(vi);
            let _ = end_vi(side.provider.as_mut(), vi, ending);
        }
        if let Some(region) = forwarding.region {
            let _ = side.provider.deregister(region);
        }
    }

    /// Drops forwardings whose SAN VI was not connected in time.
    pub(super) fn drop_overdue(&mut self, now: Instant) {
        self.next_check = Instant::FAR_FUTURE;
        for at in 0..self.table.capacity() as u32 {
            let Some(Forwarding { san: San::Connecting(_, until), .. }) = self.table.get_mut(at) else {
                continue;
            };
            let until = *until;
            if until <= now {
                self.counters.refused.san += 1;
                self.drop_forwarding(at, Ending::Broken);
            } else {
                self.next_check = self.next_check.min(until);
            }
        }
    }

    /// Processes the death of a proxy worker: its VIs deliver nothing any more, and no provider reports that.
    pub(super) fn on_silent(&mut self, route: u32) {
        self.counters.proxies_silent += 1;
        self.publish_received();
        for at in 0..self.table.capacity() as u32 {
            if self.table.get_mut(at).is_some_and(|forwarding| forwarding.route == route) {
                self.drop_forwarding(at, Ending::Broken);
            }
        }
    }

    /// Publishes all messages for processes that the SAN holds now.
    fn publish_received(&mut self) {
        // At most as many as fit the slots of all processes; later messages belong to other VIs.
        let slots = self.table.len() * self.config.vi.receive_depth as usize;
        for via in 0..self.sides.len() {
            let mut turns = 0..=slots / PER_TURN;
            while self.sides[via].used && turns.next().is_some() && self.take_san_completions(via) {}
        }
    }

    /// Posts to the SAN the slots that the process has posted since. Called before a message of the process
    /// is forwarded, so that the slots are available when the proxy reads the credits for them.
    pub(super) fn post_claimed(&mut self, at: u32) -> Result<(), ViError> {
        let Some(forwarding) = self.table.get_mut(at) else { return Ok(()) };
        let (Some(app), Some(vi)) = (forwarding.app, forwarding.san_open()) else { return Ok(()) };
        let side = self.sides.get_mut(forwarding.via).ok_or(ViError::Unknown("provider"))?;
        loop {
            match self.shm.claim(app) {
                Ok(Some(slot)) => side.provider.post_recv(vi, BufferId(slot))?,
                // A process that is gone posts nothing more, but its messages are still forwarded.
                Ok(None) | Err(ViError::NotConnected) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

fn end_vi(provider: &mut dyn Provider, vi: ViId, ending: Ending) -> Result<(), ViError> {
    match ending {
        Ending::Clean => provider.disconnect(vi),
        Ending::Broken => provider.abort(vi),
    }
}

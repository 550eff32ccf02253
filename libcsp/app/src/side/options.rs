//! Options and state of a connection beyond its bytes. The client's TCP connection belongs to the proxy,
//! which receives options as messages and reports the state.

use csp_types::Instant;
use csp_wire::channel::{ChannelOption, InfoPayload, Message, MessageHeader, MessageKind, OptionPayload};

use super::channel::Lane;
use super::input::Violation;
use super::records::Phase;
use super::slots::FlowId;
use super::{AppError, AppSide, Handle};

impl AppSide {
    /// Sets an option of the client's TCP connection. For a connection in progress the option is sent once it
    /// is established.
    ///
    /// Errors: [`AppError::NotConnected`] if the connection has ended, [`AppError::Unknown`].
    pub fn set_option(
        &mut self,
        now: Instant,
        id: FlowId,
        option: ChannelOption,
        value: u64,
    ) -> Result<(), AppError> {
        self.now = now;
        if let Some(flow) = self.flows.get_mut(id.0).filter(|f| !f.orphan && f.phase == Phase::Connecting) {
            flow.options.retain(|(set, _)| *set != option);
            flow.options.push((option, value));
            return Ok(());
        }
        let (lane, header) = self.header_for(id, MessageKind::Option, option as u32)?;
        self.send_control_with(lane, header, &OptionPayload { value }.emit());
        Ok(())
    }

    /// Sends the options that were set before the connection was established.
    pub(super) fn send_deferred_options(&mut self, id: FlowId) {
        let options = self.flows.get_mut(id.0).map(|flow| std::mem::take(&mut flow.options));
        for (option, value) in options.into_iter().flatten() {
            // The connection has just been established, so it has a label.
            let _ = self.set_option(self.now, id, option, value);
        }
    }

    /// Requests the state of the client's TCP connection. The arrival of the answer, which
    /// [`info`](Self::info) returns, is reported as a change of readiness.
    ///
    /// Errors: as [`set_option`](Self::set_option).
    pub fn ask_info(&mut self, now: Instant, id: FlowId) -> Result<(), AppError> {
        self.now = now;
        let (lane, header) = self.header_for(id, MessageKind::Info, 0)?;
        if let Some(flow) = self.flows.get_mut(id.0) {
            flow.info = None;
        }
        self.send_control(lane, header);
        Ok(())
    }

    /// The answer to the latest [`ask_info`](Self::ask_info).
    pub fn info(&self, id: FlowId) -> Option<InfoPayload> {
        self.flows.get(id.0)?.info
    }

    fn header_for(
        &self,
        id: FlowId,
        kind: MessageKind,
        argument: u32,
    ) -> Result<(Lane, MessageHeader), AppError> {
        let flow = self.flows.get(id.0).filter(|f| !f.orphan).ok_or(AppError::Unknown)?;
        let label = flow.label.filter(|_| !flow.ended_here && !flow.ended_there && !flow.broken);
        Ok((flow.lane, MessageHeader::of_flow(kind, label.ok_or(AppError::NotConnected)?, argument, 0)))
    }

    pub(super) fn on_info(&mut self, lane: Lane, message: &Message<'_>) -> Result<(), Violation> {
        let info = InfoPayload::parse(message.payload).map_err(|_| Violation)?;
        let Some(id) = self.known(lane, &message.header) else { return Ok(()) };
        if let Some(flow) = self.flows.get_mut(id.0) {
            flow.info = Some(info);
        }
        self.notify(Handle::Flow(id));
        Ok(())
    }
}

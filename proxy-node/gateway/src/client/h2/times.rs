//! What a connection of HTTP/2 and its streams may wait for, and for how long.

use csp_http2::Reason as Code;
use csp_proxy_core::service::ClientEnd;
use csp_proxy_core::service::local::Step;
use csp_proxy_core::service::upstream::Ends;
use csp_types::Instant;

use super::stream::Stream;
use super::{Connection, End, LINGER};
use crate::exchange::Flow;
use crate::shared::Cx;

impl Connection {
    /// Returns when something has taken too long.
    pub(super) fn deadline(&self) -> Instant {
        let times = &self.service.timeouts;
        match self.end {
            End::Closing | End::Finished => return self.since + LINGER,
            End::Draining if self.streams.is_empty() => return self.since + LINGER, // what crosses GOAWAY counts
            End::Open if self.streams.is_empty() => {
                return self.since + if self.is_used { times.idle } else { times.head };
            }
            End::Open | End::Draining => {}
        }
        let of_stream = |stream: &Stream| match &stream.exchange {
            Some(exchange) => exchange.deadline(),
            None => stream.since + times.body_idle,
        };
        self.streams.values().map(of_stream).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Ends what has taken too long. Returns whether anything has changed.
    pub(super) fn overdue(&mut self, cx: &mut Cx<'_, impl Ends>) -> bool {
        if self.streams.is_empty() {
            match self.end {
                End::Open => return self.drain(cx.now),
                End::Draining => (self.end, self.since) = (End::Closing, cx.now),
                End::Closing | End::Finished => return false,
            }
            return true;
        }
        let late: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, stream)| match &stream.exchange {
                Some(exchange) => exchange.deadline() <= cx.now,
                None => stream.since + self.service.timeouts.body_idle <= cx.now,
            })
            .map(|(stream, _)| *stream)
            .collect();
        for stream in &late {
            let readable = self.machine.data(*stream).len();
            let unsent = self.machine.unsent(*stream);
            let Some(found) = self.streams.get_mut(stream) else { continue };
            let Stream { exchange, side, .. } = found;
            let unsent = unsent + side.out.waiting().len();
            match exchange {
                Some(exchange) => {
                    let mut down = side.joined(*stream, &mut self.machine);
                    let flow = exchange.overdue(cx, &mut down, readable);
                    self.after(cx, *stream, flow);
                    // It may have found a stored response, or a connection: nobody else has it served.
                    if flow == Flow::Moved {
                        self.ready.push_back(*stream);
                    }
                }
                // The client has taken some of it since.
                None if unsent < found.unsent => (found.since, found.unsent) = (cx.now, unsent),
                None => {
                    self.machine.reset(*stream, Code::CANCEL);
                    self.gone_stream(cx.now, *stream, cx.shared);
                }
            }
        }
        !late.is_empty()
    }

    /// Discards what comes after FIN.
    pub(super) fn linger(&mut self, cx: &mut Cx<'_, impl Ends>) -> Step {
        let Some(mut end) = cx.ends.client(self.label) else { return Step::Idle };
        let readable = end.readable();
        end.consume(readable);
        if end.is_finished() || cx.now >= self.since + LINGER {
            return Step::Close;
        }
        drop(end);
        self.arm(cx);
        if readable > 0 { Step::Moved } else { Step::Idle }
    }
}

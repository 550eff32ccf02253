//! The relay: passes the bytes of either end to the other unchanged and without copying.

use csp_tcp::Buffer;

use super::{ApplicationEnd, ClientEnd, DATA_MAX, PARTS_MAX, Passed, Progress, Service};
use crate::ProxyOutput;
use crate::output::Blocked;

/// The service that changes nothing. It keeps no state of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Relay;

impl Service for Relay {
    fn pass_to_application(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> Progress {
        let mut moved = false;
        loop {
            let want = DATA_MAX.min(application.room());
            if want == 0 || client.readable() == 0 {
                break;
            }
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            let (mut count, mut len) = (0, 0);
            for (part, slice) in parts.iter_mut().zip(client.peek(want)) {
                *part = slice;
                (count, len) = (count + 1, len + slice.len());
            }
            if len == 0 {
                break;
            }
            if let Err(error) = application.send(&parts[..count], len) {
                // If the lane is down, nothing waits for it: its loss ends the flow.
                return Progress { moved, blocked: error == Blocked::NoCredit };
            }
            client.consume(len);
            moved = true;
        }
        if client.is_finished() && client.readable() == 0 {
            moved |= application.finish();
        }
        Progress { moved, blocked: false }
    }

    fn pass_to_client(
        &mut self,
        client: &mut impl ClientEnd,
        bytes: &[u8],
        buffer: Option<&Buffer>,
    ) -> Passed {
        match client.write(bytes, buffer) == bytes.len() {
            true => Passed::All,
            false if client.is_over() => Passed::Over,
            false => Passed::Lost,
        }
    }

    /// Advertises in steps worth a message: a quarter of the window.
    fn return_room(
        &mut self,
        client: &mut impl ClientEnd,
        application: &mut ApplicationEnd<'_, impl ProxyOutput>,
    ) -> bool {
        let (window, in_use) = application.window();
        let free = in_use.saturating_sub(client.unacknowledged());
        let worthwhile = free >= window / 4 && !application.is_finished();
        if worthwhile {
            application.return_room(free);
        }
        worthwhile
    }
}

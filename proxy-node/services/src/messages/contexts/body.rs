//! The bytes of a message that is sent to a context.

use csp_messages::{MessageHandle, MessagePlane};
use csp_proxy_core::service::upstream::UpstreamEnd;

/// Bytes of zeros, for the rest of a message that was removed while it was being written.
const ZEROS: [u8; 1024] = [0; 1024];

/// The bytes of a call's message.
#[derive(Debug)]
pub(super) struct Body {
    pub handle: MessageHandle,
    pub done: u32,
    pub len: u32,
}

impl Body {
    /// Writes the rest of the output, as far as there is room. Returns whether bytes were written.
    pub fn write(&mut self, upstream: &mut impl UpstreamEnd, plane: &MessagePlane) -> bool {
        let before = self.done;
        for slice in plane.range(self.handle, self.done, self.len - self.done) {
            let taken = upstream.write(&[slice]);
            self.done += taken as u32;
            if taken < slice.len() {
                return self.done > before;
            }
        }
        // Its channel was removed: the record is finished, and nobody waits for the answer.
        while self.done < self.len {
            let rest = ZEROS.len().min((self.len - self.done) as usize);
            let taken = upstream.write(&[&ZEROS[..rest]]);
            self.done += taken as u32;
            if taken < rest {
                break;
            }
        }
        self.done > before
    }
}

//! Layouts and constants on which the header and this code must agree; a test compares the two.

use std::mem::offset_of;

use crate::connection::{LENT_MAX, QUEUE_MAX};
use crate::core::{Buffer, Event, EventType, FLAG_RELEASE};
use crate::exports::COptions;
use crate::{channels, context, error, registry};

/// C expressions of `csp.h` and the values that they must have.
pub fn expected() -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> = Vec::new();
    let mut put = |text: &str, value: i64| all.push((text.to_owned(), value));
    macro_rules! structure {
        ($c:literal, $rust:ty, $($c_field:ident = $field:ident),*) => {
            put(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>() as i64);
            $(put(
                concat!("offsetof(struct ", $c, ", ", stringify!($c_field), ")"),
                offset_of!($rust, $field) as i64,
            );)*
        };
    }
    structure!("csp_buffer", Buffer, id = id, data = data, capacity = capacity, length = length);
    structure!(
        "csp_event", Event, type = kind, error = error, handle = handle, accepted = accepted, user = user, tag = tag,
        buffer = buffer, immediate = immediate, reserved = reserved
    );
    structure!(
        "csp_options",
        COptions,
        size = size,
        buffer_size = buffer_size,
        send_buffers = send_buffers,
        receive_buffers = receive_buffers,
        connections = connections,
        reserved = reserved,
        program = program,
        agent = agent,
        channels = channels
    );
    put("CSP_ACCEPTED", EventType::Accepted as i64);
    put("CSP_CONNECTED", EventType::Connected as i64);
    put("CSP_RECEIVED", EventType::Received as i64);
    put("CSP_SENT", EventType::Sent as i64);
    put("CSP_END", EventType::End as i64);
    put("CSP_CLOSED", EventType::Closed as i64);
    put("CSP_RELEASE", FLAG_RELEASE.into());
    put("CSP_ABORT", context::FLAG_ABORT.into());
    put("CSP_ANY_USER", context::FLAG_ANY_USER.into());
    put("CSP_IN_PLACE", context::FLAG_IN_PLACE.into());
    put("CSP_MESSAGE_MAX", channels::MESSAGE_MAX as i64);
    put("CSP_CONTEXTS_MAX", registry::CONTEXTS_MAX as i64);
    put("CSP_QUEUE_MAX", QUEUE_MAX.into());
    put("CSP_LENT_MAX", LENT_MAX.into());
    put("CSP_OK", 0);
    for (code, name, _) in error::ALL {
        put(name.trim_end_matches('\0'), (*code).into());
    }
    all
}

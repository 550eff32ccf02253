//! Trailer sections as text of HTTP/1.1.

use http::HeaderMap;

use super::{checked, line};
use crate::limits::TRAILERS_LEN_MAX;
use crate::malformed::Malformed;

/// Writes trailers as lines with an empty line behind them. The text is what
/// [`csp_http::body::trailer_fields`] reads, which leaves out what may not trail.
pub(crate) fn write(out: &mut Vec<u8>, trailers: &HeaderMap) -> Result<(), Malformed> {
    out.clear();
    for (name, value) in trailers {
        line(out, name.as_str().as_bytes(), checked(value)?);
        if out.len() > TRAILERS_LEN_MAX {
            return Err(Malformed::TooLong);
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

//! W3C Trace Context, level 1: one trace for a request on all its way.

/// What `traceparent` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The trace's id.
    pub trace: [u8; 16],
    /// The id of the span that sends the request.
    pub parent: [u8; 8],
    /// Flags; bit 0: sampled.
    pub flags: u8,
}

/// Ids from the caller's random numbers, not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceIds {
    /// The trace's id if the request has none.
    pub trace: [u8; 16],
    /// The id of the proxy's span.
    pub span: [u8; 8],
    /// Whether a trace that begins here is sampled.
    pub sampled: bool,
}

/// Length of version 00, of which later ones are extensions.
const LEN: usize = 55;

impl TraceContext {
    /// Parses the value of `traceparent` (§3.2). `None`: it is malformed, and a new trace begins.
    pub fn parse(value: &[u8]) -> Option<TraceContext> {
        let (known, further) = value.split_at_checked(LEN)?;
        let [version] = hex(&known[..2])?;
        let is_right = match version {
            0 => further.is_empty(),
            0xff => false,
            _ => matches!(further, [] | [b'-', ..]),
        };
        let dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        let (trace, parent): ([u8; 16], [u8; 8]) = (hex(&known[3..35])?, hex(&known[36..52])?);
        let [flags] = hex(&known[53..])?;
        let is_right = is_right && dashes && trace != [0; 16] && parent != [0; 8];
        is_right.then_some(TraceContext { trace, parent, flags })
    }

    /// Returns what the proxy sends on: the same trace with its own span as the parent, or a new trace.
    pub fn next(received: Option<TraceContext>, ids: &TraceIds) -> TraceContext {
        match received {
            Some(received) => {
                TraceContext { trace: received.trace, parent: ids.span, flags: received.flags & 1 }
            }
            None => TraceContext { trace: ids.trace, parent: ids.span, flags: ids.sampled.into() },
        }
    }
}

/// Decodes `2 * N` hexadecimal digits in lower case.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn contexts() {
        let context = TraceContext::parse(RIGHT.as_bytes()).unwrap();
        assert_eq!((context.trace[0], context.parent[7], context.flags), (0x4b, 0xb7, 1));
        let later = format!("01{}-further", &RIGHT[2..]);
        assert!(TraceContext::parse(later.as_bytes()).is_some());
        for wrong in [
            String::new(),
            RIGHT[1..].to_owned(),
            format!("{RIGHT}-x"),
            format!("ff{}", &RIGHT[2..]),
            RIGHT.to_uppercase(),
            RIGHT.replace('-', "_"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(TraceContext::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}

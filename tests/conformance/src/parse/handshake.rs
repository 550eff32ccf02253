//! `accept` and `open`: a whole handshake in one line.
//!
//! ```text
//!   accept [<options>] [win BYTES] [rtt TIME] [ecn]         open [<options>] [win BYTES] [rtt TIME] [ecn]
//!     listen (if it does not)                                 connect
//!     < S  0:0(0) <options>                                   > S  0:0(0)
//!     > S. 0:0(0) ack 1                                       (rtt later)
//!     (rtt later)                                             < S. 0:0(0) ack 1 <options>
//!     < .  1:1(0) ack 1                                       > .  1:1(0) ack 1
//!     ! established                                           ! established
//! ```

use core::time::Duration;

use csp_wire::tcp::Flags;

use super::{AT_ONCE, segment, value};
use crate::script::{Call, Line, Number, Options, Reported, Segment, Stamp, Step, When};

/// The parameters of a handshake.
struct Handshake {
    options: Options,
    /// The peer's window in bytes.
    window: u32,
    rtt: Duration,
    ecn: bool,
}

/// Returns the lines for which `line`, an `accept` or `open`, stands.
pub(super) fn expand(passive: bool, arguments: &str, line: Line) -> Result<Vec<Line>, String> {
    let handshake = read(arguments)?;
    let Handshake { options, window, rtt, ecn } = &handshake;
    let shift = options.window_scale.unwrap_or(0).min(14);
    let ask = if *ecn { Flags::ECE | Flags::CWR } else { Flags::NONE };
    let grant = if *ecn { Flags::ECE } else { Flags::NONE };
    let syn_window = (*window).min(65_535) as u16;
    let window = (window >> shift).min(65_535) as u16;
    let rtt = When::Exactly(*rtt);
    let timestamps = options.timestamps.map(|_| (Stamp::Auto, Stamp::Auto));
    let later = Options { timestamps, ..Options::default() };
    let arrive = |flags, window, options: &Options| {
        let segment = bare(flags, 0, Some(window));
        Step::Arrive(Segment { options: Some(options.clone()), ..segment })
    };
    let last = |window| bare(Flags::ACK, 1, window);
    let steps = if passive {
        vec![
            (line.after, Step::Call(Call::Listen { again: true })),
            (AT_ONCE, arrive(Flags::SYN | ask, syn_window, options)),
            (AT_ONCE, Step::Expect(bare(Flags::SYN | Flags::ACK | grant, 0, None))),
            (rtt, Step::Arrive(Segment { options: Some(later), ..last(Some(window)) })),
            (AT_ONCE, Step::Event(Reported::Established)),
        ]
    } else {
        vec![
            (line.after, Step::Call(Call::Connect(None))),
            (AT_ONCE, Step::Expect(bare(Flags::SYN | ask, 0, None))),
            (rtt, arrive(Flags::SYN | Flags::ACK | grant, syn_window, options)),
            (AT_ONCE, Step::Expect(last(None))),
            (AT_ONCE, Step::Event(Reported::Established)),
        ]
    };
    Ok(steps.into_iter().map(|(after, step)| Line { after, step, ..line.clone() }).collect())
}

/// Returns a segment without payload that, if it has ACK, acknowledges the SYN.
fn bare(flags: Flags, seq: i64, window: Option<u16>) -> Segment {
    Segment {
        flags,
        seq: Number::Relative(seq),
        len: 0,
        ack: flags.ack().then_some(Number::Relative(1)),
        window,
        urgent: None,
        options: None,
        segment_size: None,
        ecn: None,
        garbage: false,
    }
}

fn read(arguments: &str) -> Result<Handshake, String> {
    let mut handshake = Handshake {
        options: segment::options("mss 1460,sackOK,wscale 7", true)?,
        window: 65_535,
        rtt: Duration::from_millis(10),
        ecn: false,
    };
    let mut rest = arguments.to_owned();
    if let Some((before, inside)) = arguments.split_once('<') {
        let (options, after) = inside.split_once('>').ok_or("`<` without `>`")?;
        handshake.options = segment::options(options, true)?;
        rest = format!("{before} {after}");
    }
    let mut words = rest.split_whitespace();
    while let Some(word) = words.next() {
        let mut argument = || words.next().ok_or_else(|| format!("`{word}` needs a value"));
        match word {
            "win" => {
                let text = argument()?;
                handshake.window = text.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
            }
            "rtt" => handshake.rtt = value::duration(argument()?)?,
            "ecn" => handshake.ecn = true,
            _ => return Err(format!("`{word}`: expected <options>, win BYTES, rtt TIME, ecn")),
        }
    }
    Ok(handshake)
}

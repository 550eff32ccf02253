//! Segments: `S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS val 100 ecr 0,wscale 7>`.

use csp_wire::tcp::Flags;

use super::value;
use crate::script::{Number, Options, Segment, Stamp};

const FLAGS: [(char, Flags); 8] = [
    ('S', Flags::SYN),
    ('F', Flags::FIN),
    ('R', Flags::RST),
    ('P', Flags::PSH),
    ('U', Flags::URG),
    ('E', Flags::ECE),
    ('W', Flags::CWR),
    ('.', Flags::ACK),
];

/// Parses a segment. `arriving`: it is delivered to the engine rather than expected from it.
pub(crate) fn segment(text: &str, arriving: bool) -> Result<Segment, String> {
    let (text, options) = split_options(text)?;
    let mut words = text.split_whitespace();
    let flags = flags(words.next().ok_or("flags are missing: S F R P U E W and . for ACK, or -")?)?;
    let (seq, len) = range(words.next().ok_or("a range such as 1:1461(1460) is missing")?)?;
    let options = options.map(|text| self::options(text, arriving)).transpose()?;
    let mut segment = Segment {
        flags,
        seq,
        len,
        ack: None,
        window: None,
        urgent: None,
        options,
        segment_size: None,
        ecn: None,
        garbage: false,
    };
    while let Some(word) = words.next() {
        let mut argument = || words.next().ok_or_else(|| format!("`{word}` needs a number"));
        match word {
            "ack" => segment.ack = Some(value::sequence(argument()?)?),
            "win" => segment.window = Some(number(argument()?)?),
            "urg" => segment.urgent = Some(number(argument()?)?),
            "seg" => segment.segment_size = Some(number(argument()?)?),
            "[noecn]" => segment.ecn = Some(0),
            "[ect1]" => segment.ecn = Some(1),
            "[ect0]" => segment.ecn = Some(2),
            "[ce]" => segment.ecn = Some(3),
            "garbage" if arriving => segment.garbage = true,
            _ => {
                return Err(format!(
                    "`{word}`: expected ack, win, urg, seg, <options>, [noecn], [ect0], [ect1], [ce], garbage"
                ));
            }
        }
    }
    check(&segment, arriving)?;
    Ok(segment)
}

fn check(segment: &Segment, arriving: bool) -> Result<(), String> {
    if segment.flags.ack() != segment.ack.is_some() {
        return Err("the flag `.` and `ack N` must be given together".into());
    }
    if arriving && (segment.seq == Number::Any || segment.ack == Some(Number::Any)) {
        return Err("`*` is allowed only in expected segments".into());
    }
    Ok(())
}

/// Extracts `<…>` from the text.
fn split_options(text: &str) -> Result<(String, Option<&str>), String> {
    let Some((before, rest)) = text.split_once('<') else { return Ok((text.into(), None)) };
    let (options, after) = rest.split_once('>').ok_or("`<` without `>`")?;
    Ok((format!("{before} {after}"), Some(options)))
}

fn flags(text: &str) -> Result<Flags, String> {
    let mut flags = Flags::NONE;
    if text == "-" {
        return Ok(flags);
    }
    for c in text.chars() {
        let known = FLAGS.iter().find(|(name, _)| *name == c);
        flags |= known.ok_or_else(|| format!("flag `{c}`: expected S F R P U E W and . for ACK, or -"))?.1;
    }
    Ok(flags)
}

/// Formats flags in the language of scripts.
pub(crate) fn flags_text(flags: Flags) -> String {
    let text: String = FLAGS.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(c, _)| c).collect();
    if text.is_empty() { "-".into() } else { text }
}

/// Parses `start:end(len)`.
fn range(text: &str) -> Result<(Number, u32), String> {
    let wrong = || format!("`{text}` is not a range such as 1:1461(1460)");
    let (start, rest) = text.split_once(':').ok_or_else(wrong)?;
    let (end, rest) = rest.split_once('(').ok_or_else(wrong)?;
    let len: u32 = rest.strip_suffix(')').and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
    let (start, end) = (value::sequence(start)?, value::sequence(end)?);
    let consistent = match (start, end) {
        (Number::Relative(a), Number::Relative(b)) => b - a == i64::from(len),
        (Number::Absolute(a), Number::Absolute(b)) => b.wrapping_sub(a) == len,
        (Number::Any, Number::Any) => true,
        _ => false,
    };
    if consistent { Ok((start, len)) } else { Err(format!("`{text}`: the length is not end minus start")) }
}

/// Parses the options between `<` and `>`.
pub(crate) fn options(text: &str, arriving: bool) -> Result<Options, String> {
    let mut options = Options::default();
    for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        let words: Vec<&str> = option.split_whitespace().collect();
        match words.as_slice() {
            ["mss", n] => options.mss = Some(number(n)?),
            ["wscale", n] => options.window_scale = Some(number(n)?),
            ["sackOK"] => options.sack_permitted = true,
            ["TS"] => options.timestamps = Some((Stamp::Auto, Stamp::Auto)),
            ["TS", "val", n] => options.timestamps = Some((stamp(n)?, Stamp::Auto)),
            ["TS", "ecr", n] => options.timestamps = Some((Stamp::Auto, stamp(n)?)),
            ["TS", "val", v, "ecr", e] => options.timestamps = Some((stamp(v)?, stamp(e)?)),
            ["sack", blocks @ ..] if !blocks.is_empty() => {
                options.sack = blocks.iter().map(|block| sack_block(block)).collect::<Result<_, _>>()?;
            }
            ["raw", hex] if arriving => options.raw = raw(hex)?,
            _ => {
                return Err(format!(
                    "option `{option}`: expected mss N, wscale N, sackOK, TS [val N] [ecr N], sack A:B …, \
                     and arriving ones also raw HEX"
                ));
            }
        }
    }
    Ok(options)
}

fn sack_block(text: &str) -> Result<(i64, i64), String> {
    let wrong = || format!("`{text}` is not a SACK block such as 1461:2921");
    let (start, end) = text.split_once(':').ok_or_else(wrong)?;
    Ok((start.parse().map_err(|_| wrong())?, end.parse().map_err(|_| wrong())?))
}

fn stamp(text: &str) -> Result<Stamp, String> {
    let wrong = |_| format!("`{text}` is not a timestamp such as 100, =0 (as on the wire) or *");
    match (text, text.strip_prefix('=')) {
        ("*", _) => Ok(Stamp::Auto),
        (_, Some(absolute)) => absolute.parse().map(Stamp::Absolute).map_err(wrong),
        _ => text.parse().map(Stamp::Number).map_err(wrong),
    }
}

fn raw(hex: &str) -> Result<Vec<u8>, String> {
    let wrong = || format!("`{hex}` is not a sequence of hexadecimal bytes");
    if !hex.len().is_multiple_of(2) || !hex.is_ascii() {
        return Err(wrong());
    }
    let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
    bytes.collect::<Result<_, _>>().map_err(|_| wrong())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number in range"))
}

//! Lines over offered load, both axes logarithmic.

use std::fmt::Write as _;

const COLOURS: [&str; 4] = ["#3b6ea5", "#c2571a", "#5a8f3c", "#7d4f9e"];
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 58.0;

/// What was measured of one plug-in: its name, and a value for each offered load, in thousands of packets a
/// second.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// The powers of ten around some values.
fn decades(values: impl Iterator<Item = f64>) -> (i32, i32) {
    let (least, most) = values
        .filter(|value| *value > 0.0)
        .fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    if least > most {
        return (0, 1);
    }
    let from = least.log10().floor() as i32;
    (from, (most.log10().ceil() as i32).max(from + 1))
}

/// Draws lines; what is zero lies on the lower edge.
pub fn draw(title: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let (x, y) = (decades(all().map(|point| point.0)), decades(all().map(|point| point.1)));
    let place = |value: f64, (from, to): (i32, i32)| {
        ((value.max(f64::MIN_POSITIVE).log10() - f64::from(from)) / f64::from(to - from)).clamp(0.0, 1.0)
    };
    let (width, height) = (LEFT + WIDTH + 24.0, TOP + HEIGHT + 44.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\" font-weight=\"bold\">{title}</text>\n"
    );
    for decade in y.0..=y.1 {
        let at = TOP + HEIGHT * (1.0 - place(10f64.powi(decade), y));
        let (end, label) = (LEFT + WIDTH, 10f64.powi(decade));
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n<text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for decade in x.0..=x.1 {
        let at = LEFT + WIDTH * place(10f64.powi(decade), x);
        let (bottom, label) = (TOP + HEIGHT, 10f64.powi(decade));
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\n<text x=\"{at:.1}\" y=\"{}\" \
             text-anchor=\"middle\">{label}</text>",
            bottom + 18.0
        );
    }
    let (middle, below) = (LEFT + WIDTH / 2.0, TOP + HEIGHT + 36.0);
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">offered, thousand packets/s</text>"
    );
    for ((at, line), colour) in lines.iter().enumerate().zip(COLOURS) {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(offered, value)| {
                let (across, up) = (place(*offered, x), place(*value, y));
                format!("{:.1},{:.1}", LEFT + WIDTH * across, TOP + HEIGHT * (1.0 - up))
            })
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let from = LEFT + at as f64 * 140.0;
        let _ = writeln!(
            out,
            "<rect x=\"{from}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n<text x=\"{}\" y=\"40\">{}</text>",
            from + 16.0,
            line.name
        );
    }
    out + "</svg>\n"
}

//! Charts and tables of the evaluation.

use std::fmt::Write as _;

const COLOURS: [&str; 3] = ["#3b6ea5", "#c2571a", "#5a8f3c"];
const PLOT_WIDTH: f64 = 620.0;
const PLOT_HEIGHT: f64 = 220.0;
const LEFT: f64 = 56.0;

fn head(title: &str, names: &[&str], height: f64) -> String {
    let width = LEFT + PLOT_WIDTH + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"18\" font-weight=\"bold\">{title}</text>\n"
    );
    for (at, (name, colour)) in names.iter().zip(COLOURS).enumerate() {
        let x = LEFT + PLOT_WIDTH - 40.0 * (names.len() - at) as f64;
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"8\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        let _ = writeln!(out, "<text x=\"{}\" y=\"18\">{name}</text>", x + 16.0);
    }
    out
}

/// Draws the horizontal lines of a plot from 0 to `most`.
fn grid(out: &mut String, top: f64, most: f64) {
    for line in 0..=4 {
        let y = top + PLOT_HEIGHT * (1.0 - f64::from(line) / 4.0);
        let value = most * f64::from(line) / 4.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
            LEFT + PLOT_WIDTH,
            LEFT - 6.0,
            y + 4.0
        );
    }
}

/// Rounds up to a value that four lines divide well.
fn ceiling(most: f64) -> f64 {
    let unit = 10f64.powf(most.max(0.1).log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|n| n * unit).find(|value| *value >= most).unwrap_or(most)
}

/// Bars in groups: one group for each name, one bar for each flow.
pub fn bars(title: &str, flows: &[&str], groups: &[(String, Vec<f64>)]) -> String {
    let top = 34.0;
    let mut out = head(title, flows, top + PLOT_HEIGHT + 30.0);
    let most = ceiling(groups.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max));
    grid(&mut out, top, most);
    let (group, bar) = (PLOT_WIDTH / groups.len() as f64, PLOT_WIDTH / groups.len() as f64 * 0.24);
    for (at, (name, values)) in groups.iter().enumerate() {
        let from = LEFT + group * at as f64;
        for (flow, value) in values.iter().enumerate() {
            let height = if value.is_finite() { value / most * PLOT_HEIGHT } else { 0.0 };
            let (x, y) = (from + group * 0.12 + bar * flow as f64, top + PLOT_HEIGHT - height);
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                bar * 0.92,
                COLOURS[flow % 3]
            );
        }
        let (x, y) = (from + group / 2.0, top + PLOT_HEIGHT + 18.0);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
    }
    out + "</svg>\n"
}

/// Lines through time, thin and dotted for what arrives, thick for what leaves.
pub fn lines(
    title: &str,
    flows: &[&str],
    step: f64,
    thin: &[Vec<f64>; 3],
    thick: &[Vec<f64>; 3],
    marks: &[(f64, &str)],
) -> String {
    let top = 34.0;
    let mut out = head(title, flows, top + PLOT_HEIGHT + 30.0);
    let most = ceiling(thin.iter().chain(thick).flatten().copied().fold(0.0, f64::max));
    grid(&mut out, top, most);
    let count = thick[0].len().max(1) as f64;
    let x = |seconds: f64| LEFT + seconds / (step * count) * PLOT_WIDTH;
    for (values, style) in
        [(thin, "stroke-width=\"1\" stroke-dasharray=\"3 3\""), (thick, "stroke-width=\"2\"")]
    {
        for (flow, values) in values.iter().enumerate() {
            let mut points = String::new();
            for (at, value) in values.iter().enumerate() {
                let y = top + PLOT_HEIGHT * (1.0 - value / most);
                let _ = write!(points, "{:.1},{y:.1} ", x(step * (at as f64 + 0.5)));
            }
            let colour = COLOURS[flow];
            let _ =
                writeln!(out, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" {style}/>");
        }
    }
    for (seconds, name) in marks {
        let (at, bottom) = (x(*seconds), top + PLOT_HEIGHT);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#888\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{name} {seconds:.3} s</text>",
            at + 3.0,
            bottom + 18.0
        );
    }
    out + "</svg>\n"
}

/// A table of Markdown.
pub fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    rows.iter().for_each(|row| _ = writeln!(out, "| {} |", row.join(" | ")));
    out
}

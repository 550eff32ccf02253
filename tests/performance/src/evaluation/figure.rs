//! Figures: a table with what the paper says beside it, and bars.

use std::fmt::Write as _;

/// Width of a chart's bars in pixels.
const BARS_WIDTH: f64 = 420.0;
/// Height of a bar with the space below it.
const BAR_HEIGHT: usize = 26;
const LABEL_WIDTH: usize = 330;

/// What was measured of one thing.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is.
    pub name: String,
    /// The value that is drawn.
    pub value: f64,
    /// Further columns of its row.
    pub cells: Vec<String>,
}

/// A figure of a paper, measured here.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name of its file, without ending.
    pub file: &'static str,
    /// Which figure of which paper, and what it shows.
    pub title: &'static str,
    /// What the bars count.
    pub unit: &'static str,
    /// Names of the further columns.
    pub columns: &'static [&'static str],
    /// The rows.
    pub bars: Vec<Bar>,
    /// What was done.
    pub method: &'static str,
    /// What the paper found, and what is found here.
    pub findings: Vec<String>,
}

impl Figure {
    /// Returns the figure as text for a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.title);
        let width = self.bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
        let _ = write!(out, "  {:width$}  {:>12}", "", self.unit);
        self.columns.iter().for_each(|column| _ = write!(out, "  {column:>16}"));
        out.push('\n');
        for bar in &self.bars {
            let _ = write!(out, "  {:width$}  {:>12.0}", bar.name, bar.value);
            bar.cells.iter().for_each(|cell| _ = write!(out, "  {cell:>16}"));
            out.push('\n');
        }
        self.findings.iter().for_each(|finding| _ = writeln!(out, "  - {finding}"));
        out
    }

    /// Returns the figure as a section of a Markdown document, which shows its chart.
    pub fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n{}\n\n", self.title, self.method);
        let _ = writeln!(out, "![{}: {}]({}.svg)\n", self.title, self.unit, self.file);
        let _ = write!(out, "| | {} |", self.unit);
        self.columns.iter().for_each(|column| _ = write!(out, " {column} |"));
        out += "\n|---|---|";
        out += &"---|".repeat(self.columns.len());
        out.push('\n');
        for bar in &self.bars {
            let _ = write!(out, "| {} | {:.0} |", bar.name, bar.value);
            bar.cells.iter().for_each(|cell| _ = write!(out, " {cell} |"));
            out.push('\n');
        }
        out.push('\n');
        self.findings.iter().for_each(|finding| _ = writeln!(out, "- {finding}"));
        out
    }

    /// Returns the chart of the bars.
    pub fn svg(&self) -> String {
        chart(self.unit, &self.bars)
    }
}

/// Returns a chart of bars under a heading, as SVG.
pub fn chart(heading: &str, bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.value).fold(1.0, f64::max);
    let (width, height) = (LABEL_WIDTH + BARS_WIDTH as usize + 90, 40 + BAR_HEIGHT * bars.len());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-weight=\"bold\">{}</text>\n",
        escape(heading)
    );
    for (at, bar) in bars.iter().enumerate() {
        let (y, len) = (34 + at * BAR_HEIGHT, bar.value / most * BARS_WIDTH);
        let text = y + 14;
        let _ = writeln!(out, "<text x=\"8\" y=\"{text}\">{}</text>", escape(&bar.name));
        let _ = writeln!(
            out,
            "<rect x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{len:.1}\" height=\"18\" fill=\"#3b6ea5\"/>"
        );
        let end = LABEL_WIDTH as f64 + len + 6.0;
        let _ = writeln!(out, "<text x=\"{end:.1}\" y=\"{text}\">{:.0}</text>", bar.value);
    }
    out + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_a_row_and_a_bar_for_each_measurement() {
        let bar = |name: &str, value| Bar { name: name.to_owned(), value, cells: vec!["1 ns".to_owned()] };
        let figure = Figure {
            file: "f",
            title: "A figure",
            unit: "Mb/s",
            columns: &["a message"],
            bars: vec![bar("first & <second>", 50.0), bar("other", 100.0)],
            method: "Counted.",
            findings: vec!["More.".to_owned()],
        };
        assert!(figure.text().contains("first & <second>"));
        assert!(figure.markdown().contains("| other | 100 | 1 ns |\n"));
        let svg = figure.svg();
        assert!(svg.contains("first &amp; &lt;second&gt;") && svg.contains("width=\"210.0\""), "{svg}");
    }
}

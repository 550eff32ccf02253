//! Small SVG plots: lines and bars over one axis, on a linear or a logarithmic scale.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
const COLOURS: [&str; 4] = ["#0b6e99", "#c4461f", "#3c7d2e", "#7a4fa3"];

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Title.
    pub title: String,
    /// Name of the horizontal axis.
    pub across: &'static str,
    /// Name of the vertical axis.
    pub up: &'static str,
    /// Whether the horizontal axis is logarithmic.
    pub log_across: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_up: bool,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name, for the legend.
    pub name: String,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// Only marks, without a line: values of the paper.
    pub marks: bool,
}

impl Series {
    /// Points joined by a line.
    pub fn line(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Series { name: name.to_owned(), points: points.collect(), marks: false }
    }

    /// Points by themselves.
    pub fn marks(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Series { marks: true, ..Series::line(name, points) }
    }
}

/// Values of an axis, and where they are drawn.
struct Axis {
    least: f64,
    most: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (least, most) = values
            .filter(|value| value.is_finite() && (!log || *value > 0.0))
            .fold((f64::INFINITY, 0.0), |(least, most), value| {
                (f64::min(least, value), f64::max(most, value))
            });
        match log {
            true => Axis::logarithmic(least.min(most), most),
            false => Axis::linear(most),
        }
    }

    fn linear(most: f64) -> Self {
        let rough = (most / 5.0).max(1e-9);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|times| times * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let count = (most / step).ceil().clamp(1.0, 10.0) as u32;
        let ticks = (0..=count).map(|number| f64::from(number) * step).collect();
        Axis { least: 0.0, most: step * f64::from(count), log: false, ticks }
    }

    fn logarithmic(least: f64, most: f64) -> Self {
        let (low, high) = (least.max(1e-9).log10().floor() as i32, most.max(1e-9).log10().ceil() as i32);
        let all = (low..=high).flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10f64.powi(power)));
        let inside: Vec<f64> = all.collect();
        let from = inside.iter().copied().filter(|tick| *tick <= least).fold(10f64.powi(low), f64::max);
        let to = inside.iter().copied().find(|tick| *tick >= most).unwrap_or(most);
        let to = if to > from { to } else { from * 10.0 };
        let ticks = inside.into_iter().filter(|tick| (from..=to).contains(tick)).collect();
        Axis { least: from, most: to, log: true, ticks }
    }

    /// Share of the axis at which a value stands.
    fn share(&self, value: f64) -> f64 {
        match self.log {
            true => (value.max(self.least).ln() - self.least.ln()) / (self.most.ln() - self.least.ln()),
            false => (value - self.least) / (self.most - self.least),
        }
    }
}

impl Plot {
    /// Returns the plot as a picture.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let across = Axis::of(points().map(|point| point.0), self.log_across);
        let up = Axis::of(points().map(|point| point.1), self.log_up);
        let x = |value: f64| LEFT + across.share(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - up.share(value) * (HEIGHT - TOP - BOTTOM);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n",
            escape(&self.title)
        );
        for tick in &across.ticks {
            let at = x(*tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {TOP}V{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 18.0,
                label(*tick)
            );
        }
        for tick in &up.ticks {
            let at = y(*tick);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                label(*tick)
            );
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, WIDTH - RIGHT),
            HEIGHT - 16.0,
            escape(self.across),
            f64::midpoint(TOP, HEIGHT - BOTTOM),
            escape(self.up)
        );
        self.draw(&mut svg, x, y);
        svg.push_str("</svg>\n");
        svg
    }

    fn draw(&self, svg: &mut String, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
        let mut legend = LEFT;
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            if !series.marks {
                let path: Vec<String> = series
                    .points
                    .iter()
                    .map(|point| format!("{:.1} {:.1}", x(point.0), y(point.1)))
                    .collect();
                let _ = writeln!(
                    svg,
                    "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                    path.join("L")
                );
            }
            let (radius, fill) = if series.marks { (6, "none") } else { (3, colour) };
            for point in &series.points {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{colour}\" \
                     stroke-width=\"2\"/>",
                    x(point.0),
                    y(point.1)
                );
            }
            let _ = writeln!(
                svg,
                "<circle cx=\"{legend:.1}\" cy=\"32\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\" \
                 stroke-width=\"2\"/><text x=\"{:.1}\" y=\"36\">{}</text>",
                legend + 9.0,
                escape(&series.name)
            );
            legend += 34.0 + 6.6 * series.name.chars().count() as f64;
        }
    }
}

/// A number on an axis, as short as it can be.
fn label(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (1 - value.abs().log10().floor() as i32).clamp(0, 4) as usize };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{Axis, Plot, Series, label};

    #[test]
    fn axes_reach_over_all_values() {
        assert_eq!(Axis::of([3.0, 17.0].into_iter(), false).ticks, [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(Axis::of([3.0, 17.0].into_iter(), true).ticks, [2.0, 5.0, 10.0, 20.0]);
        for log in [false, true] {
            let axis = Axis::of([3.0, 17.0].into_iter(), log);
            assert!(axis.share(3.0) >= 0.0 && axis.share(17.0) <= 1.0);
        }
        assert_eq!([0.0, 0.5, 2.5, 20_000.0].map(label), ["0", "0.5", "2.5", "20000"]);
    }

    #[test]
    fn every_point_is_drawn_inside() {
        let plot = Plot {
            title: "a < b".to_owned(),
            across: "x",
            up: "y",
            log_across: true,
            log_up: false,
            series: vec![
                Series::line("one", (1..5).map(|n| (f64::from(n), 2.0))),
                Series { name: "none".to_owned(), points: Vec::new(), marks: true },
            ],
        };
        let svg = plot.svg();
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<circle").count(), 4 + 2);
    }
}

//! Plain tables: columns as wide as their widest cell, two spaces between them, no rules.

use super::paint::{Colour, Paint};

/// One cell.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    colour: Colour,
    right: bool,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell { text: text.to_owned(), colour: Colour::Plain, right: false }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell { text, colour: Colour::Plain, right: false }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Cell { text: number.to_string(), colour: Colour::Plain, right: true }
    }
}

impl Cell {
    /// The cell in a colour.
    pub fn coloured(mut self, colour: Colour) -> Self {
        self.colour = colour;
        self
    }

    /// The cell flush right, for figures written as text.
    pub fn right(mut self) -> Self {
        self.right = true;
        self
    }
}

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table with these column heads.
    pub fn new(head: &[&'static str]) -> Self {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row. A cell without text is shown as `-`.
    pub fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.row_of(cells);
    }

    /// The same for a table whose columns depend on what is shown.
    pub fn row_of(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let shown = |mut cell: Cell| {
            if cell.text.is_empty() {
                cell.text.push('-');
            }
            cell
        };
        let row: Vec<Cell> = cells.into_iter().map(shown).collect();
        debug_assert_eq!(row.len(), self.head.len());
        self.rows.push(row);
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, ending in a newline.
    pub fn render(&self, paint: Paint) -> String {
        let width = |column: usize| {
            let cells =
                self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.text.chars().count());
            cells.chain([self.head[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let right =
            |column: usize| self.rows.first().and_then(|row| row.get(column)).is_some_and(|c| c.right);
        let last = self.head.len().saturating_sub(1);
        let mut out = String::new();
        let heads: Vec<String> =
            self.head.iter().enumerate().map(|(c, text)| pad(text, widths[c], right(c), c == last)).collect();
        out.push_str(&paint.bold(heads.join("  ").trim_end()));
        out.push('\n');
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .enumerate()
                .map(|(c, cell)| paint.paint(cell.colour, &pad(&cell.text, widths[c], cell.right, c == last)))
                .collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

fn pad(text: &str, width: usize, right: bool, last: bool) -> String {
    let fill = " ".repeat(width.saturating_sub(text.chars().count()));
    match (right, last) {
        (true, _) => fill + text,
        (false, true) => text.to_owned(),
        (false, false) => text.to_owned() + &fill,
    }
}

/// Bytes in the largest unit that leaves a whole part, for example `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A span of time in its two largest units, for example `3 h 20 min`.
pub fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms} ms"),
        1..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86_400, s % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_cells_show() {
        let mut table = Table::new(&["NAME", "COUNT", "WHAT"]);
        table.row(["a".into(), 5u64.into(), "x".into()]);
        table.row(["longer".into(), 12345u64.into(), "".into()]);
        assert_eq!(table.render(Paint::off()), "NAME    COUNT  WHAT\na           5  x\nlonger  12345  -\n");
    }

    #[test]
    fn sizes_and_spans_read_well() {
        assert_eq!(
            (bytes(1023), bytes(1536), bytes(1 << 30)),
            ("1023 B".into(), "1.5 KiB".into(), "1.0 GiB".into())
        );
        assert_eq!(
            (span(20), span(61_000), span(7_300_000)),
            ("20 ms".into(), "61 s".into(), "2 h 1 min".into())
        );
    }
}

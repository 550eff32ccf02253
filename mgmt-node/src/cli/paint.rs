//! Colours on a terminal, none anywhere else.

use anstyle::{AnsiColor, Style};

/// Colours that are legible on dark and light terminals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The terminal's own.
    Plain,
    /// Less important.
    Dim,
    /// Bad.
    Red,
    /// Good.
    Green,
    /// Doubtful.
    Yellow,
    /// Begin and end.
    Cyan,
}

/// Whether to colour.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// Colours if standard output is a terminal that has them. `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE`
    /// decide otherwise.
    pub fn for_stdout() -> Self {
        let choice = anstream::AutoStream::choice(&std::io::stdout());
        Paint { on: choice != anstream::ColorChoice::Never }
    }

    /// Never colours.
    pub const fn off() -> Self {
        Paint { on: false }
    }

    /// `text` in a colour.
    pub fn paint(self, colour: Colour, text: &str) -> String {
        self.styled(colour.style(), text)
    }

    /// `text` in bold.
    pub fn bold(self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    fn styled(self, style: Style, text: &str) -> String {
        if self.on && !style.is_plain() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

impl Colour {
    const fn style(self) -> Style {
        let colour = match self {
            Colour::Plain => return Style::new(),
            Colour::Dim => return Style::new().dimmed(),
            Colour::Red => AnsiColor::Red,
            Colour::Green => AnsiColor::Green,
            Colour::Yellow => AnsiColor::Yellow,
            Colour::Cyan => AnsiColor::Cyan,
        };
        colour.on_default()
    }
}

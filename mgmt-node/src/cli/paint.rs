//! Colours on a terminal, none anywhere else.

use std::io::IsTerminal;

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
    /// Colours exactly if standard output is a terminal and NO_COLOR is not set.
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Paint { on: !refused && std::io::stdout().is_terminal() }
    }

    /// Never colours.
    pub const fn off() -> Self {
        Paint { on: false }
    }

    /// `text` in a colour.
    pub fn paint(self, colour: Colour, text: &str) -> String {
        let code = match colour {
            Colour::Plain => return text.to_owned(),
            Colour::Dim => "2",
            Colour::Red => "31",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Cyan => "36",
        };
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// `text` in bold.
    pub fn bold(self, text: &str) -> String {
        if self.on { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

//! What `cspctl … top` commands have in common: two looks at totals, what was between them, and so on until the user ends it.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Context;
use super::error::CliError;

/// Clears a terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Looks at `path` again and again. `compare` gets two looks and the time between them, and returns what is shown; `render` gets the
/// latter look too.
pub(super) async fn watch<V: DeserializeOwned, T: Serialize>(
    context: &Context,
    path: &str,
    (interval, once): (Duration, bool),
    compare: impl Fn(&V, &V, Duration) -> T,
    render: impl Fn(&T, &V) -> String,
) -> Result<(), CliError> {
    let look = async || Ok::<_, CliError>((context.client.get::<V>(path, &[]).await?, Instant::now()));
    let clear = if !once && std::io::stdout().is_terminal() { CLEAR } else { "" };
    let mut before = look().await?;
    loop {
        tokio::time::sleep(interval).await;
        let now = look().await?;
        let shown = compare(&before.0, &now.0, now.1.saturating_duration_since(before.1));
        context.show(&shown, |shown| clear.to_owned() + &render(shown, &now.0))?;
        if once {
            return Ok(());
        }
        before = now;
    }
}

//! What `cspctl … top` commands have in common: two looks at totals, what was between them, and so on until
//! the user ends it.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Context;
use super::error::CliError;

/// Clears a terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Arguments of `cspctl … top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Look twice, show what was between, and end
    #[arg(long)]
    once: bool,
    /// Seconds between two looks (0.1 to 60)
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// The same in milliseconds, as former releases had it
    #[arg(long, hide = true, value_name = "MS", conflicts_with = "interval", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    interval_ms: Option<u64>,
}

impl TopArgs {
    /// The time between two looks, and whether two are all.
    fn how(&self) -> (Duration, bool) {
        (self.interval_ms.map_or(self.interval, Duration::from_millis), self.once)
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected a number of seconds from 0.1 to 60".to_owned())
}

/// Looks at `path` again and again. `compare` gets two looks and the time between them, and returns what is
/// shown; `render` gets the latter look too.
pub(super) async fn watch<V: DeserializeOwned, T: Serialize>(
    context: &Context,
    path: &str,
    args: &TopArgs,
    compare: impl Fn(&V, &V, Duration) -> T,
    render: impl Fn(&T, &V) -> String,
) -> Result<(), CliError> {
    let (interval, once) = args.how();
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Top {
        #[command(flatten)]
        args: TopArgs,
    }

    #[test]
    fn the_interval_is_given_in_one_form_and_the_former_ones_go_on() {
        let how = |words: &[&str]| {
            let top = Top::try_parse_from(["top"].iter().chain(words));
            top.map(|top| top.args.how()).map_err(|error| error.to_string())
        };
        let once = |millis| Ok((Duration::from_millis(millis), true));
        assert_eq!(how(&["--once"]), once(1_000));
        assert_eq!(how(&["--once", "--interval", "5"]), once(5_000));
        assert_eq!(how(&["--once", "--interval", "0.2"]), once(200));
        assert_eq!(how(&["--once", "--interval-ms", "200"]), once(200));
        for wrong in [["--interval", "0.01"], ["--interval", "nan"], ["--interval-ms", "99"]] {
            assert!(how(&wrong).is_err(), "{wrong:?}");
        }
    }
}

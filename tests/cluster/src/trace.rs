//! One HTTP/1.0 transaction in the flight recorders of all tiers: the application receives messages, not
//! segments.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::configs::{CLIENT_ADDRESS, VIP};
use crate::process::wait_until;

/// The client's port of the traced transaction, below those that the kernel gives to others.
const CLIENT_PORT: u16 = 20_678;
const PATIENCE: Duration = Duration::from_secs(10);
/// All events of a request and its response at the application (Fig. 2 of the CSP paper).
const APPLICATION: [&str; 4] = ["app-open", "app-data-in", "app-data-out", "app-close"];
/// All messages between proxy and application. ACCEPTED answers OPEN inside the filter; the program is not
/// aware of it.
const PROXY: [&str; 5] = ["open-sent", "accepted-received", "data-sent", "data-received", "close-received"];
/// Segments that the client sends and receives for the same transaction, at least: SYN, SYN/ACK, ACK,
/// request, response with FIN, ACK, FIN, ACK.
const SEGMENTS_MIN: usize = 7;

/// Fetches `1KiB` by HTTP/1.0, and checks that the events at the application were OPEN, DATA, DATA and CLOSE,
/// in this order and nothing else. Returns the drawing of `cspctl flow trace`.
///
/// The client reads to the server's FIN instead of to the content's length, so that it never closes first:
/// its port would stay in TIME-WAIT, and a second transaction could not bind it (RFC 9293 §3.6).
pub fn transaction(cluster: &Cluster) -> Result<String> {
    let (port, url) = (CLIENT_PORT.to_string(), format!("http://{VIP}/1KiB"));
    cluster.client.run(
        "curl",
        &[
            "-sSf",
            "--http1.0",
            "--ignore-content-length",
            "-m",
            "10",
            "--local-port",
            &port,
            "-o",
            "/dev/null",
            &url,
        ],
    )?;
    let client = format!("{CLIENT_ADDRESS}:{port}");
    let mut kinds = Vec::new();
    // The client's last ACK and the process's page take a moment to arrive; the label ends after both.
    let complete = wait_until("the end of the traced flow", PATIENCE, || {
        let text = cluster.cspctl(&["flow", "trace", "--client", &client, "-o", "json"]).ok()?;
        kinds = kinds_of(&text)?;
        ["app-close", "ended", "label-ended"]
            .iter()
            .all(|end| kinds.iter().any(|kind| kind == end))
            .then_some(())
    });
    let drawing = cluster.cspctl(&["flow", "trace", "--client", &client])?;
    complete.and_then(|()| check(&kinds)).with_context(|| drawing.clone())?;
    Ok(drawing)
}

/// Returns the kinds of a trace's events, in order of time.
fn kinds_of(json: &str) -> Option<Vec<String>> {
    let view: Value = serde_json::from_str(json).ok()?;
    let kind = |event: &Value| event.get("kind")?.as_str().map(str::to_owned);
    view.get("events")?.as_array()?.iter().map(kind).collect()
}

fn check(kinds: &[String]) -> Result<()> {
    let of = |wanted: fn(&str) -> bool| kinds.iter().map(String::as_str).filter(move |kind| wanted(kind));
    let application: Vec<&str> = of(|kind| kind.starts_with("app-")).collect();
    if application != APPLICATION {
        bail!("the application saw {application:?}; expected {APPLICATION:?}");
    }
    let mut exchanged: Vec<&str> =
        of(|kind| kind.ends_with("-sent") || kind.ends_with("-received")).collect();
    let mut expected = PROXY;
    // DATA may be sent before ACCEPTED arrives.
    exchanged.sort_unstable();
    expected.sort_unstable();
    if exchanged != expected {
        bail!("proxy and application exchanged {exchanged:?}; expected {expected:?}");
    }
    let segments = of(|kind| kind.starts_with("lan-")).count();
    if segments < SEGMENTS_MIN {
        bail!("the trace has {segments} segments on the LAN; expected at least {SEGMENTS_MIN}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(application: &[&str], proxy: &[&str]) -> bool {
        let segments = ["lan-in", "lan-out"].repeat(4);
        let all = segments.iter().chain(application).chain(proxy).map(|kind| (*kind).to_owned());
        check(&all.collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn one_message_more_fails_the_check() {
        assert!(checked(&APPLICATION, &PROXY));
        for more in ["app-data-in", "app-data-out", "app-reset", "app-handed-over", "app-close", "app-credit"]
        {
            for at in 0..=APPLICATION.len() {
                let mut application = APPLICATION.to_vec();
                application.insert(at, more);
                assert!(!checked(&application, &PROXY), "{application:?}");
            }
        }
        assert!(!checked(&APPLICATION[1..], &PROXY) && !checked(&APPLICATION, &PROXY[1..]));
        assert!(!checked(&APPLICATION, &[&PROXY[..], &["shutdown-sent"]].concat()));
        assert!(!checked(&["app-open", "app-data-out", "app-data-in", "app-close"], &PROXY));
    }
}

//! HTTP/2 by h2load, of nghttp2.

use std::fs;

use anyhow::{Context, Result};
use csp_cluster::Cluster;

use super::report::Sample;

/// Asks for a URL on so many connections with so many streams each.
///
/// # Errors
/// h2load cannot run, or prints something else.
pub fn run(cluster: &Cluster, url: &str, seconds: u32, connections: u32, streams: u32) -> Result<Sample> {
    let log = cluster.scratch().join("h2load.log");
    let _ = fs::remove_file(&log);
    let (c, m) = (format!("-c{connections}"), format!("-m{streams}"));
    let (time, log_file) = (format!("-D{seconds}"), format!("--log-file={}", log.display()));
    let report = cluster.client.run("h2load", &["-t1", &c, &m, &time, &log_file, url])?;
    let log = fs::read_to_string(&log).with_context(|| log.display().to_string())?;
    sample(&report, &log).with_context(|| report.clone())
}

/// Reads h2load's report, and the line of each request in its log: begin, status, microseconds.
fn sample(report: &str, log: &str) -> Result<Sample> {
    let line = |begin: &str| report.lines().find_map(|line| line.trim().strip_prefix(begin));
    let finished = line("finished in ").context("no line `finished in`")?;
    let rate = finished.split_whitespace().nth(1).context("no rate")?;
    let mut times: Vec<f64> =
        log.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse().ok()).collect();
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    let share = |of: f64| times.get((last as f64 * of) as usize).copied().unwrap_or(f64::NAN);
    let count = |name: &str| -> Result<u64> {
        let requests = line("requests: ").context("no line `requests`")?;
        let part = requests.split(", ").find_map(|part| part.strip_suffix(name));
        Ok(part.with_context(|| format!("no count of{name}"))?.trim().parse()?)
    };
    let (failed, errored) = (count(" failed")?, count(" errored")?);
    let codes = line("status codes: ").context("no line `status codes`")?;
    let is_wrong = failed + errored > 0 || !codes.contains(" 0 4xx, 0 5xx");
    Ok(Sample {
        requests_per_second: rate.parse().with_context(|| rate.to_owned())?,
        latency_us: [share(0.5), share(0.9), share(0.99)],
        wrong: is_wrong.then(|| format!("h2load: {failed} failed, {errored} errored, {codes}")),
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    const REPORT: &str = "starting benchmark...
finished in 2.00s, 21500.50 req/s, 5.53MB/s
requests: 43001 total, 43801 started, 43001 done, 43001 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 43001 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 11.05MB (11589890) total
";

    #[test]
    fn a_report_is_read() {
        let log = "1700000000000001\t200\t100\n1700000000000002\t200\t300\n1700000000000003\t200\t200\n";
        let got = sample(REPORT, log).unwrap();
        assert_eq!((got.requests_per_second, got.latency_us), (21500.5, [200.0, 200.0, 200.0]));
        assert_eq!(got.wrong, None);
        let failed = sample(&REPORT.replace("0 failed", "3 failed"), log).unwrap();
        assert!(failed.wrong.unwrap().contains("3 failed"));
        let refused = sample(&REPORT.replace("0 5xx", "7 5xx"), log).unwrap();
        assert!(refused.wrong.unwrap().contains("7 5xx"));
        assert!(sample("h2load: cannot", log).is_err());
    }
}

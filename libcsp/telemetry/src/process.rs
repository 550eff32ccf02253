//! Metrics of the process: processor time, memory and descriptors, and the processor time of each thread.
//!
//! Names are those that Prometheus' client libraries agree on (`process_cpu_seconds_total`, …). Everything is
//! read from /proc at each scrape; a file that cannot be read or understood leaves its metrics out.

use std::fs;
use std::path::Path;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::metrics::MetricWriter;

/// Threads that are looked at; more are left out.
const THREADS_MAX: usize = 1024;

/// Writes the metrics of this process.
pub(crate) fn collect(out: &mut MetricWriter) {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    let used_s = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
    let help = "Processor time of the process, user and system";
    out.seconds("process_cpu_seconds_total", help, &[], used_s);
    memory(out);
    descriptors(out);
    if let Some(started) = started_unix_s() {
        let help = "When the process started, in seconds of the Unix epoch";
        out.gauge("process_start_time_seconds", help, &[], started);
    }
    threads(out);
}

fn memory(out: &mut MetricWriter) {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(virtual_)), Some(Ok(resident))) = (pages.next(), pages.next()) else { return };
    let bytes = |pages: u64| pages.saturating_mul(page_size() as u64) as f64;
    let help = "Address space of the process";
    out.gauge("process_virtual_memory_bytes", help, &[], bytes(virtual_));
    let help = "Memory of the process that is resident, shared memory included";
    out.gauge("process_resident_memory_bytes", help, &[], bytes(resident));
}

fn descriptors(out: &mut MetricWriter) {
    // Linux from 6.2 on has their number as the folder's size; before, it is 0 there.
    let folder = Path::new("/proc/self/fd");
    let counted = fs::metadata(folder).ok().map(|folder| folder.len()).filter(|len| *len > 0);
    let open = counted.or_else(|| Some(fs::read_dir(folder).ok()?.count() as u64));
    if let Some(open) = open {
        out.gauge("process_open_fds", "Open descriptors of the process", &[], open as f64);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        out.gauge("process_max_fds", "Descriptors that the process may open", &[], most as f64);
    }
}

/// Returns when this process started: the boot's time, and ticks since then.
fn started_unix_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name, which may contain spaces and parentheses.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + ticks / clock_ticks_per_second() as f64)
}

/// Writes the processor time of threads by name. Threads of one name are summed.
fn threads(out: &mut MetricWriter) {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return };
    for task in tasks.flatten().take(THREADS_MAX) {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, times) = (read("comm"), read("schedstat"));
        let Some(Ok(used_ns)) = times.split_whitespace().next().map(str::parse::<u64>) else { continue };
        let help = "Processor time of threads, user and system; a worker's contains its busy polling";
        let labels = [("thread", name.trim_end())];
        out.seconds("csp_thread_cpu_seconds_total", help, &labels, used_ns as f64 / 1e9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_start_memory_descriptors_and_threads() {
        let mut out = MetricWriter::default();
        let named = std::thread::Builder::new().name("worker 0".to_owned());
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (started, starts) = std::sync::mpsc::channel::<()>();
        let run = move || {
            let _ = started.send(());
            held.recv()
        };
        let thread = named.spawn(run).expect("a thread");
        starts.recv().expect("it runs, under its name");
        collect(&mut out);
        drop(release);
        thread.join().expect("it ends").expect_err("nothing was sent");
        let text = out.render_text();
        let value = |series: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("{series} is missing in\n{text}")).parse::<f64>().expect("a number")
        };
        let now = rustix::time::clock_gettime(ClockId::Realtime).tv_sec as f64;
        assert!((0.0..3600.0).contains(&(now - value("process_start_time_seconds"))), "{text}");
        assert!(value("process_resident_memory_bytes") > 1e5);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!((1.0..=value("process_max_fds")).contains(&value("process_open_fds")), "{text}");
        assert!(value("process_cpu_seconds_total") > 0.0);
        assert!(value("csp_thread_cpu_seconds_total{thread=\"worker 0\"}") >= 0.0);
    }
}

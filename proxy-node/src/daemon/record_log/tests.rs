//! The writer with a syslog that reads, does not read, and is away.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::connections::tests::ended;
use super::*;

struct Fixture {
    path: PathBuf,
    counts: Arc<Counts>,
    writer: Writer,
}

impl Fixture {
    fn new(name: &str) -> Fixture {
        let path = std::env::temp_dir().join(format!("csp-connection-log-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let counts = Arc::new(Counts::default());
        let section = SyslogSection { to: Target::Unix(path.clone()), facility: Facility::default() };
        let (node, place) = ("pn-1".parse().unwrap(), Place::Syslog(section));
        let format = Format::Json;
        let writer = Writer { node, format, place, output: None, is_failing: false, counts: counts.clone() };
        Fixture { path, counts, writer }
    }

    fn write(&mut self, count: usize, addresses: LogAddresses) -> (u64, u64) {
        let room = (0..count).map(|_| ended()).collect();
        self.writer.write::<EndedConnection>(&List { worker: 3, now: clock::now(), addresses, room });
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (count(&self.counts.written), count(&self.counts.failed))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn records_are_messages_of_syslog_without_the_addresses_that_the_policy_excludes() {
    let mut fixture = Fixture::new("reads");
    assert_eq!(fixture.write(2, LogAddresses::Full), (0, 2), "it is away");
    let receiver = UnixDatagram::bind(&fixture.path).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for (addresses, client) in [
        (LogAddresses::Full, r#""client":"10.0.0.2:4242""#),
        (LogAddresses::Prefix, r#""client":"10.0.0.0/24""#),
        (LogAddresses::None, r#""client":"""#),
    ] {
        fixture.write(1, addresses);
        let mut room = [0; 8192];
        let len = receiver.recv(&mut room).unwrap();
        let message = std::str::from_utf8(&room[..len]).unwrap();
        // daemon, notice: it was reset.
        assert!(message.starts_with("<29>1 "), "{message}");
        let expected = format!(" pn-1 csp-proxy-node {} connection - {{\"time\":\"", std::process::id());
        assert!(message.contains(&expected) && message.contains(client), "{message}");
        assert!(addresses == LogAddresses::Full || !message.contains("10.0.0.2"), "{message}");
        assert!(message.ends_with(r#""end":"client_reset","code":"CR"}"#), "{message}");
    }
    assert_eq!(fixture.write(0, LogAddresses::Full), (3, 2));
}

#[test]
fn what_a_syslog_that_does_not_read_has_no_room_for_is_counted() {
    let mut fixture = Fixture::new("full");
    let _receiver = UnixDatagram::bind(&fixture.path).unwrap();
    let began = std::time::Instant::now();
    let (written, failed) = fixture.write(20_000, LogAddresses::Full);
    assert_eq!(written + failed, 20_000);
    assert!(failed > 0 && began.elapsed() < Duration::from_secs(5), "{failed} in {:?}", began.elapsed());
}

#[test]
fn a_section_names_one_place() {
    let problems = |text: &str| {
        let section: LogSection = serde_json::from_str(text).unwrap();
        let mut problems = Problems::default();
        section.check(&EndedConnection::WHAT, &mut problems);
        problems.concerns("connection_log")
    };
    assert!(problems("{}"));
    assert!(problems(r#"{"file": "/x", "syslog": {"to": "/dev/log"}}"#));
    assert!(!problems(r#"{"file": "-"}"#));
    assert!(!problems(r#"{"syslog": {"to": "udp://10.77.0.9:514", "facility": "local1"}}"#));
}

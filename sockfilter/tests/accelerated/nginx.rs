//! Debian's nginx: master, workers of another user, daemon, reload.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::stage::*;

/// Writes a configuration; `daemon` as nginx takes it.
fn configure(stage: &Stage, port: u16, daemon: &str, extra: &str) -> PathBuf {
    let folder = stage.folder.display();
    // Workers run as www-data.
    fs::set_permissions(&stage.folder, fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir_all(stage.folder.join("www")).unwrap();
    let text = format!(
        "daemon {daemon}; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log info;
events {{ worker_connections 512; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_timeout 30; root {folder}/www;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen {port} {extra}; location /put/ {{ dav_methods PUT; client_max_body_size 64m; }} }}
}}
"
    );
    stage.write("nginx.conf", text.as_bytes())
}

fn start(stage: &mut Stage, port: u16, extra: &str) -> usize {
    let config = configure(stage, port, "off", extra);
    let mut command = stage.command("/usr/sbin/nginx");
    command.arg("-c").arg(config);
    let child = stage.start(command);
    stage.proxy.until("both workers", |p| p.listening(port).1 == 2);
    child
}

fn error_log(stage: &Stage) -> String {
    let log = fs::read_to_string(stage.folder.join("error.log")).unwrap_or_default();
    log.lines().filter(|l| l.contains("[alert]") || l.contains("[crit]") || l.contains("[emerg]")).collect()
}

#[test]
fn both_workers_serve_and_nothing_is_in_the_kernel() {
    let mut stage = Stage::new();
    let server = start(&mut stage, 18081, "");
    let body = pattern(100);
    stage.write("www/small", &body);
    for n in 0..200 {
        let response = stage.proxy.exchange(18081, b"GET /small HTTP/1.0\r\n\r\n");
        let (head, found) = split_response(&response);
        assert!(head.starts_with("HTTP/1.1 200"), "request {n}: {head}");
        assert_eq!(found, body);
    }
    let shares = stage.proxy.shares(18081);
    assert!(shares.iter().filter(|n| **n >= 50).count() == 2, "{shares:?}");
    assert_eq!(stage.kernel_sockets(server, 18081), 0);
    assert_eq!(error_log(&stage), "");
}

#[test]
fn one_transaction_is_open_data_data_close() {
    let mut stage = Stage::new();
    start(&mut stage, 18082, "");
    stage.write("www/small", b"hello");
    let label = stage.proxy.open(18082, b"GET /small HTTP/1.0\r\n\r\n", false);
    stage.proxy.until("the close", |p| p.flow(label).closed);
    use csp_wire::channel::MessageKind::{Accepted, Close, Data};
    assert_eq!(stage.proxy.flow(label).kinds, [Accepted, Data, Close]);
}

#[test]
fn large_files_and_uploads_keep_every_byte() {
    let mut stage = Stage::new();
    start(&mut stage, 18083, "");
    let body = pattern(16 << 20);
    stage.write("www/large", &body);
    let response = stage.proxy.exchange(18083, b"GET /large HTTP/1.0\r\n\r\n");
    assert!(split_response(&response).1 == body, "the download differs");
    let put = stage.folder.join("www/put");
    fs::create_dir_all(&put).unwrap();
    fs::set_permissions(&put, fs::Permissions::from_mode(0o777)).unwrap();
    let mut request = format!("PUT /put/up HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(&body);
    let response = stage.proxy.exchange(18083, &request);
    assert!(
        split_response(&response).0.starts_with("HTTP/1.1 201"),
        "{}",
        String::from_utf8_lossy(&response)
    );
    assert!(fs::read(put.join("up")).unwrap() == body, "the upload differs");
}

#[test]
fn kept_alive_connections_take_many_requests_each() {
    let mut stage = Stage::new();
    start(&mut stage, 18084, "reuseport");
    stage.write("www/small", b"hello");
    let request = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n";
    let labels: Vec<u32> = (0..64).map(|_| stage.proxy.open(18084, request, false)).collect();
    for round in 1..=20 {
        let answered = |p: &crate::proxy::Proxy, l: u32| {
            p.flow(l).received.windows(5).filter(|w| w == b"hello").count() >= round
        };
        stage.proxy.until("all answers", |p| labels.iter().all(|l| answered(p, *l)));
        if round < 20 {
            labels.iter().for_each(|l| stage.proxy.write(*l, request));
        }
    }
    // A client that leaves is noticed by its end of stream, one that resets by its reset.
    stage.proxy.shutdown(labels[0]);
    stage.proxy.until("the close", |p| p.flow(labels[0]).closed);
    stage.proxy.reset(labels[1]);
    stage.proxy.run_for(Duration::from_millis(50));
    assert_eq!(error_log(&stage), "");
}

#[test]
fn reload_replaces_the_workers_and_quit_ends_them() {
    let mut stage = Stage::new();
    let child = start(&mut stage, 18085, "");
    stage.write("www/small", b"hello");
    let before = stage.proxy.processes();
    let kept = stage.proxy.open(18085, b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n", false);
    stage.proxy.until("an answer", |p| p.flow(kept).received.ends_with(b"hello"));
    signal(stage.pid(child), libc::SIGHUP);
    stage.proxy.until("new workers", |p| {
        // One id for each link that a process has.
        let now: std::collections::BTreeSet<_> = p.processes().into_iter().collect();
        p.listening(18085).1 == 2 && now.iter().filter(|id| !before.contains(id)).count() == 2
    });
    let response = stage.proxy.exchange(18085, b"GET /small HTTP/1.0\r\n\r\n");
    assert!(split_response(&response).1 == b"hello");
    signal(stage.pid(child), libc::SIGQUIT);
    assert_eq!(stage.wait(child).0, Some(0));
    assert_eq!(error_log(&stage), "");
}

#[test]
fn workers_come_back_to_a_proxy_that_died() {
    let mut stage = Stage::new();
    start(&mut stage, 18087, "");
    stage.write("www/small", b"hello");
    let kept = stage.proxy.open(18087, b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n", false);
    stage.proxy.until("an answer", |p| p.flow(kept).received.ends_with(b"hello"));
    for _ in 0..2 {
        stage.restart_proxy();
        stage.proxy.until("both workers again", |p| p.listening(18087).1 == 2);
        let response = stage.proxy.exchange(18087, b"GET /small HTTP/1.0\r\n\r\n");
        assert!(split_response(&response).1 == b"hello");
    }
    assert_eq!(error_log(&stage), "");
}

#[test]
fn a_killed_worker_is_replaced_and_its_listener_leaves() {
    let mut stage = Stage::new();
    start(&mut stage, 18088, "");
    stage.write("www/small", b"hello");
    let worker =
        stage.proxy.processes().into_iter().filter_map(|id| id.split('-').nth(1)?.parse::<i32>().ok());
    let master = stage.pid(0);
    signal(worker.filter(|pid| *pid != master).max().unwrap(), libc::SIGKILL);
    stage.proxy.until("the loss", |p| p.listening(18088).1 == 1);
    stage.proxy.until("the new worker", |p| p.listening(18088).1 == 2);
    for _ in 0..10 {
        let response = stage.proxy.exchange(18088, b"GET /small HTTP/1.0\r\n\r\n");
        assert!(split_response(&response).1 == b"hello");
    }
}

/// A file that is printed if the test fails.
struct Said(std::path::PathBuf);

impl Drop for Said {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.0).unwrap_or_default());
        }
    }
}

#[test]
fn a_daemon_serves_too() {
    let mut stage = Stage::new();
    let config = configure(&stage, 18086, "on", "");
    stage.write("www/small", b"hello");
    let mut command = stage.command("/usr/sbin/nginx");
    command.arg("-c").arg(config);
    // Its output is not waited for: the daemon keeps it open.
    let said = Said(stage.folder.join("stderr"));
    command.stdout(std::process::Stdio::null()).stderr(fs::File::create(&said.0).unwrap());
    assert!(command.status().unwrap().success());
    let response = stage.proxy.exchange(18086, b"GET /small HTTP/1.0\r\n\r\n");
    assert!(split_response(&response).1 == b"hello");
    let pid: i32 = fs::read_to_string(stage.folder.join("nginx.pid")).unwrap().trim().parse().unwrap();
    signal(pid, libc::SIGTERM);
    stage.proxy.until("its end", |p| p.processes().is_empty());
}

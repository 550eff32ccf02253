//! Active checks of servers that packets are forwarded to: a connection of the host's kernel to the server's
//! own address now and then, and a request over HTTP or the start of a TLS handshake if the policy has one.
//! UDP services are checked so, too.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use csp_daemon::jitter::fraction;
use csp_policy::{HttpCheck, ServerCheck, TlsCheck};
use csp_wire::tls::{self, Answer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{Key, Servers};

/// How often the list of what is checked is compared with the policy's.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Length of the part of a response that has the status: `HTTP/1.1 200`.
const STATUS_LEN: usize = 12;

/// Checks the servers of the policy in force. Does not end.
pub(super) async fn run(servers: Servers) {
    let mut running: HashMap<Key, (ServerCheck, JoinHandle<()>)> = HashMap::new();
    loop {
        let wanted = servers.checked();
        running.retain(|key, (check, task)| {
            let stays = wanted.get(key) == Some(check);
            if !stays {
                task.abort();
            }
            stays
        });
        for (key, check) in wanted {
            running.entry(key).or_insert_with(|| {
                let task = tokio::spawn(check_again_and_again(servers.clone(), key, check.clone()));
                (check, task)
            });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn check_again_and_again(servers: Servers, key: Key, check: ServerCheck) {
    let interval = Duration::from_millis(check.interval_ms.into());
    // The servers of a policy are not checked all at once.
    tokio::time::sleep(interval.mul_f64(fraction())).await;
    loop {
        let begun = tokio::time::Instant::now();
        let at = SocketAddr::new(key.2, check.port.unwrap_or(key.0.port()));
        servers.note(&key, &check, once(at, key.0, &check).await);
        let varied = interval.mul_f64(0.875 + fraction() / 4.0);
        tokio::time::sleep_until(begun + varied).await;
    }
}

/// Checks a server of the service at `end` once.
async fn once(at: SocketAddr, end: SocketAddr, check: &ServerCheck) -> Result<(), String> {
    let time = Duration::from_millis(check.timeout_ms.into());
    let checked = async {
        let connected = TcpStream::connect(at).await.map_err(|error| error.to_string())?;
        match (&check.http, &check.tls) {
            (Some(http), _) => ask(connected, end, http).await,
            (None, Some(tls)) => greet(connected, tls).await,
            (None, None) => Ok(()),
        }
    };
    let late = || format!("no answer within {} ms", check.timeout_ms);
    tokio::time::timeout(time, checked).await.unwrap_or_else(|_| Err(late()))
}

/// Asks over HTTP/1.1; only the status of the answer is read.
async fn ask(mut stream: TcpStream, end: SocketAddr, http: &HttpCheck) -> Result<(), String> {
    let host = http.host.clone().unwrap_or_else(|| end.ip().to_string());
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: csp-check\r\nConnection: close\r\n\r\n",
        http.path
    );
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut start = [0; STATUS_LEN];
    let read = stream.read_exact(&mut start).await;
    read.map_err(|error| format!("no whole status line: {error}"))?;
    let status = status_of(&start).ok_or("the answer is not HTTP/1")?;
    let [least, most] = http.status;
    match (least..=most).contains(&status) {
        true => Ok(()),
        false => Err(format!("status {status}")),
    }
}

/// Begins a TLS handshake; only the start of the answer is read.
async fn greet(mut stream: TcpStream, check: &TlsCheck) -> Result<(), String> {
    let mut hello = [0; tls::HELLO_LEN_MAX];
    let len = tls::client_hello(check.name.as_deref(), &mut hello).ok_or("the name is too long")?;
    stream.write_all(&hello[..len]).await.map_err(|error| error.to_string())?;
    let (mut start, mut len) = ([0; tls::ANSWER_LEN], 0);
    loop {
        match tls::answer(&start[..len]) {
            Answer::More => {}
            Answer::Hello => return Ok(()),
            Answer::Alert(description) => return Err(format!("TLS alert {description}")),
            Answer::Other => return Err("the answer is not TLS".to_owned()),
        }
        match stream.read(&mut start[len..]).await.map_err(|error| error.to_string())? {
            0 => return Err("no answer to the ClientHello".to_owned()),
            read => len += read,
        }
    }
}

/// Returns the status of a status line's start (RFC 9112 §4).
fn status_of(start: &[u8; STATUS_LEN]) -> Option<u16> {
    let digits = start.strip_prefix(b"HTTP/1.")?.get(2..)?;
    let is_status = digits.len() == 3 && digits.iter().all(u8::is_ascii_digit);
    is_status.then(|| digits.iter().fold(0, |status, digit| 10 * status + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_server_of_tls_greets() {
        let check = ServerCheck { tls: Some(TlsCheck::default()), ..ServerCheck::default() };
        for (answer, expected) in [
            (&b"\x16\x03\x03\0\x7a\x02\0\0\x76"[..], Ok(())),
            (b"\x15\x03\x03\0\x02\x02\x28", Err("TLS alert 40")),
            (b"HTTP/1.1 400 Bad Request\r\n", Err("the answer is not TLS")),
            (b"\x16\x03", Err("no answer to the ClientHello")),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut hello = [0; 1024];
                let len = stream.read(&mut hello).await.unwrap();
                assert_eq!((hello[..2] == [22, 3], len > 100), (true, true));
                stream.write_all(answer).await.unwrap();
            });
            let found = once(at, "192.0.2.1:443".parse().unwrap(), &check).await;
            assert_eq!(found, expected.map_err(str::to_owned));
        }
    }

    /// Answers one connection with these bytes.
    async fn server(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let len = stream.read(&mut request).await.unwrap();
            assert!(request[..len].starts_with(b"GET /health HTTP/1.1\r\nHost: 192.0.2.1\r\n"));
            stream.write_all(answer).await.unwrap();
        });
        at
    }

    #[tokio::test]
    async fn only_the_right_status_passes() {
        let http = HttpCheck { path: "/health".into(), ..HttpCheck::default() };
        let check = ServerCheck { http: Some(http), ..ServerCheck::default() };
        let end = "192.0.2.1:80".parse().unwrap();
        for (answer, expected) in [
            (&b"HTTP/1.1 204 No Content\r\n\r\n"[..], Ok(())),
            (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", Err("status 503")),
            (b"SSH-2.0-OpenSSH_9.2\r\n", Err("the answer is not HTTP/1")),
            (b"HTTP/1.1 +20 x", Err("the answer is not HTTP/1")),
            ("HTTP/1.€ab".as_bytes(), Err("the answer is not HTTP/1")),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", Err("the answer is not HTTP/1")),
        ] {
            let found = once(server(answer).await, end, &check).await;
            assert_eq!(found, expected.map_err(str::to_owned));
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let silent = ServerCheck { timeout_ms: 100, ..check.clone() };
        assert_eq!(once(at, end, &silent).await.unwrap_err(), "no answer within 100 ms");
        drop(listener);
        assert!(once(at, end, &check).await.unwrap_err().contains("refused"));
    }
}

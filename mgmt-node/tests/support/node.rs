//! A management node with an identity, and its browsers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use csp_authority::{Authority, Timestamp};
use csp_identity::{CA, Credentials, IdentityRole};
use reqwest::{Client, RequestBuilder, Response};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::{Ran, SOON, Scratch, cspctl, eventually, free_address, identities};

/// A management node with an identity, and the authority that gave it.
pub struct Node {
    pub scratch: Scratch,
    pub api: SocketAddr,
    pub child: Child,
}

impl Node {
    pub async fn start() -> Self {
        let (scratch, api) = (Scratch::new(), free_address());
        let child = identities::start(&scratch, api, free_address());
        let mut node = Node { scratch, api, child };
        let browser = node.browser();
        eventually("the API", async || {
            if let Some(status) = node.child.try_wait().expect("wait") {
                panic!("csp-mgmt-node ended ({status})");
            }
            browser.get(node.url("/healthz")).send().await.ok()
        })
        .await;
        node
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.api)
    }

    pub fn issue(&self, role: IdentityRole, id: &str, lifetime: Option<Duration>) -> PathBuf {
        identities::issue(&self.scratch, role, id, lifetime)
    }

    pub fn authority(&self) -> Authority {
        Authority::open(&self.scratch.0.join("pki"), Timestamp::now()).expect("authority")
    }

    /// A client that trusts the authority and has no certificate.
    pub fn browser(&self) -> Client {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(self.scratch.0.join("pki").join(CA)).expect("ca.pem")
        {
            roots.add(certificate.expect("certificate")).expect("root");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        client(builder.expect("versions").with_root_certificates(roots).with_no_client_auth())
    }

    /// A client with the certificate in `folder`.
    pub fn holder(&self, folder: &Path) -> Client {
        let credentials = Credentials::open(folder).expect("identity");
        client(csp_identity::client_config(Some(&credentials), csp_identity::ExpectedServer::Management))
    }

    pub async fn login(&self, folder: &Path, arguments: &[&str]) -> Ran {
        let mut command = cspctl();
        command.arg("--server").arg(self.url("")).arg("--identity").arg(folder).arg("login").args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        Ran::of(output.expect("task").expect("cspctl runs"))
    }

    /// Posts to the routes of logins as the page does.
    pub async fn post(&self, browser: &Client, path: &str, body: Value) -> Response {
        let request = browser.post(self.url(&format!("/api/v1/login/{path}"))).header("origin", self.url(""));
        request.json(&body).send().await.expect("an answer")
    }

    /// Redeems a link's secret as the page does when its reader has agreed to what it says.
    pub async fn redeem(&self, browser: &Client, token: &str) -> Response {
        let link = self.post(browser, "link", json!({ "token": token })).await;
        if !link.status().is_success() {
            return link;
        }
        let link: Value = link.json().await.expect("JSON");
        self.post(browser, "redeem", json!({ "token": token, "identity": link["identity"] })).await
    }

    /// A session of the holder of `folder`: its cookie, as a browser sends it.
    pub async fn session(&self, folder: &Path, role: &str) -> String {
        let link = self.login(folder, &["--role", role]).await.exited(0).out;
        let (_, token) = link.trim().split_once('#').expect("a secret");
        let answer = self.redeem(&self.browser(), token).await;
        assert_eq!(answer.status(), 204);
        cookie(&answer).split(';').next().expect("a pair").to_owned()
    }

    /// The status of the overview for this cookie.
    pub async fn sees(&self, browser: &Client, cookie: &str) -> u16 {
        status(browser.get(self.url("/api/v1/overview")).header("cookie", cookie)).await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.scratch.0.join("log")).unwrap_or_default());
        }
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// A client with a connection for each request: on a kept one a request may meet the server's close, as when
/// identities change.
fn client(config: rustls::ClientConfig) -> Client {
    Client::builder()
        .pool_max_idle_per_host(0)
        .no_proxy()
        .timeout(SOON)
        .tls_backend_preconfigured(config)
        .build()
        .expect("client")
}

/// The status of the answer to a request.
pub async fn status(request: RequestBuilder) -> u16 {
    request.send().await.expect("an answer").status().as_u16()
}

/// The cookie that an answer sets.
pub fn cookie(answer: &Response) -> &str {
    answer.headers()["set-cookie"].to_str().expect("text")
}

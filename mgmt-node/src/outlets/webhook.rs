//! A receiver of events over HTTP, signed as the Standard Webhooks specification has it.

use std::error::Error as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use csp_api::events::Page;
use csp_daemon::clock::unix_now_s;
use csp_daemon::private_file;
use csp_identity::{ExpectedServer, client_config, web_client_config};
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::Failure;
use crate::config::{WebhookSection, http_url};

/// Time for a connection, for a delivery, and for what an answer has beyond its status.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read, so that its connection can be used again.
const ANSWER_LEN_MAX: usize = 64 << 10;
/// Longest body that is sent; a single event may be longer.
const BODY_LEN_MAX: usize = 1 << 20;
/// Longest file of a secret, and of authorities, in bytes.
const SECRET_FILE_LEN_MAX: u64 = 4096;
const CA_FILE_LEN_MAX: u64 = 16 << 20;
/// Lengths of a secret, in bytes.
const SECRET_LEN: std::ops::RangeInclusive<usize> = 16..=512;
/// How a secret begins, as text.
const SECRET_PREFIX: &str = "whsec_";

/// A receiver.
pub(super) struct Webhook {
    url: Url,
    client: Client,
    secret: Option<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Reads the files of a receiver. The error says what is wrong with which.
    pub(super) fn open(section: &WebhookSection) -> Result<Webhook, String> {
        let url = url_of(section)?;
        let tls = match url.scheme() {
            "https" => {
                let wrong = |why: String| format!("ca_file: {} {why}", section.ca_file.display());
                let pem = bounded(&section.ca_file).map_err(wrong)?;
                web_client_config(&pem).map_err(wrong)?
            }
            _ => client_config(None, ExpectedServer::Management),
        };
        let client = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .user_agent(concat!("csp-mgmt-node/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls)
            .build();
        let secret = section.secret_file.as_ref().map(|path| {
            let secret = private_file::read(path, SECRET_FILE_LEN_MAX).map(Zeroizing::new);
            let secret = secret.and_then(|text| secret_of(&text));
            secret.map_err(|why| format!("secret_file: {}: {why}", path.display()))
        });
        Ok(Webhook { url, client: client.map_err(|error| error.to_string())?, secret: secret.transpose()? })
    }

    /// Posts events, in one body. Returns when the receiver has said that it took them.
    pub(super) async fn deliver(&self, page: &Page) -> Result<(), Failure> {
        let wrong = |error: serde_json::Error| Failure::refused(error.to_string());
        let id = message_id(&serde_json::to_vec(&page.events).map_err(wrong)?);
        let body = serde_json::to_vec(page).map_err(wrong)?;
        if body.len() > BODY_LEN_MAX && page.events.len() > 1 {
            return Err(Failure::refused(format!("{} bytes are too many at once", body.len())));
        }
        let seconds = unix_now_s().to_string();
        let mut request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        request = request.header("webhook-id", &id).header("webhook-timestamp", &seconds);
        if let Some(secret) = &self.secret {
            request = request.header("webhook-signature", sign(secret, (&id, &seconds), &body));
        }
        let answer = request.body(body).send().await.map_err(|error| Failure::of(&error))?;
        let verdict = judge(answer.status(), answer.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()));
        // The verdict stands, whatever follows.
        let _ = tokio::time::timeout(ANSWER_TIMEOUT, drain(answer)).await;
        verdict
    }
}

impl Failure {
    fn refused(reason: String) -> Failure {
        Failure { reason, pause: None, is_refused: true }
    }

    /// The URL is left out: it may have a secret in it.
    fn of(error: &reqwest::Error) -> Failure {
        let reason = match error.is_timeout() {
            true => format!("no answer within {} s", TIMEOUT.as_secs()),
            false => {
                let mut reason = "no answer".to_owned();
                let mut source = error.source();
                while let Some(error) = source {
                    reason = format!("no answer: {error}");
                    source = error.source();
                }
                reason
            }
        };
        Failure { reason, pause: None, is_refused: false }
    }
}

/// Returns what the status of an answer means.
fn judge(status: StatusCode, retry_after: Option<&str>) -> Result<(), Failure> {
    if status.is_success() {
        return Ok(());
    }
    let reason = match status.is_redirection() {
        true => format!("status {}: redirects are not followed", status.as_u16()),
        false => format!("status {}", status.as_u16()),
    };
    let refusals = [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNPROCESSABLE_ENTITY];
    let pause = retry_after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
    Err(Failure { reason, pause, is_refused: refusals.contains(&status) })
}

async fn drain(mut answer: Response) {
    let mut len = 0;
    while let Ok(Some(part)) = answer.chunk().await {
        len += part.len();
        if len > ANSWER_LEN_MAX {
            return;
        }
    }
}

/// Returns the id of a message with these events: the same when it is sent again.
fn message_id(events: &[u8]) -> String {
    format!("events_{}", &csp_policy::sha256(events)[..32])
}

/// Returns the signature of a message: `v1,` and the HMAC-SHA256 of `ID.TIMESTAMP.BODY` in base64.
fn sign(secret: &[u8], (id, timestamp): (&str, &str), body: &[u8]) -> String {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else { return String::new() };
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        mac.update(part);
    }
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// Returns the URL of a receiver, which stands in the configuration or in a file of its own.
fn url_of(section: &WebhookSection) -> Result<Url, String> {
    let Some(path) = &section.url_file else {
        return http_url(section.url.as_deref().unwrap_or_default()).map_err(|why| format!("url: {why}"));
    };
    let url = private_file::read(path, SECRET_FILE_LEN_MAX).map(Zeroizing::new);
    let url = url.and_then(|text| http_url(text.trim()).map_err(str::to_owned));
    url.map_err(|why| format!("url_file: {}: {why}", path.display()))
}

/// Returns the secret in the text of its file.
fn secret_of(text: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let wrong = "is no secret; allowed is whsec_ and the base64 of 16 to 512 bytes, as by: \
                 echo whsec_$(openssl rand -base64 32)";
    let base64 = text.trim().strip_prefix(SECRET_PREFIX);
    let secret = base64.and_then(|base64| STANDARD.decode(base64).ok()).map(Zeroizing::new);
    secret.filter(|secret| SECRET_LEN.contains(&secret.len())).ok_or_else(|| wrong.to_owned())
}

fn bounded(path: &std::path::Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut pem = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(CA_FILE_LEN_MAX).read_to_end(&mut pem));
    read.map(|_| pem).map_err(|error| format!("cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_specification() {
        // The example of the specification's reference libraries.
        let secret = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("a secret");
        let signature =
            sign(&secret, ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330"), br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        for wrong in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_QQ==", "whsec_!!"] {
            assert!(secret_of(wrong).is_err_and(|why| why.contains("openssl rand")), "{wrong}");
        }
    }

    #[test]
    fn only_success_is_success() {
        let at = |code: u16, after| judge(StatusCode::from_u16(code).expect("a status"), after);
        assert!(at(204, None).is_ok());
        let (moved, busy, large) = (at(302, None), at(429, Some("7")), at(413, None));
        assert!(moved.is_err_and(|failure| failure.reason == "status 302: redirects are not followed"));
        assert!(busy.is_err_and(|f| f.pause == Some(Duration::from_secs(7)) && !f.is_refused));
        assert!(large.is_err_and(|failure| failure.is_refused));
    }
}

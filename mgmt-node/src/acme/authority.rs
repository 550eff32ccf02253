//! The authority over HTTPS, and this cluster's account there. The account's key is a file of each management
//! node.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use csp_daemon::issued::write_private;
use csp_daemon::private_file;
use csp_identity::web_client_config;
use csp_policy::Acme;
use http_body_util::BodyExt as _;
use instant_acme::{
    Account, AccountCredentials, BodyWrapper, BytesResponse, Error, ExternalAccountKey, HttpClient,
    NewAccount,
};
use serde::{Deserialize, Serialize};

use crate::config::AcmeSection;

/// Longest answer of an authority in bytes.
const ANSWER_LEN_MAX: usize = 256 << 10;
/// Time for a connection, and for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest file of an account, and of authorities, in bytes.
const ACCOUNT_LEN_MAX: u64 = 64 << 10;
const CA_FILE_LEN_MAX: u64 = 16 << 20;

/// An account, as its file has it.
#[derive(Serialize, Deserialize)]
struct Kept {
    directory: String,
    credentials: AccountCredentials,
}

/// The file of the account.
#[derive(Clone, Debug)]
pub struct AccountFile(pub PathBuf);

impl AccountFile {
    /// Returns the text of the file, if there is one.
    pub fn text(&self) -> Option<String> {
        private_file::read(&self.0, ACCOUNT_LEN_MAX).ok()
    }

    /// Returns the SHA-256 of the file.
    pub fn sha256(&self) -> Option<String> {
        Some(csp_policy::sha256(self.text()?.as_bytes()))
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The text is no account, or it cannot be written.
    pub fn write(&self, text: &str) -> Result<(), String> {
        serde_json::from_str::<Kept>(text).map_err(|error| format!("this is no account: {error}"))?;
        let cannot = |error: std::io::Error| format!("{}: {error}", self.0.display());
        self.0.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(cannot)?;
        write_private(&self.0, text).map_err(cannot)
    }

    /// Removes the file: the authority does not know the account any more.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Sends requests to an authority: no redirects, answers of a bounded length.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    /// Seconds that the authority has asked to be left alone, the most of its refusals.
    asked_s: Arc<AtomicU64>,
}

impl Client {
    /// Returns a client of authorities over HTTPS whose certificates these files' authorities have issued.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn new(ca_file: &Path) -> Result<Self, String> {
        let wrong = |why: String| format!("acme.ca_file: {}: {why}", ca_file.display());
        let len = std::fs::metadata(ca_file).map_err(|error| wrong(error.to_string()))?.len();
        if len > CA_FILE_LEN_MAX {
            return Err(wrong(format!("has more than {CA_FILE_LEN_MAX} bytes")));
        }
        let pem = std::fs::read(ca_file).map_err(|error| wrong(error.to_string()))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .user_agent(concat!("csp-mgmt-node/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(web_client_config(&pem).map_err(wrong)?)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Client { http, asked_s: Arc::default() })
    }

    /// Returns the seconds for which the authority has asked to be left alone.
    pub fn asked_s(&self) -> i64 {
        i64::try_from(self.asked_s.load(Ordering::Relaxed)).unwrap_or(i64::MAX)
    }

    async fn send(self, request: http::Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes());
        let body = body.map_err(|error| Error::Other(error.into()))?;
        let asked = self.http.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
        let mut answer = asked.send().await.map_err(no_answer)?;
        let pause = answer.headers().get(http::header::RETRY_AFTER);
        let pause = pause.and_then(|value| value.to_str().ok()?.trim().parse().ok()).unwrap_or(0);
        let is_refusal = matches!(answer.status().as_u16(), 429 | 503);
        if is_refusal {
            // What is asked after the refusal, as its reasons, does not end the pause.
            self.asked_s.fetch_max(pause, Ordering::Relaxed);
        }
        let mut head = http::Response::builder().status(answer.status()).version(answer.version()).body(())?;
        *head.headers_mut() = std::mem::take(answer.headers_mut());
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await.map_err(no_answer)? {
            if body.len() + chunk.len() > ANSWER_LEN_MAX {
                return Err(Error::Str("the authority's answer is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(BytesResponse { parts: head.into_parts().0, body: Box::new(body.freeze()) })
    }
}

/// Returns the innermost cause: reqwest's own text states only that sending failed.
fn no_answer(error: reqwest::Error) -> Error {
    let is_late = error.is_timeout();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    match is_late {
        true => Error::Str("the authority does not answer in time"),
        false => Error::Other(format!("the authority cannot be asked: {text}").into()),
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}

/// Opens the account of this cluster at an authority, or creates it.
pub async fn account(
    client: &Client,
    file: &AccountFile,
    section: &AcmeSection,
    acme: &Acme,
) -> Result<Account, String> {
    let kept = file.text().and_then(|text| serde_json::from_str::<Kept>(&text).ok());
    let build = || Account::builder_with_http(Box::new(client.clone()));
    if let Some(kept) = kept.filter(|kept| kept.directory == acme.directory) {
        return build().from_credentials(kept.credentials).await.map_err(|error| error.to_string());
    }
    let external = section.external_account.as_ref().map(|external| {
        let of =
            |why: String| format!("acme.external_account.key_file: {}: {why}", external.key_file.display());
        let text = private_file::read(&external.key_file, 4096).map_err(of)?;
        let key = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
        let key = key.map_err(|error| of(format!("is no key in base64url: {error}")))?;
        Ok::<_, String>(ExternalAccountKey::new(external.id.clone(), &key))
    });
    let external = external.transpose()?;
    let contact: Vec<&str> = acme.contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: acme.terms_agreed,
        only_return_existing: false,
    };
    let created = build().create(&new, acme.directory.clone(), external.as_ref()).await;
    let (account, credentials) = created.map_err(|error| format!("no account at the authority: {error}"))?;
    let kept = Kept { directory: acme.directory.clone(), credentials };
    let text = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
    file.write(&text)?;
    tracing::info!(directory = acme.directory, "an account at the authority was created");
    Ok(account)
}

//! The HTTP client of `cspctl`: the first of several management nodes that answers, bounded answers, statuses
//! turned into [`CliError`]s.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use csp_identity::Credentials;
use reqwest::header::RETRY_AFTER;
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use csp_api::mgmt::ErrorBody;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::error::CliError;

/// Longest answer read, in bytes.
const BODY_LEN_MAX: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer than any fan-out of the server takes, and than its longest long-poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);
/// How long a request waits for a leading management node: an election takes as long as a leader's lease, 5
/// s, and a beat.
const ELECTION: Duration = Duration::from_secs(8);

/// A server's answer.
struct Answer {
    status: StatusCode,
    /// After this time the same request may succeed; nothing was changed.
    again_after: Option<Duration>,
    body: Vec<u8>,
}

/// Most management nodes that are named.
const SERVERS_MAX: usize = 16;

/// The connection to the management node that answered last, and to the leader that it names.
#[derive(Debug)]
pub struct Client {
    /// At least one, all with the same scheme.
    bases: Vec<Url>,
    /// The one that answered last.
    current: AtomicUsize,
    http: reqwest::Client,
}

impl Client {
    /// A client for the management nodes at `servers`, for example `https://10.77.0.4:9104`, with commas
    /// between.
    pub fn new(servers: &str, credentials: Option<&Credentials>) -> Result<Self, CliError> {
        let bases = servers.split(',').map(|server| base(server.trim())).collect::<Result<Vec<_>, _>>()?;
        let base = &bases[0]; // an empty text has been refused
        if bases.len() > SERVERS_MAX || bases.iter().any(|other| other.scheme() != base.scheme()) {
            return Err(CliError::Usage(format!(
                "--server (or CSP_SERVER) `{servers}`: allowed are 1 to {SERVERS_MAX} URLs, all https:// or all http://"
            )));
        }
        if base.scheme() == "https" && credentials.is_none() {
            let server = base;
            return Err(CliError::Usage(format!(
                "{server} asks who you are: name the folder of your certificate by --identity or CSP_IDENTITY; an \
                 operator of the cluster makes it with `cspctl pki issue operator NAME`"
            )));
        }
        // Proxies from the environment are not for a cluster's own control network.
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .redirect(reqwest::redirect::Policy::limited(3))
            // A management node redirects to where etcd says that the leader is.
            .https_only(base.scheme() == "https")
            .tls_backend_preconfigured(csp_identity::client_config(
                credentials,
                csp_identity::ExpectedServer::Management,
            ))
            .build()
            .map_err(|e| CliError::Unavailable(format!("cannot make an HTTP client: {e}")))?;
        Ok(Client { current: AtomicUsize::new(0), bases, http })
    }

    /// GET `path` with a query; the answer as JSON.
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, CliError> {
        let url = self.url(path)?;
        let (_, body) = self.send(self.http.get(url).query(query)).await?;
        parse(path, &body)
    }

    /// POST of a YAML text; status and answer as JSON.
    pub async fn post_yaml<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        yaml: Vec<u8>,
    ) -> Result<(StatusCode, T), CliError> {
        let url = self.url(path)?;
        let request = self.http.post(url).query(query).header("content-type", "application/yaml").body(yaml);
        let (status, body) = self.send(request).await?;
        Ok((status, parse(path, &body)?))
    }

    /// POST of bytes; the answer as JSON.
    pub async fn post_bytes<T: DeserializeOwned>(&self, path: &str, bytes: Vec<u8>) -> Result<T, CliError> {
        let url = self.url(path)?;
        let request = self.http.post(url).header("content-type", "application/wasm").body(bytes);
        let (_, body) = self.send(request).await?;
        parse(path, &body)
    }

    /// DELETE of `path`; the answer as JSON.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        let url = self.url(path)?;
        let (_, body) = self.send(self.http.delete(url)).await?;
        parse(path, &body)
    }

    /// POST of a JSON document; the answer as JSON.
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CliError> {
        let url = self.url(path)?;
        let (_, body) = self.send(self.http.post(url).json(body)).await?;
        parse(path, &body)
    }

    /// POST of an empty JSON document; the answer is a file.
    pub async fn post_for_file(&self, path: &str) -> Result<Vec<u8>, CliError> {
        let url = self.url(path)?;
        let (_, body) = self.send(self.http.post(url).json(&serde_json::json!({}))).await?;
        Ok(body)
    }

    /// Returns the address of a page of the server.
    pub fn page(&self, path: &str) -> Result<String, CliError> {
        self.url(path).map(String::from)
    }

    /// PUT or DELETE of `path` without a body; the answer has none.
    pub async fn change(&self, method: Method, path: &str) -> Result<(), CliError> {
        let url = self.url(path)?;
        self.send(self.http.request(method, url)).await.map(drop)
    }

    /// The management node that answered last.
    fn base(&self) -> &Url {
        let at = self.current.load(Ordering::Relaxed);
        self.bases.get(at).unwrap_or(&self.bases[0])
    }

    fn url(&self, path: &str) -> Result<Url, CliError> {
        self.base().join(path).map_err(|e| CliError::Usage(format!("--server: {e}")))
    }

    /// Sends a request; again while the management node has no leader to pass it on to, for as long as an
    /// election takes.
    fn send(&self, request: RequestBuilder) -> BoxFuture<'_, Result<(StatusCode, Vec<u8>), CliError>> {
        self.send_until(Instant::now() + ELECTION, request).boxed()
    }

    async fn send_until(
        &self,
        until: Instant,
        mut request: RequestBuilder,
    ) -> Result<(StatusCode, Vec<u8>), CliError> {
        loop {
            let again = request.try_clone().filter(|_| Instant::now() < until);
            match (self.send_once(request).await?, again) {
                (Answer { again_after: Some(pause), .. }, Some(next)) => {
                    tokio::time::sleep(pause.min(ELECTION)).await;
                    request = next;
                }
                (Answer { status, body, .. }, _) if status.is_success() => return Ok((status, body)),
                (Answer { status, body, .. }, _) => return Err(self.refused(status, &body)),
            }
        }
    }

    async fn send_once(&self, request: RequestBuilder) -> Result<Answer, CliError> {
        let mut response = self.send_anywhere(request).await?;
        let status = response.status();
        let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let again_after =
            seconds.filter(|_| status == StatusCode::SERVICE_UNAVAILABLE).map(Duration::from_secs);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.no_answer(&e))? {
            if body.len() + chunk.len() > BODY_LEN_MAX {
                return Err(CliError::Protocol(format!("{} answered with more than 64 MiB", self.base())));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, again_after, body })
    }

    /// Sends a request to the management node that answered last, else to the next ones: what reads, if there
    /// is no answer; what changes something, only if there was no connection.
    async fn send_anywhere(&self, request: RequestBuilder) -> Result<reqwest::Response, CliError> {
        let (http, request) = request.build_split();
        let request = request.map_err(|error| CliError::Usage(format!("--server: {error}")))?;
        let (first, count) = (self.current.load(Ordering::Relaxed), self.bases.len());
        for step in 0..count {
            let at = (first + step) % count;
            let Some(mut copy) = request.try_clone() else { break };
            move_to(copy.url_mut(), &self.bases[at]);
            let reads = matches!(*copy.method(), Method::GET | Method::HEAD);
            match http.execute(copy).await {
                Ok(response) => {
                    self.current.store(at, Ordering::Relaxed);
                    return Ok(response);
                }
                Err(error) if step + 1 < count && (error.is_connect() || reads) => {}
                Err(error) => {
                    self.current.store(at, Ordering::Relaxed);
                    return Err(self.no_answer(&error));
                }
            }
        }
        Err(CliError::Unavailable("no management node answers".to_owned()))
    }

    fn no_answer(&self, error: &reqwest::Error) -> CliError {
        // reqwest's own text hides the cause ("Connection refused") in the source chain.
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let why = if error.is_timeout() { "no answer in time".to_owned() } else { cause.to_string() };
        CliError::Unavailable(format!(
            "the management node at {} does not answer: {why}; is csp-mgmt-node running there, and is --server right?",
            self.base()
        ))
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> CliError {
        let Ok(body) = serde_json::from_slice::<ErrorBody>(body) else {
            return CliError::Protocol(format!(
                "{} answered {status}; is it a CSP management node?",
                self.base()
            ));
        };
        match status {
            StatusCode::BAD_REQUEST if !body.errors.is_empty() => CliError::BadPolicy(body.errors),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TEMPORARY_REDIRECT => {
                CliError::Unavailable(body.error)
            }
            StatusCode::PRECONDITION_FAILED => CliError::NotNow(body.error),
            StatusCode::INTERNAL_SERVER_ERROR => CliError::Protocol(body.error),
            _ => CliError::Failed(body.error),
        }
    }
}

/// Reads the URL of a management node.
fn base(server: &str) -> Result<Url, CliError> {
    let wrong = |why: String| {
        CliError::Usage(format!(
            "--server (or CSP_SERVER) `{server}`: {why}; it must look like https://10.77.0.4:9104"
        ))
    };
    let base = Url::parse(server).map_err(|e| wrong(e.to_string()))?;
    match matches!(base.scheme(), "http" | "https") && base.host_str().is_some() {
        true => Ok(base),
        false => Err(wrong("not an https URL".into())),
    }
}

/// Sends a URL to another host of the same scheme.
fn move_to(url: &mut Url, base: &Url) {
    // Neither fails for http and https.
    let _ = url.set_host(base.host_str());
    let _ = url.set_port(base.port());
}

fn parse<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(body).map_err(|e| {
        CliError::Protocol(format!("the answer to {path} is not understood: {e}; do the releases match?"))
    })
}

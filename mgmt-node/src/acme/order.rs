//! The course of one order (RFC 8555 §7.1.6).
//!
//! ```text
//!  account ─▶ order ─▶ challenges ─▶ every proxy answers them ─▶ "ready" ─▶ valid ─▶ CSR ─▶ certificate
//!                          └─────────── withdrawn at the end, however it ends ────────────┘
//! ```
//! The private key is made here and stored with the certificate: an order that ends in the middle leaves
//! nothing behind but what the authority forgets by itself.

use std::time::Duration;

use csp_api::certificates::{Bundle, HttpChallenge, Ordered, StoredCertificate, TlsChallenge};
use csp_daemon::issued;
use csp_policy::AcmeChallenge;
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};

/// How long an authority may take to look, and to issue.
const WAIT: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));
/// How long one order may take.
pub const ORDER_TIMEOUT: Duration = Duration::from_secs(360);

/// The challenges of an order.
#[derive(Debug, Default)]
pub struct Asked {
    /// By requests.
    pub http: Vec<HttpChallenge>,
    /// By handshakes.
    pub tls: Vec<TlsChallenge>,
}

/// Where challenges are answered.
pub trait Answers {
    /// Returns once every proxy answers the challenges.
    fn publish(&self, asked: Asked) -> impl Future<Output = Result<(), String>> + Send;
}

/// Obtains a certificate for names. Challenges stay published; the caller withdraws them.
pub async fn obtain(
    account: &Account,
    answers: &impl Answers,
    (names, kind): (&[String], AcmeChallenge),
) -> Result<Bundle, Error> {
    let identifiers: Vec<Identifier> = names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&identifiers)).await?;
    if order.state().status == OrderStatus::Pending {
        let asked = challenges(&mut order, kind).await?;
        answers.publish(asked).await.map_err(|error| Error::Other(error.into()))?;
        set_ready(&mut order, kind).await?;
        match order.poll_ready(&WAIT).await {
            Ok(OrderStatus::Ready | OrderStatus::Valid) => {}
            Ok(_) => return Err(refusal(&mut order, "the authority refuses the order".to_owned()).await),
            Err(error) => return Err(refusal(&mut order, error.to_string()).await),
        }
    }
    let other = |error: rcgen::Error| Error::Other(error.into());
    let key = KeyPair::generate().map_err(other)?;
    let mut params = CertificateParams::new(names.to_vec()).map_err(other)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let csr = params.serialize_request(&key).map_err(other)?;
    order.finalize_csr(csr.der()).await?;
    let chain = order.poll_certificate(&WAIT).await?;
    Ok(Bundle { chain, key: key.serialize_pem(), ordered: Ordered::default() })
}

fn kind_of(kind: AcmeChallenge) -> ChallengeType {
    match kind {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
    }
}

/// Returns what is to be answered for the names that the authority does not know to be ours.
async fn challenges(order: &mut Order, kind: AcmeChallenge) -> Result<Asked, Error> {
    let mut asked = Asked::default();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            _ => return Err(Error::Str("the authority has refused a name before")),
        }
        let name = match authorization.identifier().identifier {
            Identifier::Dns(name) => name.clone(),
            _ => return Err(Error::Str("the authority asks for what is no name")),
        };
        let challenge = authorization.challenge(kind_of(kind));
        let challenge = challenge.ok_or_else(|| {
            Error::Other(format!("the authority does not offer {} for {name}", kind.as_str()).into())
        })?;
        let authorization = challenge.key_authorization();
        match kind {
            AcmeChallenge::Http01 => asked.http.push(HttpChallenge {
                token: challenge.token.clone(),
                authorization: authorization.as_str().to_owned(),
            }),
            AcmeChallenge::TlsAlpn01 => {
                let bundle = certificate(&name, authorization.digest().as_ref())?;
                asked.tls.push(TlsChallenge { name, bundle });
            }
        }
    }
    Ok(asked)
}

/// Makes the certificate that proves a name (RFC 8737 §3).
fn certificate(name: &str, digest: &[u8]) -> Result<Bundle, Error> {
    let other = |error: rcgen::Error| Error::Other(error.into());
    if digest.len() != 32 {
        return Err(Error::Str("the digest of a challenge has not 32 bytes"));
    }
    let key = KeyPair::generate().map_err(other)?;
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(other)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let made = params.self_signed(&key).map_err(other)?;
    Ok(Bundle { chain: made.pem(), key: key.serialize_pem(), ordered: Ordered::default() })
}

/// Tells the authority that it may look.
async fn set_ready(order: &mut Order, kind: AcmeChallenge) -> Result<(), Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = authorization.challenge(kind_of(kind))
        {
            challenge.set_ready().await?;
        }
    }
    Ok(())
}

/// Returns what the authority says of the names that it refuses.
async fn refusal(order: &mut Order, otherwise: String) -> Error {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else { continue };
        let errors = state.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(errors.map(ToString::to_string));
    }
    let text = if reasons.is_empty() { otherwise } else { reasons.join("; ") };
    Error::Other(text.into())
}

/// Returns the order of a certificate that was issued just now: later than that of the one that is there.
pub fn ordered(former: Option<&StoredCertificate>, directory: &str, now_s: i64) -> Ordered {
    let at_s = former.map_or(0, |former| former.ordered_s(now_s).saturating_add(1)).max(now_s);
    Ordered { at_s, directory: directory.into() }
}

/// Checks that what was issued may be used in place of what is there.
pub fn check(name: &str, names: &[String], bundle: &Bundle, now_s: i64) -> Result<StoredCertificate, String> {
    let new =
        issued::read(name, bundle).map_err(|error| format!("what the authority has issued: {error}"))?;
    if !new.is_for(names) {
        let text: Vec<&str> = new.names.iter().map(|name| &**name).collect();
        return Err(format!("the authority has issued a certificate for {}", text.join(" ")));
    }
    if new.not_after_s <= now_s {
        return Err("the authority has issued a certificate that has ended".to_owned());
    }
    Ok(new)
}

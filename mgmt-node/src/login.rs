//! Logins of browsers: the holder of a certificate asks for a link, the page exchanges it for a session's
//! cookie.
//!
//! ```text
//! cspctl login --(certificate)-- POST /api/v1/login ---> secret of a link, 60 s
//! browser ----- GET /login#SECRET ----> page            (the part after # is never sent)
//! page -------- POST /api/v1/login/link {SECRET} -----> whose link it is: the page asks its reader
//! reader: yes - POST /api/v1/login/redeem {SECRET} ---> cookie, 8 h; the secret is used up
//! ```
//! The page asks, since a link may be another person's, who wants the reader to act in that person's name
//! (login CSRF). Redeeming names the identity that was shown.
//!
//! A session ends with the certificate of whoever asked for it: when that expires, or is revoked. Sessions
//! are kept by one management node, in memory. Links and sessions are bounded, in all and for each person; a
//! person's newest replaces the oldest. Secrets are kept as hashes only.
//!
//! Cookies know no ports: a server at another port of this host receives the cookie too, if the browser
//! trusts its certificate. Whoever may run one there is trusted with the host anyway.

mod routes;
mod table;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use csp_identity::{Access, Caller, Credentials, IdentityRole, Peer, UnixTime};
use csp_telemetry::{MetricSource, MetricWriter};

pub use routes::{SessionAge, routes, sessions};
use table::{Full, Grant, Table};

/// How long a link can be used.
pub const LINK_LIFE: Duration = Duration::from_secs(60);
/// How long a session lasts at most.
pub const SESSION_LIFE: Duration = Duration::from_secs(8 * 3600);
/// Links and sessions at once: in all, and of these for one person.
const EACH_MAX: (usize, usize) = (1000, 16);

/// The links and sessions of this node.
#[derive(Debug)]
pub struct Logins {
    credentials: Option<Credentials>,
    start: Instant,
    tables: Mutex<Tables>,
}

#[derive(Debug)]
struct Tables {
    links: Table,
    sessions: Table,
}

/// Why somebody gets no link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum LoginError {
    #[error(
        "this management node has no identity and serves its own host only, where the page needs no login"
    )]
    NotNeeded,
    #[error("a session cannot open another one; use `cspctl login` with your certificate")]
    Session,
    #[error("{0} is no person's certificate; sessions are for viewers, operators and admins")]
    NoPerson(String),
    #[error("too many links or sessions are open; try again in a minute")]
    Full,
}

impl From<Full> for LoginError {
    fn from(Full: Full) -> Self {
        LoginError::Full
    }
}

impl Logins {
    /// Returns an empty set. Without credentials nobody needs a login.
    pub fn new(credentials: Option<Credentials>) -> Arc<Self> {
        let table = |life| Table::new(life, EACH_MAX.0, EACH_MAX.1);
        let tables = Tables { links: table(LINK_LIFE), sessions: table(SESSION_LIFE) };
        Arc::new(Logins { credentials, start: Instant::now(), tables: Mutex::new(tables) })
    }

    /// Makes a link for the caller, who may do at least this; returns its secret.
    fn link(&self, caller: &Caller, access: Access) -> Result<String, LoginError> {
        let peer = match caller {
            Caller::Peer(peer) => peer,
            Caller::Session { .. } => return Err(LoginError::Session),
            Caller::Local | Caller::Anonymous => return Err(LoginError::NotNeeded),
        };
        if !matches!(peer.identity.role, IdentityRole::Viewer | IdentityRole::Operator | IdentityRole::Admin)
        {
            return Err(LoginError::NoPerson(peer.identity.to_string()));
        }
        let grant = Grant { issuer: peer.clone(), access };
        Ok(self.tables().links.add(grant, self.now())?)
    }

    /// Returns what a link grants, without using it up. `None` as in [`redeem`](Self::redeem).
    fn look(&self, secret: &str) -> Option<Grant> {
        let grant = self.tables().links.find(secret, self.now());
        grant.filter(|grant| self.accepts(&grant.issuer))
    }

    /// Opens a session for a link's secret, and returns the session's secret. `None` if no link has this
    /// secret, if it is not `identity`'s, if the link was used or is too old, or if its issuer's certificate
    /// is not accepted any longer.
    fn redeem(&self, secret: &str, identity: &str) -> Option<(String, Grant)> {
        let now = self.now();
        self.look(secret).filter(|grant| grant.issuer.identity.to_string() == identity)?;
        let grant = self.tables().links.take(secret, now)?;
        let session = self.tables().sessions.add(grant.clone(), now).ok()?;
        Some((session, grant))
    }

    /// Whether browsers reach this node by https.
    pub fn is_secure(&self) -> bool {
        self.credentials.is_some()
    }

    /// Returns the caller that has this session's secret, and the session's age. Ends the session if its
    /// issuer is not accepted any longer.
    fn session(&self, secret: &str) -> Option<(Caller, Duration)> {
        let now = self.now();
        let Grant { issuer, access } = self.tables().sessions.find(secret, now)?;
        // Verified without the lock: it takes a while.
        if !self.accepts(&issuer) {
            tracing::info!(issuer = %issuer.identity, "a page's session ends: its issuer's certificate is not accepted");
            self.tables().sessions.take(secret, now);
            return None;
        }
        let age = self.tables().sessions.age(secret, now)?;
        Some((Caller::Session { issuer, access }, age))
    }

    /// Ends a session.
    fn end(&self, secret: &str) {
        self.tables().sessions.take(secret, self.now());
    }

    /// Whether a certificate would be accepted by TLS now.
    fn accepts(&self, peer: &Peer) -> bool {
        let credentials = self.credentials.as_ref();
        credentials.is_some_and(|credentials| credentials.verify_client(peer, UnixTime::now()).is_ok())
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// The number of sessions, at each scrape.
#[derive(Debug)]
pub struct LoginMetrics(pub Arc<Logins>);

impl MetricSource for LoginMetrics {
    fn collect(&self, out: &mut MetricWriter) {
        let sessions = self.0.tables().sessions.len(self.0.now());
        out.gauge("csp_mgmt_sessions", "Browsers' sessions that have not ended by age", &[], sessions as f64);
    }
}

//! Authorisation of requests.

use axum::Json;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use csp_identity::{Access, Caller};
use serde_json::json;

/// The answer to a caller that lacks the required access level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// 401 for a caller without an identity, 403 for one with an insufficient role.
    pub status: StatusCode,
    /// The reason, and what would be accepted.
    pub error: String,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.error }))).into_response()
    }
}

/// Returns an error if the caller lacks the access level `access`.
pub fn require(caller: &Caller, access: Access) -> Result<(), Refused> {
    if caller.may(access) {
        return Ok(());
    }
    let role = access.as_str();
    Err(match caller.identity() {
        None => Refused {
            status: StatusCode::UNAUTHORIZED,
            error: format!(
                "a certificate of this cluster for the role {role} is needed; `cspctl pki issue` makes one"
            ),
        },
        Some(identity) => {
            let error = format!("{identity} may not do this; the role {role} is needed");
            Refused { status: StatusCode::FORBIDDEN, error }
        }
    })
}

/// Middleware that passes on requests of viewers and rejects others.
pub(super) async fn viewers(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    match require(&caller, Access::Viewer) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

//! Who may use a route.

use axum::Json;
use axum::extract::{Extension, Request};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use csp_identity::{Access, Caller};
use serde_json::json;

/// A caller who may not do what it asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// 401 for a caller without a name, 403 for one whose role does not suffice.
    pub status: StatusCode,
    /// What is wrong, and what would be right.
    pub error: String,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.error }))).into_response()
    }
}

/// Refuses callers who may not do this.
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

/// Passes viewers' requests on.
pub(super) async fn viewers(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    match require(&caller, Access::Viewer) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

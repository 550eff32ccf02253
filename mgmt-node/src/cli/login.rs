//! `cspctl login`.

use serde::Serialize;

use csp_api::mgmt::{LoginRequest, LoginView};

use super::Context;
use super::args::LoginRole;
use super::error::CliError;

/// `cspctl login -o json`.
#[derive(Serialize)]
struct Link {
    /// Address of the page, with the secret.
    url: String,
    /// Role of the session.
    role: String,
    /// How long the link can be used, in seconds.
    expires_in_s: u64,
}

/// Asks for a link and prints it.
pub(super) async fn login(context: &Context, role: LoginRole) -> Result<(), CliError> {
    let role = match role {
        LoginRole::Viewer => "viewer",
        LoginRole::Operator => "operator",
    };
    let asked = LoginRequest { role: role.to_owned() };
    let LoginView { path, role, expires_in_s } = context.client.post_json("/api/v1/login", &asked).await?;
    let link = Link { url: context.client.page(&path)?, role, expires_in_s };
    context.show(&link, |link| format!("{}\n", link.url))
}

//! Operations of nodes that answer with a body, and refuse with a reason.

use std::time::Duration;

use reqwest::Url;

use super::{AskError, Fanout, REASON_LEN_MAX, Target, cause};
use crate::limits::FANOUT_BODY_LEN_MAX;
use csp_api::mgmt::ErrorBody;

/// What is asked for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// GET with a query.
    Read(Vec<(String, String)>),
    /// PUT of a JSON document.
    Change(String),
}

impl Fanout {
    /// Has a node execute something, which may take so long. Returns the body; an error with its reason if it
    /// refuses.
    pub async fn call(
        &self,
        target: &Target,
        path: &[&str],
        asked: Asked,
        timeout: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let wrong = || AskError::Address(target.admin.clone());
        let mut url = Url::parse(&target.admin).map_err(|_| wrong())?;
        // Names of a request become parts of a path, whatever is in them.
        url.path_segments_mut().map_err(|()| wrong())?.clear().extend(path);
        let no_answer = |error: reqwest::Error| AskError::NoAnswer(cause(&error, timeout));
        let _slot = self.slow_slots.acquire().await.map_err(|e| AskError::NoAnswer(e.to_string()))?;
        let client = self.client(target)?;
        let request = match asked {
            Asked::Read(query) => client.get(url).query(&query),
            Asked::Change(json) => {
                client.put(url).header(reqwest::header::CONTENT_TYPE, "application/json").body(json)
            }
        };
        let mut response = request.timeout(timeout).send().await.map_err(no_answer)?;
        let status = response.status();
        let most = if status.is_success() { FANOUT_BODY_LEN_MAX } else { REASON_LEN_MAX as usize };
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(no_answer)? {
            if body.len() + chunk.len() > most {
                return Err(AskError::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return Ok(body);
        }
        let reason = serde_json::from_slice::<ErrorBody>(&body).ok();
        Err(reason.map_or(AskError::Status(status.as_u16()), |body| AskError::Refused(body.error.into())))
    }
}

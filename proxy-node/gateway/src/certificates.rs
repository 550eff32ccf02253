//! The fields in which the gateway passes a client's certificate on to members.

use std::sync::Arc;

use csp_http::forward::Extra;
use csp_proxy_core::ClientIdentity;

/// The fields that members get. None of them is ever passed on from a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CertificateFields {
    /// `Client-Cert` (RFC 9440): the certificate.
    pub client_cert: bool,
    /// `X-SSL-Client-Verify` (SUCCESS or NONE), `-Subject`, `-Issuer` and `-Serial`.
    pub x_ssl: bool,
}

impl CertificateFields {
    /// Returns whether there are any.
    pub(crate) fn any(self) -> bool {
        self.client_cert || self.x_ssl
    }

    /// Returns the fields of a request of this client.
    pub(crate) fn of(self, client: Option<&Arc<ClientIdentity>>) -> ([Extra<'_>; FIELDS_MAX], usize) {
        let (mut fields, mut len) = ([(&b""[..], &b""[..]); FIELDS_MAX], 0);
        let named = client.map(|client| [&client.subject, &client.issuer, &client.serial]);
        let mut put = |field| {
            if let Some(place) = fields.get_mut(len) {
                (*place, len) = (field, len + 1);
            }
        };
        if let Some(client) = client.filter(|_| self.client_cert) {
            put((b"Client-Cert", client.certificate.as_bytes()));
        }
        if self.x_ssl {
            let verified: &[u8] = if client.is_some() { b"SUCCESS" } else { b"NONE" };
            put((b"X-SSL-Client-Verify", verified));
            for (name, value) in X_SSL.into_iter().zip(named.into_iter().flatten()) {
                put((name, value.as_bytes()));
            }
        }
        (fields, len)
    }
}

/// Most fields of a request.
const FIELDS_MAX: usize = 5;
/// The names of what a certificate says.
const X_SSL: [&[u8]; 3] = [b"X-SSL-Client-Subject", b"X-SSL-Client-Issuer", b"X-SSL-Client-Serial"];

//! Parses certificates and revocation lists in the folder.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::{Serial, Timestamp};

/// The fields of a certificate that this crate uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Inspected {
    /// Serial number; `None` if it does not have the form of this crate's serial numbers.
    #[serde(serialize_with = "crate::registry::text::serialize_option")]
    pub serial: Option<Serial>,
    /// Common name of the subject.
    pub common_name: String,
    /// Beginning of the validity.
    pub not_before: Timestamp,
    /// End of the validity, inclusive.
    pub not_after: Timestamp,
    /// URIs among the subject alternative names.
    pub uris: BTreeSet<String>,
    /// Addresses among the subject alternative names.
    pub addresses: BTreeSet<IpAddr>,
    /// DNS names among the subject alternative names.
    pub names: BTreeSet<String>,
    /// Whether it may sign certificates.
    pub authority: bool,
    /// The public key as SubjectPublicKeyInfo, DER.
    #[serde(skip)]
    pub(crate) public_key: Vec<u8>,
}

impl Inspected {
    /// Parses the first certificate of a PEM text. The error completes a sentence that begins with the file's
    /// name.
    pub fn from_pem(pem: &str) -> Result<Self, String> {
        let block = first_block(pem, "CERTIFICATE")?;
        let certificate = parse(&block)?;
        let mut found = Inspected {
            serial: Serial::from_octets(certificate.raw_serial()),
            common_name: common_name(&certificate)?,
            not_before: Timestamp::from_unix_s(certificate.validity().not_before.timestamp()),
            not_after: Timestamp::from_unix_s(certificate.validity().not_after.timestamp()),
            uris: BTreeSet::new(),
            addresses: BTreeSet::new(),
            names: BTreeSet::new(),
            authority: certificate.is_ca(),
            public_key: certificate.public_key().raw.to_vec(),
        };
        let names = certificate
            .subject_alternative_name()
            .map_err(|e| format!("its subject alternative names: {e}"))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            found.add(name)?;
        }
        Ok(found)
    }

    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), String> {
        match name {
            GeneralName::URI(uri) => self.uris.insert((*uri).to_owned()),
            GeneralName::DNSName(name) => self.names.insert((*name).to_owned()),
            GeneralName::IPAddress(octets) => self.addresses.insert(address(octets)?),
            other => return Err(format!("it has a name of another kind ({other})")),
        };
        Ok(())
    }
}

/// Checks that the first certificate of a PEM text is signed by its own key.
pub(crate) fn check_self_signed(pem: &str) -> Result<(), String> {
    let block = first_block(pem, "CERTIFICATE")?;
    parse(&block)?.verify_signature(None).map_err(|_| "its signature is wrong".to_owned())
}

/// The fields of a revocation list that this crate uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InspectedList {
    /// Its number; `None` if it is missing or out of range.
    pub(crate) number: Option<u64>,
    pub(crate) this_update: Timestamp,
    /// Common name of the authority.
    pub(crate) issuer: String,
}

/// Parses all revocation lists of a PEM text, at most `most`.
pub(crate) fn revocation_lists(pem: &str, most: usize) -> Result<Vec<InspectedList>, String> {
    let blocks = Pem::iter_from_buffer(pem.as_bytes()).take(most + 1);
    blocks
        .map(|block| {
            let block = block.map_err(|e| format!("it is no PEM: {e}"))?;
            let (_, list) = CertificateRevocationList::from_der(&block.contents)
                .map_err(|_| "it has something else than revocation lists".to_owned())?;
            let issuer = list.issuer().iter_common_name().next().and_then(|name| name.as_str().ok());
            Ok(InspectedList {
                number: list.crl_number().and_then(|number| u64::try_from(number).ok()),
                this_update: Timestamp::from_unix_s(list.last_update().timestamp()),
                issuer: issuer.unwrap_or_default().to_owned(),
            })
        })
        .collect()
}

fn first_block(pem: &str, label: &str) -> Result<Pem, String> {
    let block = Pem::iter_from_buffer(pem.as_bytes()).next();
    let block = block.ok_or("it is empty")?.map_err(|e| format!("it is no PEM: {e}"))?;
    match block.label == label {
        true => Ok(block),
        false => Err(format!("it has a {}, not a {label}", block.label.escape_debug())),
    }
}

fn parse(block: &Pem) -> Result<X509Certificate<'_>, String> {
    match X509Certificate::from_der(&block.contents) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err("octets follow its certificate".to_owned()),
        Err(error) => Err(format!("it is no certificate: {error}")),
    }
}

fn common_name(certificate: &X509Certificate<'_>) -> Result<String, String> {
    let mut names = certificate.subject().iter_common_name();
    match (names.next().and_then(|name| name.as_str().ok()), names.next()) {
        (Some(name), None) => Ok(name.to_owned()),
        _ => Err("its subject has not one common name".to_owned()),
    }
}

fn address(octets: &[u8]) -> Result<IpAddr, String> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| v6()).map_err(|_| format!("it has an address of {} octets", octets.len()))
}

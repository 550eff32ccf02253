//! Compares the revocation lists of a folder with those of its successor. A list that is missing or older
//! would undo revocations.

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// The trusted authorities, and the number of each one's revocation list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revocations {
    /// Subjects of the trusted authorities, in DER.
    authorities: Vec<Vec<u8>>,
    /// Issuers of the lists (DER) with the lists' numbers (RFC 5280 §5.2.3), big-endian.
    lists: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Revocations {
    pub(crate) fn of(
        authorities: &[CertificateDer<'_>],
        lists: &[CertificateRevocationListDer<'_>],
    ) -> Result<Self, String> {
        let subject = |der: &CertificateDer<'_>| {
            let (_, authority) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
            Ok(authority.subject().as_raw().to_vec())
        };
        let list = |der: &CertificateRevocationListDer<'_>| {
            let (_, list) = CertificateRevocationList::from_der(der).map_err(|error| error.to_string())?;
            let number = list.crl_number().map(|number| number.to_bytes_be()).unwrap_or_default();
            Ok((list.issuer().as_raw().to_vec(), number))
        };
        let authorities = authorities.iter().map(subject).collect::<Result<_, String>>()?;
        Ok(Revocations { authorities, lists: lists.iter().map(list).collect::<Result<_, String>>()? })
    }

    /// Rejects `next` if the list of an authority that both trust is missing there, or is older than here.
    pub(crate) fn precede(&self, next: &Revocations) -> Result<(), String> {
        for (issuer, number) in self.lists.iter().filter(|(issuer, _)| next.authorities.contains(issuer)) {
            let now = next.lists.iter().find(|(other, _)| other == issuer);
            // Numbers have no leading zeros, so that the longer one is larger.
            let key = |number: &Vec<u8>| (number.len(), number.clone());
            match now {
                None => return Err("lacks the list of an authority that is still trusted".to_owned()),
                Some((_, now)) if key(now) < key(number) => {
                    return Err("has an older list than the one in force".to_owned());
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

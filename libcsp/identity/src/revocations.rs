//! Revocation lists, as far as one folder is compared with the next: a list that is lost or replaced by an older one would
//! take revocations back.

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// The authorities that are trusted, and the number of each one's list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revocations {
    /// Subjects of the authorities (DER).
    authorities: Vec<Vec<u8>>,
    /// Issuers of lists (DER) with the lists' numbers (RFC 5280 5.2.3), big-endian.
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

    /// Refuses `next` if it lacks the list of an authority that is trusted still, or has an older one.
    pub(crate) fn precede(&self, next: &Revocations) -> Result<(), String> {
        for (issuer, number) in self.lists.iter().filter(|(issuer, _)| next.authorities.contains(issuer)) {
            let now = next.lists.iter().find(|(other, _)| other == issuer);
            // Numbers without leading zeros: the longer one is larger.
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

//! The key and certificate of one authority, and what it signs. Pure: takes times and names, returns PEM.

use std::time::Duration;

use csp_identity::{Identity, IdentityRole};
use csp_types::NodeId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, RevokedCertParams, SanType, SerialNumber,
};

use crate::inspect::{Inspected, check_self_signed};
use crate::registry::{AuthorityRecord, CertificateRecord};
use crate::{AuthorityState, Request, Serial, Timestamp};

/// How far in the past the validity of certificates begins, so that hosts whose clocks are late accept them
/// at once.
const BACKDATED: Duration = Duration::from_secs(300);
/// Validity of a revocation list.
const LIST_LIFETIME: Duration = Duration::from_secs(30 * 86_400);

/// An authority with its private key.
pub(crate) struct Signer {
    pub(crate) record: AuthorityRecord,
    /// Its certificate.
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A new certificate and its key.
pub(crate) struct Signed {
    pub(crate) record: CertificateRecord,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("record", &self.record).finish_non_exhaustive()
    }
}

impl Signer {
    /// Creates a new authority.
    pub(crate) fn generate(
        cluster: NodeId,
        number: u32,
        state: AuthorityState,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let (not_before, not_after) = (now.minus(BACKDATED), now.plus(lifetime));
        let record = AuthorityRecord { number, state, serial: Serial::random(), not_before, not_after };
        let params = authority_params(cluster, &record);
        let pem = params.self_signed(&key)?.pem();
        Ok(Signer { record, pem, issuer: Issuer::new(params, key) })
    }

    /// Loads an authority from its files. The error begins with the name of the file that is wrong.
    pub(crate) fn load(
        cluster: NodeId,
        record: AuthorityRecord,
        certificate_pem: String,
        key_pem: &str,
    ) -> Result<Self, Misfit> {
        let found = Inspected::from_pem(&certificate_pem).map_err(Misfit::Certificate)?;
        let wrong = |problem: String| Err(Misfit::Certificate(problem));
        let name = common_name(cluster, record.number);
        if found.common_name != name {
            return wrong(format!("it is of `{}`, not of `{name}`", found.common_name.escape_debug()));
        }
        let validity = (found.not_before, found.not_after) == (record.not_before, record.not_after);
        if !found.authority || found.serial != Some(record.serial) || !validity {
            return wrong("it is not the certificate that pki.json describes".to_owned());
        }
        check_self_signed(&certificate_pem).map_err(Misfit::Certificate)?;
        let key = KeyPair::from_pkcs8_pem_and_sign_algo(key_pem, &PKCS_ECDSA_P256_SHA256)
            .map_err(|e| Misfit::Key(format!("it is no ECDSA P-256 key in PKCS#8 form: {e}")))?;
        if key.subject_public_key_info() != found.public_key {
            return Err(Misfit::Key("it belongs to another certificate".to_owned()));
        }
        let issuer = Issuer::new(authority_params(cluster, &record), key);
        Ok(Signer { record, pem: certificate_pem, issuer })
    }

    /// Returns the authority's private key in PEM, to be stored.
    pub(crate) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Creates a key and a certificate. The caller has checked the request, and that the certificate does not
    /// outlive the authority.
    pub(crate) fn sign(
        &self,
        identity: Identity,
        request: &Request,
        now: Timestamp,
    ) -> Result<Signed, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let record = CertificateRecord {
            serial: Serial::random(),
            role: identity.role,
            id: identity.id,
            authority: self.record.number,
            not_before: now.minus(BACKDATED).max(self.record.not_before),
            not_after: now.plus(request.lifetime),
            revoked_at: None,
        };
        let mut names = vec![SanType::URI(identity.to_string().try_into()?)];
        names.extend(request.addresses.iter().map(|address| SanType::IpAddress(*address)));
        for name in &request.names {
            names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        let mut params = CertificateParams::default();
        params.not_before = record.not_before.date();
        params.not_after = record.not_after.date();
        params.serial_number = Some(SerialNumber::from_slice(record.serial.octets()));
        params.distinguished_name = distinguished_name(&identity.common_name());
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages(identity.role);
        params.use_authority_key_identifier_extension = true;
        let certificate_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Signed { record, certificate_pem, key_pem: key.serialize_pem() })
    }

    /// Creates the list of revoked certificates (RFC 5280 §5).
    pub(crate) fn revocation_list(
        &self,
        number: u64,
        revoked: impl Iterator<Item = (Serial, Timestamp)>,
        now: Timestamp,
    ) -> Result<String, rcgen::Error> {
        let entry = |(serial, at): (Serial, Timestamp)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial.octets()),
            revocation_time: at.date(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            // Backdated like certificates, since a list from the future is invalid (RFC 5280 §6.3.3).
            this_update: now.minus(BACKDATED).date(),
            next_update: now.plus(LIST_LIFETIME).date(),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked.map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer)?.pem()
    }
}

/// A file of an authority that does not match the others, with the reason.
pub(crate) enum Misfit {
    Certificate(String),
    Key(String),
}

/// Returns the common name of an authority.
pub(crate) fn common_name(cluster: NodeId, number: u32) -> String {
    format!("{cluster} CA {number}")
}

/// Returns whether `key_pem` is the private key of a certificate with this public key.
pub(crate) fn is_key_of(key_pem: &str, certificate: &Inspected) -> bool {
    let key = KeyPair::from_pkcs8_pem_and_sign_algo(key_pem, &PKCS_ECDSA_P256_SHA256);
    key.is_ok_and(|key| key.subject_public_key_info() == certificate.public_key)
}

fn authority_params(cluster: NodeId, record: &AuthorityRecord) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = record.not_before.date();
    params.not_after = record.not_after.date();
    params.serial_number = Some(SerialNumber::from_slice(record.serial.octets()));
    params.distinguished_name = distinguished_name(&common_name(cluster, record.number));
    // It signs certificates of nodes and people only, not of subordinate authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Returns the extended key usages of a role: nodes and members of etcd act as server and client, people as
/// clients only.
fn usages(role: IdentityRole) -> Vec<ExtendedKeyUsagePurpose> {
    match role.serves() {
        true => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        false => vec![ExtendedKeyUsagePurpose::ClientAuth],
    }
}

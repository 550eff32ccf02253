//! The authority's folder as a whole: creating and opening it, issuing and revoking certificates.

use std::path::{Path, PathBuf};
use std::time::Duration;

use csp_identity::{CA, CERTIFICATE, IdentityRole, KEY, REVOKED};
use csp_types::NodeId;

use crate::files::{Folder, REGISTRY};
use crate::inspect::{Inspected, revocation_lists};
use crate::registry::{AuthorityRecord, CertificateRecord};
use crate::request::check_lifetime;
use crate::signer::{Misfit, Signer, common_name, is_key_of};
use crate::{AuthorityState, PkiError, Registry, Request, Timestamp};

/// Age at which revocation lists are renewed. They are valid for twice as long.
const LISTS_RENEWED_AFTER: Duration = Duration::from_secs(15 * 86_400);

/// An authority's folder, open for writing by this process alone.
#[derive(Debug)]
pub struct Authority {
    pub(crate) folder: Folder,
    pub(crate) registry: Registry,
    /// The trusted authorities in the order of their numbers.
    pub(crate) signers: Vec<Signer>,
}

/// The result of [`Authority::issue`].
#[derive(Clone, Debug)]
pub struct Issued {
    /// Whether a new certificate was made.
    pub changed: bool,
    /// Path of the identity folder.
    pub folder: PathBuf,
    /// The certificate in it.
    pub certificate: CertificateRecord,
}

/// The result of [`Authority::revoke`].
#[derive(Clone, Debug)]
pub struct Revoked {
    /// Whether a certificate was revoked that was not revoked before.
    pub changed: bool,
    /// All certificates of the owner.
    pub certificates: Vec<CertificateRecord>,
}

impl Authority {
    /// Creates the folder `dir` with a first authority that is valid for `lifetime`.
    pub fn create(dir: &Path, cluster: NodeId, lifetime: Duration, now: Timestamp) -> Result<Self, PkiError> {
        check_lifetime(lifetime)?;
        Authority::create_in(Folder::make(dir)?, cluster, lifetime, now)
    }

    pub(crate) fn create_in(
        folder: Folder,
        cluster: NodeId,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        if let Some(text) = folder.read(REGISTRY)? {
            let path = folder.path(REGISTRY);
            let registry = Registry::parse(&text).map_err(|problem| PkiError::Damaged { path, problem })?;
            return Err(PkiError::Exists { dir: folder.path(""), cluster: registry.cluster.to_string() });
        }
        let mut authority = Authority { folder, registry: Registry::new(cluster), signers: Vec::new() };
        authority.add_signer(AuthorityState::Issuing, lifetime, now)?;
        authority.settle(now)?;
        Ok(authority)
    }

    /// Opens the folder `dir`, completes an interrupted command, and renews revocation lists that are due.
    pub fn open(dir: &Path, now: Timestamp) -> Result<Self, PkiError> {
        Authority::open_in(Folder::open(dir)?, now)
    }

    pub(crate) fn open_in(folder: Folder, now: Timestamp) -> Result<Self, PkiError> {
        let registry = Registry::read(&folder.path(""))?;
        let signers = registry.trusted().map(|record| {
            let (certificate, key) = (certificate_file(record.number), key_file(record.number));
            let damaged = |name: &str, problem| PkiError::Damaged { path: folder.path(name), problem };
            let missing = |name: &str| damaged(name, "it is missing".to_owned());
            let certificate_pem = folder.read(&certificate)?.ok_or_else(|| missing(&certificate))?;
            let key_pem = folder.read_secret(&key)?.ok_or_else(|| missing(&key))?;
            Signer::load(registry.cluster, *record, certificate_pem, &key_pem).map_err(
                |misfit| match misfit {
                    Misfit::Certificate(problem) => damaged(&certificate, problem),
                    Misfit::Key(problem) => damaged(&key, problem),
                },
            )
        });
        let signers = signers.collect::<Result<Vec<Signer>, PkiError>>()?;
        let mut authority = Authority { folder, registry, signers };
        authority.settle(now)?;
        Ok(authority)
    }

    /// Returns the record of authorities and certificates.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Makes a certificate and its key, unless the owner has one that meets the request.
    pub fn issue(&mut self, request: &Request, now: Timestamp) -> Result<Issued, PkiError> {
        let request = request.checked()?;
        let owner = owner_folder(request.role, request.id);
        let folder = self.folder.path(&owner);
        if let Some(certificate) = self.standing(&request, now)?.filter(|_| !request.force) {
            return Ok(Issued { changed: false, folder, certificate });
        }
        let signer = self.issuing(request.lifetime, now)?;
        let identity = self.registry.identity(request.role, request.id);
        let signed = signer
            .sign(identity, &request, now)
            .map_err(|source| PkiError::Sign { what: request.owner(), source })?;
        // The record is written first: a certificate without one could not be revoked.
        self.registry.add(signed.record, now)?;
        self.write_registry()?;
        self.folder.make_folder(&owner)?;
        self.spread_to(&owner, &self.shared()?)?;
        self.folder.write_secret(&format!("{owner}/{KEY}"), &signed.key_pem)?;
        self.folder.write(&format!("{owner}/{CERTIFICATE}"), &signed.certificate_pem)?;
        Ok(Issued { changed: true, folder, certificate: signed.record })
    }

    /// Revokes all certificates of an owner, including replaced ones.
    pub fn revoke(&mut self, role: IdentityRole, id: NodeId, now: Timestamp) -> Result<Revoked, PkiError> {
        if self.registry.of(role, id).next().is_none() {
            return Err(PkiError::NotIssued { owner: format!("{role} {id}") });
        }
        let changed = self.registry.revoke(role, id, now);
        if changed {
            self.renew_lists(now)?;
            self.settle(now)?;
        }
        Ok(Revoked { changed, certificates: self.registry.of(role, id).copied().collect() })
    }

    /// Reads the certificate in an owner's identity folder; `None` if there is none.
    pub fn inspect(dir: &Path, role: IdentityRole, id: NodeId) -> Result<Option<Inspected>, PkiError> {
        let path = dir.join(owner_folder(role, id)).join(CERTIFICATE);
        let Some(pem) = crate::files::read(&path)? else { return Ok(None) };
        Inspected::from_pem(&pem).map(Some).map_err(|problem| PkiError::Damaged { path, problem })
    }

    /// Returns the certificate in the owner's folder if it meets the request, is valid for longer than
    /// `renew_before`, and the folder is complete.
    fn standing(&self, request: &Request, now: Timestamp) -> Result<Option<CertificateRecord>, PkiError> {
        let Some(record) = self.registry.of(request.role, request.id).next_back().copied() else {
            return Ok(None);
        };
        let current = record.is_live(now)
            && now >= record.not_before
            && self.registry.in_state(AuthorityState::Issuing) == Some(record.authority)
            && record.not_after.since(now) > request.renew_before();
        if !current {
            return Ok(None);
        }
        let owner = owner_folder(request.role, request.id);
        let read = |name: &str| self.folder.read(&format!("{owner}/{name}"));
        let (Some(certificate_pem), Some(key_pem)) = (read(CERTIFICATE)?, read(KEY)?) else {
            return Ok(None);
        };
        // A damaged certificate is replaced.
        let Ok(found) = Inspected::from_pem(&certificate_pem) else { return Ok(None) };
        let meets = found.serial == Some(record.serial)
            && found.addresses == request.addresses
            && found.names == request.names
            && is_key_of(&key_pem, &found);
        Ok(meets.then_some(record))
    }

    /// Returns the issuing authority if it is valid for as long as a certificate issued now.
    fn issuing(&self, lifetime: Duration, now: Timestamp) -> Result<&Signer, PkiError> {
        let issues = |signer: &&Signer| signer.record.state == AuthorityState::Issuing;
        // The registry has exactly one issuing authority, and a signer for each trusted one.
        let signer = self.signers.iter().find(issues).ok_or(PkiError::NotStarted)?;
        let AuthorityRecord { number: authority, not_before: begin, not_after: end, .. } = signer.record;
        let wanted = now.plus(lifetime);
        match () {
            () if now < begin => Err(PkiError::Clock { now, authority, begin }),
            () if wanted > end => Err(PkiError::OutlivesAuthority { authority, end, wanted }),
            () => Ok(signer),
        }
    }

    /// Creates an authority with the next number. Its files are written before the registry names it.
    pub(crate) fn add_signer(
        &mut self,
        state: AuthorityState,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<(), PkiError> {
        let number = self.registry.authorities.last().map_or(1, |last| last.number + 1);
        let cluster = self.registry.cluster;
        let signer = Signer::generate(cluster, number, state, lifetime, now)
            .map_err(|source| PkiError::Sign { what: common_name(cluster, number), source })?;
        self.folder.write_secret(&key_file(number), &signer.key_pem())?;
        self.folder.write(&certificate_file(number), &signer.pem)?;
        self.registry.authorities.push(signer.record);
        self.signers.push(signer);
        self.renew_lists(now)
    }

    pub(crate) fn write_registry(&self) -> Result<(), PkiError> {
        let path = self.folder.path(REGISTRY);
        let text = self.registry.text().map_err(|problem| PkiError::Damaged { path, problem })?;
        self.folder.write(REGISTRY, &text)
    }

    /// Returns the authorities, the issuing one first, since etcd reads only the first revocation list.
    fn issuing_first(&self) -> impl Iterator<Item = &Signer> {
        let issues = |signer: &&Signer| signer.record.state == AuthorityState::Issuing;
        let others = self.signers.iter().filter(move |signer| !issues(signer));
        self.signers.iter().filter(issues).chain(others)
    }

    /// Writes the registry, then new revocation lists with the next number.
    pub(crate) fn renew_lists(&mut self, now: Timestamp) -> Result<(), PkiError> {
        self.registry.list_number += 1;
        self.write_registry()?;
        let number = self.registry.list_number;
        let lists = self.issuing_first().map(|signer| {
            let what = format!("the revocation list of authority {}", signer.record.number);
            let revoked = self.registry.revoked(signer.record.number, now);
            signer.revocation_list(number, revoked, now).map_err(|source| PkiError::Sign { what, source })
        });
        let lists = lists.collect::<Result<String, PkiError>>()?;
        self.folder.write(REVOKED, &lists)
    }

    /// Updates all files that follow from the registry.
    pub(crate) fn settle(&mut self, now: Timestamp) -> Result<(), PkiError> {
        let trusted: String = self.signers.iter().map(|signer| signer.pem.as_str()).collect();
        self.write_if_other(CA, &trusted)?;
        if !self.lists_are_current(now)? {
            self.renew_lists(now)?;
        }
        let shared = self.shared()?;
        for (role, id) in self.registry.newest().into_keys() {
            let owner = owner_folder(role, id);
            if self.folder.path(&owner).is_dir() {
                self.spread_to(&owner, &shared)?;
            }
        }
        let retired = self.registry.authorities.iter().filter(|authority| !authority.state.is_trusted());
        retired.map(|authority| key_file(authority.number)).try_for_each(|key| self.folder.remove(&key))
    }

    /// Returns whether `revoked.pem` has the latest list of every trusted authority, and none is due for
    /// renewal.
    fn lists_are_current(&self, now: Timestamp) -> Result<bool, PkiError> {
        let Some(text) = self.folder.read(REVOKED)? else { return Ok(false) };
        let Ok(lists) = revocation_lists(&text, self.signers.len()) else { return Ok(false) };
        let current = |(signer, list): (&Signer, &crate::inspect::InspectedList)| {
            list.number == Some(self.registry.list_number)
                && list.issuer == common_name(self.registry.cluster, signer.record.number)
                && list.this_update <= now
                && now.since(list.this_update) < LISTS_RENEWED_AFTER
        };
        Ok(lists.len() == self.signers.len() && self.issuing_first().zip(&lists).all(current))
    }

    /// Returns the files that are copied into every identity folder: names and texts.
    fn shared(&self) -> Result<[(&'static str, String); 2], PkiError> {
        let text = |name| self.folder.read(name).map(|text| (name, text.unwrap_or_default()));
        Ok([text(CA)?, text(REVOKED)?])
    }

    /// Updates the copies in an identity folder.
    fn spread_to(&self, owner: &str, shared: &[(&str, String)]) -> Result<(), PkiError> {
        shared.iter().try_for_each(|(name, text)| self.write_if_other(&format!("{owner}/{name}"), text))
    }

    fn write_if_other(&self, name: &str, text: &str) -> Result<(), PkiError> {
        match self.folder.read(name) {
            Ok(Some(found)) if found == text => Ok(()),
            _ => self.folder.write(name, text),
        }
    }
}

pub(crate) fn certificate_file(number: u32) -> String {
    format!("ca-{number}.crt")
}

pub(crate) fn key_file(number: u32) -> String {
    format!("ca-{number}.key")
}

/// Returns an owner's identity folder, relative to the authority's. Neither role nor id can contain `/` or
/// begin with `.`.
pub(crate) fn owner_folder(role: IdentityRole, id: NodeId) -> String {
    format!("issued/{role}/{id}")
}

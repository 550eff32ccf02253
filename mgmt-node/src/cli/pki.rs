//! `cspctl pki ...`: the operator's certificate authority. It works on a folder, without a server.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use csp_authority::{
    Authority, AuthorityRecord, AuthorityState, CertificateRecord, Inspected, Phase, PkiError, Registry,
    Request, Rotated, Timestamp,
};

use super::args::Output;
use super::error::CliError;
use super::paint::{Colour, Paint};
use super::pki_args::{IssueArgs, Owner, PkiArgs, PkiCommand, RotateCommand};
use super::show_as;
use super::table::{Cell, Table, span};

/// `cspctl pki init -o json`.
#[derive(Serialize)]
struct Made {
    changed: bool,
    dir: PathBuf,
    cluster: String,
}

/// `cspctl pki issue -o json`.
#[derive(Serialize)]
struct IssuedView {
    changed: bool,
    /// The identity folder.
    folder: PathBuf,
    certificate: CertificateView,
}

/// `cspctl pki list -o json`.
#[derive(Serialize)]
struct ListView {
    /// Always false.
    changed: bool,
    cluster: String,
    rotation: PhaseView,
    authorities: Vec<AuthorityRecord>,
    certificates: Vec<CertificateView>,
}

/// `cspctl pki show -o json`.
#[derive(Serialize)]
struct OwnerView {
    /// Always false.
    changed: bool,
    /// What is in the identity folder; none when there is no such folder.
    current: Option<Inspected>,
    /// In the order in which they were issued.
    certificates: Vec<CertificateView>,
}

/// `cspctl pki revoke -o json`.
#[derive(Serialize)]
struct RevokedView {
    changed: bool,
    certificates: Vec<CertificateView>,
}

/// `cspctl pki rotate ... -o json`.
#[derive(Serialize)]
struct RotatedView {
    changed: bool,
    #[serde(flatten)]
    rotation: PhaseView,
}

/// How far a rotation is.
#[derive(Serialize)]
struct PhaseView {
    /// `settled`, `started` or `switched`.
    phase: &'static str,
    /// Number of the authority that issues.
    issuing: u32,
    /// Number of the one that will.
    next: Option<u32>,
    /// Number of the one that did.
    previous: Option<u32>,
}

/// A certificate as it is now.
#[derive(Serialize)]
struct CertificateView {
    #[serde(flatten)]
    record: CertificateRecord,
    /// `valid`, `expired`, `revoked` or `untrusted`.
    state: &'static str,
    /// Seconds until it expires; 0 when it has.
    left_s: u64,
}

/// Runs one command.
pub(super) fn run(args: PkiArgs, output: Output, paint: Paint) -> Result<(), CliError> {
    let PkiArgs { dir, command } = args;
    let now = Timestamp::now();
    let screen = Screen { output, paint, now };
    match command {
        PkiCommand::Init { cluster, lifetime } => {
            let changed = match Authority::create(&dir, cluster, lifetime, now) {
                Err(PkiError::Exists { cluster: found, .. }) if found == cluster.as_str() => false,
                made => made.map(|_| true)?,
            };
            let made = Made { changed, dir, cluster: cluster.to_string() };
            show_as(output, &made, |m| {
                let is = if m.changed { "is now" } else { "is already" };
                format!(
                    "{} {is} the CA folder of cluster {}; keep it secret and make backups\n",
                    m.dir.display(),
                    m.cluster
                )
            })
        }
        PkiCommand::Issue(args) => screen.issue(&dir, args),
        PkiCommand::List => screen.list(&dir),
        PkiCommand::Show(owner) => screen.owner(&dir, &owner),
        PkiCommand::Revoke(owner) => screen.revoke(&dir, &owner),
        PkiCommand::Rotate(step) => {
            let mut authority = Authority::open(&dir, now)?;
            let rotated = match step {
                RotateCommand::Start { lifetime } => authority.rotate_start(lifetime, now)?,
                RotateCommand::Switch => authority.rotate_switch(now)?,
                RotateCommand::Finish => authority.rotate_finish(now)?,
            };
            let view = RotatedView { changed: rotated.changed, rotation: PhaseView::of(rotated.phase) };
            show_as(output, &view, |_| rotation_text(rotated))
        }
    }
}

/// How results are shown, and the time that they are of.
struct Screen {
    output: Output,
    paint: Paint,
    now: Timestamp,
}

impl Screen {
    fn issue(&self, dir: &Path, args: IssueArgs) -> Result<(), CliError> {
        let request = Request {
            addresses: args.addresses.into_iter().collect(),
            names: args.names.into_iter().collect::<BTreeSet<_>>(),
            lifetime: args.lifetime,
            renew_before: args.renew_before,
            force: args.force,
            ..Request::new(args.owner.role, args.owner.id)
        };
        let mut authority = Authority::open(dir, self.now)?;
        let issued = authority.issue(&request, self.now)?;
        let certificate = self.certificate(authority.registry(), issued.certificate);
        let view = IssuedView { changed: issued.changed, folder: issued.folder, certificate };
        show_as(self.output, &view, |v| {
            let is = if v.changed { "has a new certificate" } else { "keeps its certificate" };
            let (until, folder) = (v.certificate.record.not_after, v.folder.display());
            format!("{} {is}, valid until {until}: {folder}\n", request.owner())
        })
    }

    fn list(&self, dir: &Path) -> Result<(), CliError> {
        let registry = Registry::read(dir)?;
        let newest = registry.newest().into_values();
        let view = ListView {
            changed: false,
            cluster: registry.cluster.to_string(),
            rotation: PhaseView::of(Phase::of(&registry)),
            authorities: registry.authorities.clone(),
            certificates: newest.map(|record| self.certificate(&registry, record)).collect(),
        };
        show_as(self.output, &view, |v| {
            let mut authorities = Table::new(&["AUTHORITY", "STATE", "UNTIL", "LEFT"]);
            for a in &v.authorities {
                let colour = match a.state {
                    AuthorityState::Issuing => Colour::Green,
                    AuthorityState::Next | AuthorityState::Previous => Colour::Yellow,
                    AuthorityState::Retired => Colour::Dim,
                };
                authorities.row([
                    format!("{} CA {}", v.cluster, a.number).into(),
                    Cell::from(a.state.as_str()).coloured(colour),
                    a.not_after.to_string().into(),
                    left(a.not_after.since(self.now).as_secs()),
                ]);
            }
            let certificates = match v.certificates.as_slice() {
                [] => "No certificate was issued yet.\n".to_owned(),
                all => self.table(all),
            };
            authorities.render(self.paint) + "\n" + &certificates
        })
    }

    fn owner(&self, dir: &Path, owner: &Owner) -> Result<(), CliError> {
        let registry = Registry::read(dir)?;
        let certificates: Vec<CertificateView> =
            registry.of(owner.role, owner.id).map(|record| self.certificate(&registry, *record)).collect();
        if certificates.is_empty() {
            return Err(PkiError::NotIssued { owner: format!("{} {}", owner.role, owner.id) }.into());
        }
        let current = Authority::inspect(dir, owner.role, owner.id)?;
        let view = OwnerView { changed: false, current, certificates };
        show_as(self.output, &view, |v| {
            let current = match &v.current {
                Some(current) => describe(current),
                None => "The identity folder is gone; `cspctl pki issue` makes it again.\n".to_owned(),
            };
            current + "\n" + &self.table(&v.certificates)
        })
    }

    fn revoke(&self, dir: &Path, owner: &Owner) -> Result<(), CliError> {
        let mut authority = Authority::open(dir, self.now)?;
        let revoked = authority.revoke(owner.role, owner.id, self.now)?;
        let certificates =
            revoked.certificates.iter().map(|c| self.certificate(authority.registry(), *c)).collect();
        let view = RevokedView { changed: revoked.changed, certificates };
        show_as(self.output, &view, |v| match v.changed {
            true => format!(
                "{} {} is revoked; copy revoked.pem to all hosts for it to take effect\n",
                owner.role, owner.id
            ),
            false => format!("{} {} was revoked already\n", owner.role, owner.id),
        })
    }

    fn certificate(&self, registry: &Registry, record: CertificateRecord) -> CertificateView {
        let trusted = registry.authority(record.authority).is_some_and(|a| a.state.is_trusted());
        let state = match () {
            () if record.revoked_at.is_some() => "revoked",
            () if self.now > record.not_after => "expired",
            () if !trusted => "untrusted",
            () => "valid",
        };
        CertificateView { record, state, left_s: record.not_after.since(self.now).as_secs() }
    }

    fn table(&self, certificates: &[CertificateView]) -> String {
        let mut table = Table::new(&["ROLE", "ID", "STATE", "UNTIL", "LEFT", "CA", "SERIAL"]);
        for CertificateView { record, state, left_s } in certificates {
            let colour = match *state {
                "valid" => Colour::Green,
                "revoked" => Colour::Red,
                _ => Colour::Yellow,
            };
            table.row([
                record.role.as_str().into(),
                record.id.as_str().into(),
                Cell::from(*state).coloured(colour),
                record.not_after.to_string().into(),
                left(*left_s),
                u64::from(record.authority).into(),
                record.serial.to_string().into(),
            ]);
        }
        table.render(self.paint)
    }
}

impl PhaseView {
    fn of(phase: Phase) -> Self {
        let (phase, issuing, next, previous) = match phase {
            Phase::Settled { issuing } => ("settled", issuing, None, None),
            Phase::Started { issuing, next } => ("started", issuing, Some(next), None),
            Phase::Switched { issuing, previous } => ("switched", issuing, None, Some(previous)),
        };
        PhaseView { phase, issuing, next, previous }
    }
}

fn left(seconds: u64) -> Cell {
    match seconds {
        0 => Cell::from(""),
        s => Cell::from(span(s.saturating_mul(1000))),
    }
    .right()
}

fn describe(current: &Inspected) -> String {
    let uris = current.uris.iter().cloned().collect::<Vec<_>>();
    let addresses = current.addresses.iter().map(ToString::to_string);
    let names: Vec<String> = addresses.chain(current.names.iter().cloned()).collect();
    let or_none = |list: Vec<String>| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    format!(
        "identity   {}\nsubject    {}\naddresses  {}\nvalid      {} to {}\n",
        or_none(uris),
        current.common_name,
        or_none(names),
        current.not_before,
        current.not_after
    )
}

fn rotation_text(rotated: Rotated) -> String {
    let text = match rotated.phase {
        Phase::Settled { issuing } => format!("authority {issuing} issues, and no other is trusted"),
        Phase::Started { issuing, next } => format!(
            "authority {next} is trusted beside {issuing}, which issues; copy ca.pem and revoked.pem to all hosts, then `rotate switch`"
        ),
        Phase::Switched { issuing, previous } => format!(
            "authority {issuing} issues, {previous} is still trusted; issue and copy every owner's certificate, then `rotate finish`"
        ),
    };
    format!("{}{text}\n", if rotated.changed { "" } else { "nothing to do: " })
}

//! `cspctl certificates`: those that are obtained from an ACME authority.

use clap::{Args, Subcommand};
use csp_api::certificates::{CertificateState, CertificateView, CertificatesView};
use csp_api::time::utc;
use serde_json::{Value, json};

use super::Context;
use super::error::CliError;
use super::paint::Colour;
use super::table::{Cell, Table};

const AFTER_HELP: &str = "\
States: valid; ordering (at this moment); waiting (its first order is to come); failing (the last order
failed; what was there is still shown to clients); expired. LACKED BY are nodes that have not received it.

Examples:
  cspctl certificates
  cspctl certificates renew www.example.com
  cspctl certificates -o json | jq '.certificates[] | {name, state, error}'";

/// `cspctl certificates`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub struct CertificatesArgs {
    /// What to do; without it they are listed
    #[command(subcommand)]
    command: Option<CertificatesCommand>,
}

/// What to do with certificates.
#[derive(Subcommand, Debug)]
pub enum CertificatesCommand {
    /// Order a certificate now, whatever is there and whatever failed before
    ///
    /// Authorities limit how many certificates they issue for a name, and how many orders may fail.
    #[command(after_help = "Examples:\n  cspctl certificates renew www.example.com")]
    Renew {
        /// Its name in the policy, as `cspctl certificates` lists it
        name: String,
    },
}

pub(super) async fn run(context: &Context, args: CertificatesArgs) -> Result<(), CliError> {
    match args.command {
        None => list(context).await,
        Some(CertificatesCommand::Renew { name }) => renew(context, &name).await,
    }
}

async fn list(context: &Context) -> Result<(), CliError> {
    let view: CertificatesView = context.client.get("/api/v1/certificates", &[]).await?;
    context.show(&view, |view| {
        if view.certificates.is_empty() {
            return "No certificates: the policy in force has no acme.\n".to_owned();
        }
        let header = ["CERTIFICATE", "STATE", "ISSUER", "ENDS", "NEXT ORDER", "LACKED BY", "LAST ERROR"];
        let mut table = Table::new(&header);
        for of in &view.certificates {
            let lacking: Vec<&str> = of.lacking.iter().map(|node| &**node).collect();
            table.row([
                of.name.to_string().into(),
                Cell::from(of.state.as_str()).coloured(colour(of)),
                of.issuer.to_string().into(),
                time(of.not_after_s).into(),
                time(of.next_order_s).into(),
                lacking.join(" ").into(),
                of.error.to_string().into(),
            ]);
        }
        table.render(context.paint)
    })
}

fn colour(of: &CertificateView) -> Colour {
    match of.state {
        CertificateState::Valid => Colour::Green,
        CertificateState::Ordering | CertificateState::Waiting => Colour::Yellow,
        CertificateState::Failing | CertificateState::Expired => Colour::Red,
    }
}

fn time(seconds: i64) -> String {
    match u64::try_from(seconds) {
        Ok(seconds @ 1..) => utc(seconds.saturating_mul(1000)),
        _ => String::new(),
    }
}

async fn renew(context: &Context, name: &str) -> Result<(), CliError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(CliError::Usage(format!(
            "{name:?} names no certificate; `cspctl certificates` lists them"
        )));
    }
    let path = format!("/api/v1/certificates/{name}/renew");
    let answer: Value = context.client.post_json(&path, &json!({})).await?;
    context.show(&answer, |_| format!("{name} is ordered; `cspctl certificates` shows what becomes of it.\n"))
}

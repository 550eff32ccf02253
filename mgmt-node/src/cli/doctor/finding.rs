//! What a check has found.

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As CSP needs it.
    Ok,
    /// To be known; also what could not be checked.
    Info,
    /// CSP runs, with less than it could have or not for long.
    Warning,
    /// CSP, or a part of it, cannot work so.
    Error,
}

impl Level {
    /// The name in tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The check.
    pub check: &'static str,
    /// What was found.
    pub found: String,
    /// Why it matters, in one clause; empty where all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// A command, or what else to do; empty where there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// The findings of one check.
#[derive(Debug)]
pub struct Findings {
    check: &'static str,
    list: Vec<Finding>,
}

impl Findings {
    /// None yet.
    pub fn of(check: &'static str) -> Findings {
        Findings { check, list: Vec::new() }
    }

    /// All is well.
    pub fn ok(&mut self, found: impl Into<String>) {
        self.add(Level::Ok, found, "", "");
    }

    /// To be known.
    pub fn info(&mut self, found: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Info, found, why, remedy);
    }

    /// Something could not be looked at.
    pub fn not_checked(&mut self, what: &str, why: impl std::fmt::Display) {
        self.add(Level::Info, format!("not checked: {what} ({why})"), "", "");
    }

    /// Something works with less than it could have.
    pub fn warning(&mut self, found: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Warning, found, why, remedy);
    }

    /// Something cannot work.
    pub fn error(&mut self, found: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Error, found, why, remedy);
    }

    /// A finding whose level is computed.
    pub fn add(
        &mut self,
        level: Level,
        found: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (found, why, remedy) = (found.into(), why.into(), remedy.into());
        self.list.push(Finding { level, check: self.check, found, why, remedy });
    }

    /// Returns the findings.
    pub fn into_list(self) -> Vec<Finding> {
        self.list
    }

    /// Returns whether nothing worse than `ok` was found.
    pub fn is_well(&self) -> bool {
        self.list.iter().all(|finding| finding.level == Level::Ok)
    }
}

//! Where records go: a file, standard output, or syslog.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use csp_daemon::syslog::{self, Facility, Head, Level, Sender};

use super::style::{Style, Times};
use super::{Recorded, SyslogSection};

/// What `file` says for standard output.
const STDOUT: &str = "-";
/// APP-NAME of messages.
const APPLICATION: &str = "csp-proxy-node";

/// Where the configuration says that records go.
#[derive(Clone, Debug)]
pub(super) enum Place {
    File(PathBuf),
    Syslog(SyslogSection),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Syslog(section) => write!(f, "{}", section.to),
        }
    }
}

/// Where records go.
pub(super) enum Output {
    File(BufWriter<File>),
    Stdout(BufWriter<io::Stdout>),
    Syslog(Messages),
}

impl Output {
    /// Opens it. A syslog that is away is no error: it is looked for at each message.
    pub(super) fn open(place: &Place) -> io::Result<Output> {
        match place {
            Place::Syslog(section) => Ok(Output::Syslog(Messages::new(section))),
            Place::File(path) if path == Path::new(STDOUT) => {
                Ok(Output::Stdout(BufWriter::new(io::stdout())))
            }
            Place::File(path) => {
                let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
                Ok(Output::File(BufWriter::with_capacity(256 << 10, file)))
            }
        }
    }
}

/// Sends records as messages of syslog.
pub(super) struct Messages {
    sender: Sender,
    facility: Facility,
    line: Vec<u8>,
    message: String,
}

impl Messages {
    fn new(section: &SyslogSection) -> Messages {
        let sender = Sender::new(section.to.clone());
        Messages { sender, facility: section.facility, line: Vec::new(), message: String::new() }
    }

    /// Sends one record. Waits up to a second for room.
    pub(super) fn send<R: Recorded>(&mut self, style: Style, times: &Times, record: &R) -> io::Result<()> {
        self.line.clear();
        record.write(&mut self.line, style, times)?;
        let (ended, is_well) = record.end();
        let head = Head {
            facility: self.facility,
            level: if is_well { Level::Info } else { Level::Notice },
            time_ms: times.unix_ms(ended),
            host: style.node.as_str(),
            application: APPLICATION,
            process: Some(std::process::id()),
            kind: R::WHAT.kind,
        };
        let text = String::from_utf8_lossy(&self.line);
        syslog::write(&mut self.message, self.sender.target().len_max(), &head, None, &text);
        self.sender.send(self.message.as_bytes())
    }
}

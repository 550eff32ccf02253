//! What a stage's handler needs beside its name, and what a context reports of it.

use crate::WireError;

/// SHA-256 of a module's bytes, or of formats.
pub type Hash = [u8; 32];

/// Most bytes of a PART.
pub const PART_LEN_MAX: usize = 16 << 10;
/// Most bytes of what WANT asks for.
pub const OBJECT_LEN_MAX: usize = 4 << 20;
/// Reasons for which a module is stopped, in the order in which [`Report::stops`] counts them.
pub const STOP_REASONS: usize = 10;

/// What happens when a module was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnStop {
    /// It is restarted, with back-off; after too many stops the path ends.
    #[default]
    Restart = 0,
    /// Messages pass by it.
    Pass = 1,
    /// The path ends.
    End = 2,
}

/// What a stage's handler needs beside its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Supply<'a> {
    /// Its module; `None`: the name of a handler that the context has.
    pub module: Option<&'a Hash>,
    /// The formats of its messages; `None`: it gets none.
    pub formats: Option<&'a Hash>,
    /// What happens when the module was stopped.
    pub on_stop: OnStop,
}

impl<'a> Supply<'a> {
    pub(super) fn flags(&self) -> u8 {
        u8::from(self.module.is_some()) | u8::from(self.formats.is_some()) << 1 | (self.on_stop as u8) << 2
    }

    pub(super) fn parts(&self) -> [&'a [u8]; 2] {
        [self.module, self.formats].map(|hash| hash.map_or(&[][..], |hash| &hash[..]))
    }

    /// Reads what stands before a record's text, which is returned as well.
    pub(super) fn split(flags: u8, body: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let wrong = WireError::Value { what: "context record supply", offset: 10 };
        let on_stop = match flags >> 2 {
            0 => OnStop::Restart,
            1 => OnStop::Pass,
            2 => OnStop::End,
            _ => return Err(wrong),
        };
        let mut rest = body;
        let mut hash = |is_there: bool| -> Result<Option<&'a Hash>, WireError> {
            if !is_there {
                return Ok(None);
            }
            let (hash, after) = rest.split_first_chunk().ok_or(wrong)?;
            rest = after;
            Ok(Some(hash))
        };
        let (module, formats) = (hash(flags & 1 != 0)?, hash(flags & 2 != 0)?);
        Ok((Supply { module, formats, on_stop }, rest))
    }
}

/// Reads what a WANT asks for.
pub(super) fn want(body: &[u8]) -> Result<&Hash, WireError> {
    let found = body.len();
    body.try_into().map_err(|_| WireError::Length { what: "context record object", offset: 32, found })
}

/// How a stage stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    /// It runs.
    #[default]
    Running = 0,
    /// Its module was stopped, and waits to be restarted.
    Waiting = 1,
    /// Its module was stopped, and messages pass by it.
    PassedBy = 2,
    /// Its module was stopped, and messages end here.
    Ended = 3,
    /// It does not run: its messages wait at the proxy.
    Refused = 4,
}

impl Standing {
    pub(super) fn of(number: u64) -> Option<Self> {
        Some(match number {
            0 => Standing::Running,
            1 => Standing::Waiting,
            2 => Standing::PassedBy,
            3 => Standing::Ended,
            4 => Standing::Refused,
            _ => return None,
        })
    }
}

/// The numbers of a [`Report`] as REPORT has them.
pub type ReportNumbers = [u8; 8 * NUMBERS];

const NUMBERS: usize = 12 + STOP_REASONS;

/// What a stage has counted since it began at the context. Times are nanoseconds, of calls that were measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// How it stands.
    pub standing: Standing,
    /// Calls of the module that it ended itself.
    pub calls: u64,
    /// Their fuel.
    pub fuel: u64,
    /// The fuel of the most expensive one.
    pub fuel_max: u64,
    /// Messages that the module gave up.
    pub given_up: u64,
    /// Messages given up because it was stopped.
    pub waited: u64,
    /// Messages that passed by it.
    pub passed: u64,
    /// Restarts.
    pub restarts: u64,
    /// How often it was stopped, by reason.
    pub stops: [u64; STOP_REASONS],
    /// Calls that were measured.
    pub measured: u64,
    /// Mean of recent ones.
    pub mean_ns: u64,
    /// Time within which half of the recent ones ended.
    pub p50_ns: u64,
    /// The same of 99 of 100.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Report {
    fn numbers(&mut self) -> [&mut u64; NUMBERS] {
        let Report { standing: _, calls, fuel, fuel_max, given_up, waited, passed, restarts, stops, .. } =
            self;
        let (measured, mean_ns, p50_ns) = (&mut self.measured, &mut self.mean_ns, &mut self.p50_ns);
        let (p99_ns, max_ns) = (&mut self.p99_ns, &mut self.max_ns);
        let [a, b, c, d, e, f, g, h, i, j] = stops;
        [
            calls, fuel, fuel_max, given_up, waited, passed, restarts, a, b, c, d, e, f, g, h, i, j,
            measured, mean_ns, p50_ns, p99_ns, max_ns,
        ]
    }

    /// Returns the numbers as REPORT has them.
    pub fn write(mut self) -> ReportNumbers {
        let mut into = [0; 8 * NUMBERS];
        for (bytes, number) in into.as_chunks_mut::<8>().0.iter_mut().zip(self.numbers()) {
            *bytes = number.to_le_bytes();
        }
        into
    }

    /// Returns the report of a record.
    pub fn read(standing: Standing, numbers: &ReportNumbers) -> Self {
        let mut report = Report { standing, ..Report::default() };
        for (number, bytes) in report.numbers().into_iter().zip(numbers.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*bytes);
        }
        report
    }
}

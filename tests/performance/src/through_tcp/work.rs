//! The two jobs of Morphing's Figure 5, for a channel's path and for a destination that does them itself: the
//! same operators with the same parameters.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use csp_handlers::{Call, Emit, FormatId, Full, Handler, Message, Piece, Place, Port, State};
use csp_operators::{FormatSet, make};
use csp_types::Instant;

use crate::evaluation::{Flights, Lengths, columns};

/// The paper's events.
pub const LENGTHS: Lengths = Lengths { least: 350, most: 1_150 };
/// Number of the flight that ends a stream. It passes all conditions.
pub const END: u32 = u32::MAX - 3;
/// Where a flight's number lies, in messages and in rows.
const NUMBER: usize = 8;

const FLIGHT: FormatId = FormatId(1);

/// What becomes of flights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// Every number of every flight is written in another type.
    All,
    /// A fourth of the flights is selected, and of these 14 columns are left, the numbers in another type.
    Select,
}

impl Job {
    /// Both.
    pub const ALL: [Job; 2] = [Job::All, Job::Select];

    /// Returns the operators with their parameters.
    pub fn stages(self) -> Vec<(&'static str, String)> {
        match self {
            Job::All => vec![("project", columns(12, true, &["passengers", "blocked"]))],
            Job::Select => {
                vec![("select", "source = 'ATLX'".to_owned()), ("project", columns(10, true, &[]))]
            }
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Job::All => "all",
            Job::Select => "select",
        })
    }
}

impl FromStr for Job {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Job> {
        Job::ALL
            .into_iter()
            .find(|job| job.to_string() == text)
            .with_context(|| format!("{text:?} is no job; there are all and select"))
    }
}

/// Returns whether a message or row is that of the flight which ends a stream.
pub fn is_end(message: &[u8]) -> bool {
    message.get(NUMBER..NUMBER + 4) == Some(&END.to_le_bytes()[..])
}

/// Makes a message of at least 12 bytes one that ends a stream.
pub fn mark_end(mut message: Vec<u8>) -> Vec<u8> {
    message[NUMBER..NUMBER + 4].copy_from_slice(&END.to_le_bytes());
    message
}

/// Returns a flight that ends a stream.
pub fn end(flights: &mut Flights) -> Vec<u8> {
    loop {
        let message = flights.next().to_vec();
        if message.windows(4).any(|bytes| bytes == b"ATLX") {
            return mark_end(message);
        }
    }
}

struct Stage {
    handler: Box<dyn Handler>,
    state: State,
    /// Where it puts its rows together.
    row: Vec<u8>,
}

/// A job's operators one after the other, without a message plane.
pub struct Chain {
    stages: Vec<Stage>,
    sequence: u64,
}

impl Chain {
    /// # Errors
    /// If an operator refuses its parameters.
    pub fn new(job: Job) -> Result<Chain> {
        let flights = Flights::new(1, LENGTHS);
        let mut set = FormatSet::default();
        set.add(FLIGHT, flights.schema.clone(), flights.name).map_err(|error| anyhow!("{error:?}"))?;
        let set = Arc::new(set);
        let stage = |(name, parameters): (&str, String)| {
            let mut handler = make(name, &set).with_context(|| format!("there is no operator {name}"))?;
            let mut state = State::new(&handler.needs());
            handler.configure(&parameters, &mut state)?;
            Ok(Stage { handler, state, row: Vec::new() })
        };
        let stages = job.stages().into_iter().map(stage).collect::<Result<_>>()?;
        Ok(Chain { stages, sequence: 0 })
    }

    /// Processes a message; calls `out` with each row.
    pub fn process(&mut self, message: &[u8], out: &mut dyn FnMut(&[u8])) {
        self.sequence += 1;
        call(&mut self.stages, FLIGHT, self.sequence, message, out);
    }
}

fn call(stages: &mut [Stage], format: FormatId, sequence: u64, bytes: &[u8], out: &mut dyn FnMut(&[u8])) {
    let Some((stage, later)) = stages.split_first_mut() else { return out(bytes) };
    let now = Instant::from_nanos(sequence);
    let message = Message { format, sequence, arrived: now, len: bytes.len() as u32, frames: 1 };
    let mut port = Local { bytes, format, sequence, row: &mut stage.row, later, out };
    // A message that does not fit is passed over, as in a path.
    let _ = stage.handler.on_message(&mut Call::new(message, now, &mut stage.state, &mut port));
}

/// A message in one slice, and what comes behind its handler.
struct Local<'a> {
    bytes: &'a [u8],
    format: FormatId,
    sequence: u64,
    row: &'a mut Vec<u8>,
    later: &'a mut [Stage],
    out: &'a mut dyn FnMut(&[u8]),
}

impl Port for Local<'_> {
    fn slice(&self, place: Place) -> (&[u8], Place) {
        let at = (place.at as usize).min(self.bytes.len());
        (&self.bytes[at..], Place { at: self.bytes.len() as u32, note: 0 })
    }

    fn frame_len(&self, frame: u8) -> Option<u32> {
        (frame == 0).then_some(self.bytes.len() as u32)
    }

    fn emit(&mut self, _: u8, emit: Emit<'_>) -> Result<(), Full> {
        let Local { bytes, format, sequence, row, later, out } = self;
        match emit {
            Emit::Same => call(later, *format, *sequence, bytes, out),
            Emit::Frames { format, .. } => call(later, format, *sequence, bytes, out),
            Emit::Range { format, start, len } => {
                let range = start as usize..start as usize + len as usize;
                call(later, format, *sequence, bytes.get(range).unwrap_or_default(), out);
            }
            Emit::New { format, pieces, .. } => {
                row.clear();
                for piece in pieces {
                    row.extend_from_slice(match *piece {
                        Piece::Of { start, len } => {
                            let range = start as usize..start as usize + len as usize;
                            bytes.get(range).unwrap_or_default()
                        }
                        Piece::Bytes(bytes) => bytes,
                    });
                }
                call(later, format, *sequence, row, out);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_leave_what_they_are_to_leave() {
        let mut flights = Flights::new(1, LENGTHS);
        let mut rows = |job| {
            let (mut chain, mut rows) = (Chain::new(job).expect("valid"), Vec::new());
            for _ in 0..100 {
                chain.process(flights.next(), &mut |row| rows.push(row.len()));
            }
            chain.process(&end(&mut flights), &mut |row| assert!(is_end(row)));
            rows
        };
        let all = rows(Job::All);
        assert!(all.len() == 100 && all.iter().all(|len| *len > 350), "{all:?}");
        assert_eq!(rows(Job::Select), vec![108; 25]);
    }
}

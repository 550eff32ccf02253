//! Chains of handlers, as the plane runs them and as a model has them.
#![allow(dead_code, reason = "not every test has use for the model")]

pub mod elsewhere;

use csp_handlers::{Call, Emit, FormatId, Handler, Needs, ParameterError, Piece, State, Stop};
use csp_messages::HandlerManager;
use csp_support::Random;

/// Appends a byte: a new message of one frame, and its number of messages so far in the byte.
#[derive(Debug)]
struct Append;

impl Handler for Append {
    fn needs(&self) -> Needs {
        Needs { state: 8, new_len_max: 250, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let (count, len) = (call.state().number(0) + 1, call.message().len);
        let byte = [count as u8];
        let pieces = [Piece::Of { start: 0, len }, Piece::Bytes(&byte)];
        call.emit(0, Emit::New { format: FormatId(7), frames: &[len + 1], pieces: &pieces })?;
        call.state().set_number(0, count);
        Ok(())
    }
}

/// Emits the first frame, or the first five bytes of what has one.
#[derive(Debug)]
struct Head;

impl Handler for Head {
    fn needs(&self) -> Needs {
        Needs { new_len_max: 250, ..Needs::default() }
    }

    fn configure(&mut self, _: &str, _: &mut State) -> Result<(), ParameterError> {
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        let format = call.message().format;
        let emit = match call.message().frames {
            2 => Emit::Frames { format, first: 0, count: 1 },
            _ => Emit::Range { format, start: 0, len: 5 },
        };
        Ok(call.emit(0, emit)?)
    }
}

pub fn deploy(manager: &mut HandlerManager) {
    manager.deploy("append", Box::new(|| Box::new(Append))).unwrap();
    manager.deploy("head", Box::new(|| Box::new(Head))).unwrap();
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Forward,
    DropEvery(u64),
    Duplicate(u64),
    Append,
    Head,
}

#[derive(Clone, Debug)]
struct Stage {
    kind: Kind,
    context: u16,
    parameters: String,
    count: u64,
}

/// What the model does with a message, one stage after the other.
#[derive(Clone, Debug, Default)]
pub struct Chain(Vec<Stage>);

impl Chain {
    pub fn random(random: &mut Random) -> Self {
        let stage = |random: &mut Random| {
            let (kind, parameters) = match random.below(6) {
                0 => {
                    let every = random.below(4) + 2;
                    (Kind::DropEvery(every), every.to_string())
                }
                1 => {
                    let times = random.below(4) + 1;
                    (Kind::Duplicate(times), times.to_string())
                }
                2 => (Kind::Append, String::new()),
                3 => (Kind::Head, String::new()),
                _ => (Kind::Forward, String::new()),
            };
            let context = match kind {
                // State stays here: the remote context of the test has none.
                Kind::DropEvery(_) | Kind::Append => random.below(2),
                _ => random.below(3),
            };
            Stage { kind, context: context as u16, parameters, count: 0 }
        };
        let len = random.below(4) + 1;
        Chain((0..len).map(|_| stage(random)).collect())
    }

    pub fn stages(&self) -> Vec<(&str, u16, &str)> {
        let name = |stage: &Stage| match stage.kind {
            Kind::Forward => "forward",
            Kind::DropEvery(_) => "drop-every",
            Kind::Duplicate(_) => "duplicate",
            Kind::Append => "append",
            Kind::Head => "head",
        };
        self.0.iter().map(|stage| (name(stage), stage.context, stage.parameters.as_str())).collect()
    }

    /// Continues with the state of the chain that this one replaces.
    pub fn take_over(&mut self, old: &Chain) {
        for (new, old) in self.0.iter_mut().zip(&old.0) {
            if std::mem::discriminant(&new.kind) == std::mem::discriminant(&old.kind) {
                new.count = old.count;
            }
        }
    }

    /// Returns what becomes of a message.
    pub fn pass(&mut self, message: Vec<u8>) -> Vec<Vec<u8>> {
        let mut messages = vec![message];
        for stage in &mut self.0 {
            let passed = messages.into_iter().flat_map(|mut message| {
                stage.count += 1;
                match stage.kind {
                    Kind::Forward => vec![message],
                    Kind::Duplicate(times) => vec![message; times as usize],
                    Kind::Head => vec![message[..5].to_vec()],
                    Kind::Append => {
                        message.push(stage.count as u8);
                        vec![message]
                    }
                    Kind::DropEvery(every) if stage.count >= every => {
                        stage.count = 0;
                        Vec::new()
                    }
                    Kind::DropEvery(_) => vec![message],
                }
            });
            messages = passed.collect();
        }
        messages
    }
}

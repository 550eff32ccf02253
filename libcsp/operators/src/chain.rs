//! Chains of operators: whether their formats fit together, and in which order they do least.
//!
//! Messages that are left out early, or made shorter early, cost less in every later stage. The optimiser
//! moves select, project and sample forward past stages with which they commute, and says what it did. It
//! never changes what comes out: where it cannot prove that, or the result would have another format, the
//! chain stays.

use std::sync::Arc;

use csp_handlers::{FormatId, Handler, State, builtin};
use thiserror::Error;

use crate::bind;
use crate::commute::{self, Step};
use crate::formats::{DERIVED_FIRST, FormatSet, JSON};
use crate::make;

/// A stage of a chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainStage {
    /// The handler's name.
    pub handler: String,
    /// Its parameters.
    pub parameters: String,
    /// The number of the stage in the chain as it was given, from 0 on: where it runs is kept with it.
    pub given: usize,
}

/// A chain that does the same in a better order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Optimised {
    /// The stages.
    pub stages: Vec<ChainStage>,
    /// What was done, and what was not and why, a line each.
    pub notes: Vec<String>,
}

/// Why a chain cannot be run. Stages are counted from 1.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[allow(missing_docs, reason = "the message says what the fields are")]
pub enum ChainError {
    /// No such handler.
    #[error("stage {stage}: there is no handler \"{handler}\"{}", nearest.as_ref().map(|nearest| format!("; the nearest is \"{nearest}\"")).unwrap_or_default())]
    Unknown { stage: usize, handler: String, nearest: Option<String> },
    /// The handler refuses its parameters.
    #[error("stage {stage}, {handler}: {problem}")]
    Parameters { stage: usize, handler: String, problem: String },
    /// The stage gets messages that it does not process.
    #[error("stage {stage}, {handler}, cannot process {format}{}: {problem}", if *stage > 1 { format!(", which stage {} emits", stage - 1) } else { String::new() })]
    Format { stage: usize, handler: String, format: String, problem: String },
}

impl ChainStage {
    /// Stages in the order in which they are given.
    #[must_use]
    pub fn list(stages: &[(&str, &str)]) -> Vec<ChainStage> {
        let stage = |(given, (handler, parameters)): (usize, &(&str, &str))| ChainStage {
            handler: (*handler).to_owned(),
            parameters: (*parameters).to_owned(),
            given,
        };
        stages.iter().enumerate().map(stage).collect()
    }
}

/// What a format is called in messages for people.
fn called(formats: &FormatSet, id: FormatId) -> String {
    match formats.get(id) {
        _ if id == JSON => "JSON".to_owned(),
        Some(format) if id.0 >= DERIVED_FIRST => {
            let block = &format.message().block;
            let fields = block.fields.iter().map(|field| &*field.name);
            let rest = block
                .groups
                .iter()
                .map(|group| &*group.name)
                .chain(block.data.iter().map(|data| &*data.name));
            format!("rows of {}", fields.chain(rest).collect::<Vec<_>>().join(", "))
        }
        Some(format) => format!("messages \"{}\"", format.name),
        None => "messages of unknown format".to_owned(),
    }
}

/// Checks that each stage processes what the one before it emits to its first output. Returns the format of
/// what enters each stage, and of what leaves the last.
///
/// # Errors
/// The first stage that does not fit, and why.
pub fn check(
    stages: &[ChainStage],
    formats: &Arc<FormatSet>,
    input: FormatId,
) -> Result<Vec<FormatId>, ChainError> {
    let mut all = vec![input];
    for (at, stage) in stages.iter().enumerate() {
        let handler = configured(at + 1, stage, formats)?;
        let format = all[at];
        if !handler.accepts(format) {
            return Err(ChainError::Format {
                stage: at + 1,
                handler: stage.handler.clone(),
                format: called(formats, format),
                problem: reason(stage, formats, format),
            });
        }
        all.push(handler.yields(0, format));
    }
    Ok(all)
}

fn configured(
    number: usize,
    stage: &ChainStage,
    formats: &Arc<FormatSet>,
) -> Result<Box<dyn Handler>, ChainError> {
    let name = &stage.handler;
    let Some(mut handler) = make(name, formats).or_else(|| builtin::make(name)) else {
        let nearest = csp_formats::nearest(name, crate::NAMES.iter().copied().chain(builtin::NAMES));
        return Err(ChainError::Unknown { stage: number, handler: name.clone(), nearest });
    };
    if !stage.parameters.is_empty() {
        let mut state = State::new(&handler.needs());
        handler.configure(&stage.parameters, &mut state).map_err(|error| ChainError::Parameters {
            stage: number,
            handler: name.clone(),
            problem: error.0,
        })?;
    }
    Ok(handler)
}

/// Why a stage does not process a format.
fn reason(stage: &ChainStage, formats: &FormatSet, id: FormatId) -> String {
    let Some(format) = formats.get(id) else {
        return "its fields are not known".to_owned();
    };
    let bound = match stage.handler.as_str() {
        "select" => bind::condition(&format, &stage.parameters).map(|_| ()),
        "project" => bind::projection(formats, &format, &stage.parameters).map(|_| ()),
        _ => Ok(()),
    };
    match bound {
        Err(error) => error,
        Ok(()) if stage.parameters.is_empty() => "it has no parameters".to_owned(),
        Ok(()) => "its parameters do not fit".to_owned(),
    }
}

/// Moves reductions of a chain forward where that changes nothing of what comes out.
///
/// A chain that cannot be run stays as it is, and the note says why.
#[must_use]
pub fn optimise(stages: &[ChainStage], formats: &Arc<FormatSet>, input: FormatId) -> Optimised {
    let unchanged = |note: String| Optimised { stages: stages.to_vec(), notes: vec![note] };
    let before = match check(stages, formats, input) {
        Ok(before) => before,
        Err(error) => return unchanged(error.to_string()),
    };
    let (mut now, mut notes, mut kept) = (stages.to_vec(), Vec::new(), Vec::new());
    // Each step moves a stage forward or removes one.
    for _ in 0..=stages.len() * stages.len() {
        let Ok(inputs) = check(&now, formats, input) else { break };
        kept.clear();
        let mut done = false;
        for at in 1..now.len() {
            match commute::pair(&now[at - 1], &now[at], formats, inputs[at - 1]) {
                Step::Keep => (),
                Step::Because(why) => kept.push(why),
                Step::Replace(pair, note) => {
                    now.splice(at - 1..=at, pair);
                    notes.push(note);
                    done = true;
                    break;
                }
            }
        }
        if !done {
            break;
        }
    }
    match check(&now, formats, input) {
        Ok(after) if after.last() == before.last() => {
            notes.append(&mut kept);
            Optimised { stages: now, notes }
        }
        Ok(_) => unchanged("the order stays: another one would give messages of another format".to_owned()),
        Err(error) => unchanged(format!("the order stays: another one cannot be run ({error})")),
    }
}

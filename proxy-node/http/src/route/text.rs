//! Texts that are compared with a condition, byte by byte.

use regex_automata::dfa::dense;
use regex_automata::dfa::{Automaton, StartKind};
use regex_automata::nfa::thompson;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};

use super::{RouteMistake, TextSpec, quoted};

/// Longest expression in bytes.
pub const EXPRESSION_LEN_MAX: usize = 1_024;
/// Most memory in bytes of a compiled expression.
const EXPRESSION_SIZE_MAX: usize = 256 << 10;
/// Most memory in bytes that compiling an expression takes.
const COMPILING_SIZE_MAX: usize = 2 << 20;
/// Deepest nesting of an expression.
const NESTING_MAX: u32 = 32;

/// Why an expression is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExpressionError {
    /// It is longer than [`EXPRESSION_LEN_MAX`].
    #[error("is longer than {EXPRESSION_LEN_MAX} bytes")]
    TooLong,
    /// Its automaton would be larger than its bound.
    #[error("needs more than {} KiB of states: expected fewer or shorter repetitions", EXPRESSION_SIZE_MAX >> 10)]
    TooLarge,
    /// It is malformed.
    #[error("{0}")]
    Syntax(String),
}

/// A compiled expression: a complete automaton, so that matching takes one step for each byte and no memory.
#[derive(Clone, Debug)]
pub(super) struct Expression(Box<dense::DFA<Vec<u32>>>);

impl Expression {
    pub(super) fn new(pattern: &str) -> Result<Self, RouteMistake> {
        let mistake = |error| RouteMistake::Expression(quoted(pattern), error);
        if pattern.len() > EXPRESSION_LEN_MAX {
            return Err(mistake(ExpressionError::TooLong));
        }
        let config = dense::Config::new()
            // Of alternatives the one that matches the whole text counts, not the first.
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(EXPRESSION_SIZE_MAX))
            .determinize_size_limit(Some(COMPILING_SIZE_MAX));
        let syntax = syntax::Config::new().unicode(false).utf8(false).nest_limit(NESTING_MAX);
        let parsed = syntax::parse_with(pattern, &syntax).map_err(|error| mistake(syntax_error(&error)))?;
        let limits = thompson::Config::new().utf8(false).nfa_size_limit(Some(EXPRESSION_SIZE_MAX));
        // What is well-formed can only be too large.
        let too_large = || mistake(ExpressionError::TooLarge);
        let states = thompson::Compiler::new().configure(limits).build_from_hir(&parsed);
        let states = states.map_err(|_| too_large())?;
        let automaton = dense::Builder::new().configure(config).build_from_nfa(&states);
        Ok(Expression(Box::new(automaton.map_err(|_| too_large())?)))
    }

    /// Returns whether the expression matches all of `text`.
    pub(super) fn matches(&self, text: impl Iterator<Item = u8>) -> bool {
        let automaton = &self.0;
        let Ok(mut state) = automaton.start_state(&start::Config::new().anchored(Anchored::Yes)) else {
            return false;
        };
        for byte in text {
            state = automaton.next_state(state, byte);
            if automaton.is_dead_state(state) || automaton.is_quit_state(state) {
                return false;
            }
        }
        automaton.is_match_state(automaton.next_eoi_state(state))
    }
}

/// Returns what is wrong, without the drawing of the pattern that the library adds.
fn syntax_error(error: &impl std::fmt::Display) -> ExpressionError {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    let what = last.strip_prefix("error: ").unwrap_or(last);
    ExpressionError::Syntax(what.chars().take(200).collect())
}

/// A compiled condition of a text.
#[derive(Clone, Debug)]
pub(super) enum Text {
    Present,
    Absent,
    Exact(Box<[u8]>),
    Prefix(Box<[u8]>),
    Regex(Expression),
}

impl Text {
    pub(super) fn new(spec: &TextSpec) -> Result<Self, RouteMistake> {
        Ok(match spec {
            TextSpec::Present => Text::Present,
            TextSpec::Absent => Text::Absent,
            TextSpec::Exact(text) => Text::Exact(text.as_bytes().into()),
            TextSpec::Prefix(text) => Text::Prefix(text.as_bytes().into()),
            TextSpec::Regex(pattern) => Text::Regex(Expression::new(pattern)?),
        })
    }

    /// Returns whether one of the texts that are there meets the condition.
    pub(super) fn is_met<T: Iterator<Item = u8>>(&self, mut texts: impl Iterator<Item = T>) -> bool {
        match self {
            Text::Present => texts.next().is_some(),
            Text::Absent => texts.next().is_none(),
            Text::Exact(exact) => texts.any(|text| text.eq(exact.iter().copied())),
            Text::Prefix(prefix) => {
                texts.any(|mut text| prefix.iter().all(|byte| text.next() == Some(*byte)))
            }
            Text::Regex(expression) => texts.any(|text| expression.matches(text)),
        }
    }
}

//! Paths: the handlers that all messages of a channel pass, one after the other.

use csp_handlers::{CONTEXTS_MAX, STAGES_MAX, State, builtin};
use serde::{Deserialize, Serialize};

use crate::config::Problems;

/// A handler of a channel's path, and where it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathStage {
    /// Name of a built-in handler.
    pub handler: String,
    /// The context of the proxy worker that runs it: `c0` to `c7`.
    #[serde(default = "first_context")]
    pub context: String,
    /// What the handler is to do, in its own words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub parameters: String,
}

impl PathStage {
    /// Returns the number of the context; `None` if there is none of this name.
    pub fn context_number(&self) -> Option<u16> {
        let number = self.context.strip_prefix('c').filter(|digits| digits.len() == 1)?.parse().ok();
        number.filter(|number| *number < CONTEXTS_MAX)
    }
}

fn first_context() -> String {
    "c0".to_owned()
}

/// Checks the path of a channel.
pub(super) fn check(path: &[PathStage], at: &str, problems: &mut Problems) {
    if path.len() > STAGES_MAX {
        problems.add(
            format!("{at}.path"),
            format!("{} handlers are too many; allowed are {STAGES_MAX}", path.len()),
        );
    }
    for (index, stage) in path.iter().enumerate() {
        let at = format!("{at}.path[{index}]");
        if stage.context_number().is_none() {
            let message = format!("`{}` is no context; there are c0 to c{}", stage.context, CONTEXTS_MAX - 1);
            problems.add(format!("{at}.context"), message);
        }
        let chained = |name: &&str| builtin::make(name).is_some_and(|handler| handler.needs().outputs == 1);
        let Some(mut handler) = builtin::make(&stage.handler).filter(|handler| handler.needs().outputs == 1)
        else {
            let names: Vec<&str> = builtin::NAMES.into_iter().filter(chained).collect();
            let message = format!("`{}` is not known; allowed are {}", stage.handler, names.join(", "));
            problems.add(format!("{at}.handler"), message);
            continue;
        };
        let mut state = State::new(&handler.needs());
        if !stage.parameters.is_empty()
            && let Err(error) = handler.configure(&stage.parameters, &mut state)
        {
            problems.add(format!("{at}.parameters"), error.to_string());
        }
    }
}

/// Says what a channel's path is; nothing for none.
pub(super) fn summary(path: &[PathStage]) -> String {
    let stage = |stage: &PathStage| match stage.parameters.as_str() {
        "" => format!("{} on {}", stage.handler, stage.context),
        parameters => format!("{} {parameters} on {}", stage.handler, stage.context),
    };
    match path {
        [] => String::new(),
        path => format!(", path {}", path.iter().map(stage).collect::<Vec<_>>().join(", ")),
    }
}

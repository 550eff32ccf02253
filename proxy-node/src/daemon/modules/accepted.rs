//! Whether supplied handlers process the formats that reach them in paths of single formats. The policy's
//! checks cannot know: a module says it itself.

use std::sync::Arc;

use csp_handlers::{FormatId, Handler, State, builtin};
use csp_messages::{FormatStage, check_formats};
use csp_planner::{PathPlan, Planned, plan_paths};
use csp_policy::{PathStage, Policy};
use csp_sandbox::Supplied;
use csp_services::ChannelFormats;

use super::{Modules, fields};
use crate::daemon::policy::{channel_formats, stage_outputs};

impl Modules {
    /// Adds to `wrong` the paths of single formats that workers would refuse because of what a module
    /// processes.
    pub(super) fn check_formats(&self, planned: &Planned, wrong: &mut Vec<String>) {
        let (policy, catalogue) = (planned.policy(), planned.catalogue());
        let is_supplied =
            |stage: &&PathStage| policy.handlers.iter().any(|known| known.name == stage.handler);
        for (at, channel) in policy.channels.iter().enumerate() {
            let Some(known) = catalogue.channels.get(at) else { continue };
            if channel.paths.is_empty() || !channel.stages().iter().any(is_supplied) {
                continue;
            }
            // Nothing is hashed by what is only checked.
            let formats = channel_formats(policy, channel, known, 0);
            let set = formats.as_ref().map_or_else(Arc::default, |formats| formats.set().clone());
            for plan in plan_paths(channel, known, &set) {
                if let Some(error) = self.refused(policy, &plan, formats.as_ref()) {
                    wrong.push(format!("channel {}: {error}", channel.name));
                }
            }
        }
    }

    /// Returns why workers would refuse a path of one format; `None` also if one of its handlers cannot be
    /// made, which was noted before.
    fn refused(&self, policy: &Policy, plan: &PathPlan, formats: Option<&ChannelFormats>) -> Option<String> {
        let format = FormatId(u32::try_from(plan.format?).ok()? + 1);
        let handlers: Option<Vec<Box<dyn Handler>>> =
            plan.stages.iter().map(|planned| self.handler(policy, &planned.stage, formats)).collect();
        let (handlers, outputs) = (handlers?, plan.stages.iter().map(stage_outputs).collect::<Vec<_>>());
        let stages: Vec<FormatStage<'_>> = plan
            .stages
            .iter()
            .zip(&handlers)
            .zip(&outputs)
            .map(|((planned, handler), outputs)| (&*planned.stage.handler, &**handler, &outputs[..]))
            .collect();
        check_formats(format, &stages).err().map(|error| error.to_string())
    }

    /// Makes the handler of a stage with its parameters.
    fn handler(
        &self,
        policy: &Policy,
        stage: &PathStage,
        formats: Option<&ChannelFormats>,
    ) -> Option<Box<dyn Handler>> {
        if let Some(supplied) = policy.handlers.iter().find(|known| known.name == stage.handler) {
            let module = self.get(&supplied.module).ok()?;
            let made = Supplied::new(&module, fields(formats), supplied.on_stop, &stage.parameters);
            return Some(Box::new(made.ok()?));
        }
        let set = formats.map_or_else(Arc::default, |formats| formats.set().clone());
        let made = builtin::make(&stage.handler).or_else(|| csp_operators::make(&stage.handler, &set));
        let mut handler = made?;
        let mut state = State::new(&handler.needs());
        if !stage.parameters.is_empty() {
            handler.configure(&stage.parameters, &mut state).ok()?;
        }
        Some(handler)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use csp_sandbox::Sha256;

    use super::*;

    const BRANCHES: &str = include_str!("../../../../libcsp/policy/fixtures/branches.yaml");

    /// A module that emits each message, and processes one format.
    fn module(format: u32) -> Vec<u8> {
        let text = format!(
            r#"(module
            (import "csp" "emit_same" (func $emit (param i32) (result i32)))
            (memory (export "memory") 1 1)
            (func (export "csp_abi") (result i32) i32.const 1)
            (func (export "csp_accepts") (param i32) (result i32) (i32.eq (local.get 0) (i32.const {format})))
            (func (export "on_message") (param i32 i32 i32) (result i32) (call $emit (i32.const 0))))"#
        );
        wat::parse_str(text).unwrap()
    }

    #[test]
    fn a_module_that_does_not_process_its_path_s_format_is_refused_with_the_policy() {
        let folder = std::env::temp_dir().join(format!("csp-modules-accepted-{}", std::process::id()));
        let modules = Modules::new(folder.clone());
        // In the path of `weather`, the second of the channel's formats.
        for (format, expected) in
            [(2, None), (1, Some("channel flights: handler `mine` does not process format 2"))]
        {
            let bytes = module(format);
            let hash = Sha256::of(&bytes).to_string();
            modules.put(&hash, &bytes).unwrap();
            let text = BRANCHES.replacen("handler: sample, parameters: \"2\"", "handler: mine", 1);
            let text = format!("{text}handlers: [{{name: mine, module: {hash}}}]\n");
            let error = modules.check(&Planned::parse_yaml(&text, "p.yaml").unwrap()).err();
            match expected {
                None => assert_eq!(error, None),
                Some(expected) => assert!(error.as_ref().unwrap().starts_with(expected), "{error:?}"),
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! The help that all commands have: each says how it ends beside what it does.

use clap::{Command, CommandFactory};

use super::args::Cli;

/// How a command ends, where its own help says nothing else.
const EXIT_CODES: &str =
    "Exit codes: 0 done; 1 failed; 64 the command line is wrong; 65 to 75: `cspctl --help`";

/// Returns the command line of `cspctl`.
pub(super) fn command() -> Command {
    explained(Cli::command())
}

/// Adds exit codes to commands that do not state them.
fn explained(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let mut command =
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, explained));
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let long = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    if ![&help, &long].iter().any(|text| text.to_lowercase().contains("exit code")) {
        let between = if help.is_empty() { "" } else { "\n\n" };
        command = command.after_help(format!("{help}{between}{EXIT_CODES}"));
    }
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself_with_an_example_and_its_exit_codes() {
        fn check(command: &mut clap::Command, path: &str) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{path} has no example:\n{help}");
            assert!(help.to_lowercase().contains("exit code"), "{path} does not say how it ends:\n{help}");
            let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
            for name in names {
                if let Some(sub) = command.find_subcommand_mut(&name) {
                    check(sub, &format!("{path} {name}"));
                }
            }
        }
        check(&mut command().disable_help_subcommand(true), "cspctl");
    }

    #[test]
    fn options_stand_before_or_behind_the_words_of_a_rule() {
        let words = ["dns", "proto", "udp", "dport", "53", "plugin", "limit"];
        let before = ["cspctl", "-o", "json", "rule", "add"].into_iter().chain(words);
        let behind = ["cspctl", "rule", "add"].into_iter().chain(words).chain(["-o", "json"]);
        for cli in [Cli::try_parse_from(before), Cli::try_parse_from(behind)] {
            let cli = cli.unwrap();
            assert_eq!(cli.output, args::Output::Json);
            let args::Command::Rule(rule) = cli.command else { panic!("{:?}", cli.command) };
            let super::super::rules::RuleCommand::Add { words: of } = rule else { panic!("{rule:?}") };
            assert_eq!(of, words);
        }
    }
}

//! The help that all commands have: each says how it ends beside what it does.

use clap::{Command, CommandFactory};

use super::args::Cli;

/// What stands below the options of `cspctl --help`.
pub(super) const AFTER_HELP: &str = "\
Examples:
  cspctl nodes                              members of the cluster and how they are
  cspctl policy apply demo.yaml             check, publish and activate a policy
  cspctl flow trace --last                  draw the latest flow across all tiers
  CSP_SERVER=https://10.77.0.4:9104 cspctl services --output json

Exit codes:
   0  done
   1  failed: refused by a node, timed out, not found; `policy diff`: the policies differ
   2  `doctor`: there are errors (1: warnings)
  64  the command line is wrong
  65  the policy file is wrong; all mistakes are listed, each as FILE:LINE:COLUMN; the CA folder is damaged
  66  a file cannot be read
  69  the server does not answer, or has no etcd or leader at this time
  70  the server answered with something cspctl does not understand
  73  a file cannot be written
  75  not now: another cspctl works on the CA folder, or the node is the last proxy node in service

Environment:
  CSP_SERVER   management node's URL, or several with commas between, when --server is not given
  CSP_PKI      CA folder when --dir is not given
  CSP_IDENTITY folder of your certificate when --identity is not given
  NO_COLOR     no colours, also on a terminal
  COLUMNS      width of drawings (default: the terminal's, else 100)

Results go to standard output, progress and errors to standard error.";

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

//! Shell commands that set environment variables again (`exports::shell`).

use std::ffi::CString;

/// MAX_ARG_STRLEN of Linux: the largest argument of execve, with its terminating null.
const ARGUMENT_ROOM: usize = 131_072;

/// Appends a text, quoted as one word of the shell (POSIX XCU §2.2.2).
fn quoted(text: &[u8], into: &mut Vec<u8>) {
    into.push(b'\'');
    for byte in text {
        match byte {
            b'\'' => into.extend(br"'\''"),
            other => into.push(*other),
        }
    }
    into.push(b'\'');
}

/// Like [`argument`], without a limit on the length.
fn with_variables(variables: &[CString], command: &[u8]) -> Vec<u8> {
    let mut text = Vec::from(b"export");
    for variable in variables {
        let variable = variable.to_bytes();
        let (name, value) = variable.split_at(variable.iter().position(|b| *b == b'=').unwrap_or(0));
        text.push(b' ');
        text.extend(name);
        text.push(b'=');
        quoted(value.get(1..).unwrap_or(&[]), &mut text);
    }
    text.extend(b"; exec /bin/sh -c -- ");
    quoted(command, &mut text);
    // `$0`, as the C library sets it.
    text.extend(b" sh");
    text
}

/// The command that executes `command` with these variables, as an argument of the shell; `None` if it would
/// be too long.
pub fn argument(variables: &[CString], command: &[u8]) -> Option<CString> {
    let text = with_variables(variables, command);
    if text.len() < ARGUMENT_ROOM { CString::new(text).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_command_and_the_variables_reach_the_second_shell_unchanged() {
        let variables = [c"LD_NOTHING=/a b'c\"$d.so".to_owned(), c"CSP_NONE=".to_owned()];
        let command = br#"printf '%s|' "$LD_NOTHING" "${CSP_NONE-unset}" 'it'"'"'s' \\ "$0""#;
        let text = String::from_utf8(with_variables(&variables, command)).unwrap();
        let output = Command::new("/bin/sh").args(["-c", &text]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "/a b'c\"$d.so||it's|\\|sh|");
    }

    #[test]
    fn a_command_that_only_the_quotes_make_too_long_is_passed_as_it_is() {
        let variables = [c"A=b".to_owned()];
        let command = |len: usize| [b": ".as_slice(), &b"x".repeat(len - 2)].concat();
        let shell = |text: &[u8]| {
            let text = str::from_utf8(text).unwrap();
            Command::new("/bin/sh").args(["-c", text]).status().is_ok_and(|status| status.success())
        };
        let added = with_variables(&variables, b"").len();
        let most = ARGUMENT_ROOM - 1 - added;
        assert!(shell(argument(&variables, &command(most)).unwrap().as_bytes()));
        assert!(shell(&command(most + 1)) && argument(&variables, &command(most + 1)).is_none());
        assert!(!shell(&with_variables(&variables, &command(most + 1))));
    }
}

//! Texts about instances of packet plug-ins at a host, their calls and the answers.

use csp_plugins::remote::{
    HOSTED_MAX, RemoteAnswer, read_answer, read_call, read_hosted, read_modules, write_call, write_module,
};
use csp_plugins::{OUTPUTS_MAX, PARAMETERS_MAX};

use crate::{Bounds, Check, Target};

/// A text, read as each of the kinds that there are.
pub static REMOTE: Target = Target {
    name: "remote",
    check: Check::Parser(check),
    examples,
    words: &[
        "module ",
        "instance ",
        "set ",
        "output ",
        "\n",
        "\r\n",
        "\t",
        "\t=1",
        "bytes\n",
        "rows\n",
        "done\n",
        "refused\n",
        "\\n",
        "\\",
        " ",
        "instance 1 a b\n",
        "output 0 0\n",
        "set  \n",
        "rows\n\t\n",
    ],
    len_max: 16_384,
    // The shortest row has two bytes as text and 72 in memory; `REMOTE_ROWS_MAX` bounds them.
    bounds: Bounds { held: (64 << 10, 96), allocated: (64 << 10, 256) },
};

fn check(bytes: &[u8]) -> bool {
    let mut accepted = false;
    if let Ok(answer) = read_answer(bytes) {
        accepted = true;
        match answer {
            RemoteAnswer::Refused(why) => assert!(!why.contains(char::is_control)),
            RemoteAnswer::Rows(rows) => assert!(rows.iter().all(|row| row.numbers.len() <= 32)),
            RemoteAnswer::Done | RemoteAnswer::Bytes(_) => {}
        }
    }
    let Ok(text) = core::str::from_utf8(bytes) else { return accepted };
    let lines = text.lines().count();
    match read_hosted(text) {
        Ok(instances) => {
            accepted = true;
            assert!(instances.len() <= HOSTED_MAX);
            for known in &instances {
                assert!(known.settings.len() <= PARAMETERS_MAX && known.outputs.len() <= OUTPUTS_MAX);
            }
            let parts = |settings: usize, outputs: usize| 1 + settings + outputs;
            let read = instances.iter().map(|known| parts(known.settings.len(), known.outputs.len()));
            assert!(read.sum::<usize>() <= lines);
        }
        Err(error) => assert!((1..=lines.max(1)).contains(&error.0), "{error}"),
    }
    match read_modules(text) {
        Ok(modules) => {
            let mut again = String::new();
            modules.iter().for_each(|(name, bytes)| write_module(&mut again, name, bytes));
            assert_eq!(read_modules(&again).as_ref(), Ok(&modules));
        }
        Err(error) => assert!((1..=lines).contains(&error.0), "{error}"),
    }
    match read_call(text) {
        Ok((operation, arguments)) => {
            assert!(arguments.len() <= PARAMETERS_MAX);
            let again = write_call(operation, &arguments);
            let has_controls = text.lines().any(|line| line.contains(char::is_control));
            assert!(has_controls || read_call(&again) == Ok((operation, arguments)), "{again}");
        }
        Err(error) => assert!((1..=lines.max(1)).contains(&error.0), "{error}"),
    }
    accepted
}

fn examples() -> Vec<Vec<u8>> {
    let texts = [
        "module ab12 00ff1c\ninstance 3 a ab12\nset parameters one\\ntwo \\\\ three\n",
        "instance 3 a dscp\nset dscp 46\noutput 0 9\ninstance 9 b no-op\n",
        "rows\nkey\tnote\tpackets=7\tbytes=18446744073709551615\n10.0.0.1\t\tn=1\n",
        "refused\nthere is no instance of that name",
        "done\n",
        "bytes\n\u{1}\u{2}",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

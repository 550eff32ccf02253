//! Messages with hostile texts, read by an independent reader of the grammar.

use super::*;

/// Reads a message as RFC 5424 §6 has it: its seven fields, the parameters, and the text.
fn read(message: &str) -> (Vec<String>, Vec<(String, String)>, String) {
    let mut fields: Vec<&str> = message.splitn(7, ' ').collect();
    let mut rest = fields.pop().expect("structured data").chars().peekable();
    let mut parameters = Vec::new();
    match rest.next() {
        Some('-') => assert_eq!(rest.next(), Some(' ')),
        Some('[') => {
            let mut id = String::new();
            while let Some(c) = rest.next_if(|c| !" ]".contains(*c)) {
                id.push(c);
            }
            parameters.push((String::new(), id));
            while rest.next_if_eq(&' ').is_some() {
                let (mut name, mut value) = (String::new(), String::new());
                while let Some(c) = rest.next_if(|c| *c != '=') {
                    name.push(c);
                }
                assert_eq!((rest.next(), rest.next()), (Some('='), Some('"')));
                loop {
                    match rest.next().expect("the end of a value") {
                        '"' => break,
                        '\\' => value.push(rest.next().expect("an escaped character")),
                        ']' => panic!("a bracket that is not escaped"),
                        c => value.push(c),
                    }
                }
                parameters.push((name, value));
            }
            assert_eq!((rest.next(), rest.next()), (Some(']'), Some(' ')));
        }
        other => panic!("{other:?} in {message}"),
    }
    (fields.into_iter().map(str::to_owned).collect(), parameters, rest.collect())
}

fn head<'a>(host: &'a str, kind: &'a str) -> Head<'a> {
    let (facility, level) = (Facility::default(), Level::Warning);
    Head { facility, level, time_ms: 1_796_034_137_042, host, application: "csp", process: Some(7), kind }
}

fn written(head: &Head<'_>, len_max: usize, data: &[(&str, &str)], text: &str) -> String {
    let mut out = "what was there before".to_owned();
    let mut data = data.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    write(&mut out, len_max, head, Some(("csp@32473", &mut data)), text);
    out
}

#[test]
fn a_message_has_the_form_of_the_rfc() {
    let data = [("origin", "pn-1"), ("reason", r#"a "quoted" \ path [1]"#)];
    let message = written(&head("pn-1", "server_down"), 2048, &data, "a server is down");
    let expected = r#"<28>1 2026-11-30T10:22:17.042Z pn-1 csp 7 server_down [csp@32473 origin="pn-1" reason="a \"quoted\" \\ path [1\]"] a server is down"#;
    assert_eq!(message, expected);
    let mut out = String::new();
    write(&mut out, 2048, &Head { process: None, ..head("pn-1", "") }, None, "text");
    assert_eq!(out, "<28>1 2026-11-30T10:22:17.042Z pn-1 csp - - - text");
}

#[test]
fn hostile_texts_stay_within_their_fields() {
    let hostile = [
        "",
        " ",
        "a\nb\r\n<0>1 - - - - - forged",
        "\"] forged",
        "\\",
        "\\\"]",
        "]]]]\\\\\\\"\"\"",
        "\u{0}\u{7f}\u{85}\u{2028}\u{1b}[31m",
        "ö日本🦀",
        "= = =\"",
        &"x".repeat(5000),
        &"\"".repeat(5000),
        &"🦀".repeat(2000),
    ];
    for text in hostile {
        for other in hostile {
            for len_max in [64, 480, 2048, 8192] {
                let message = written(&head(text, other), len_max, &[(other, text), ("last", "x")], text);
                let (fields, parameters, said) = read(&message);
                assert_eq!((fields.len(), &fields[0][..]), (6, "<28>1"), "{message}");
                assert!(!message.contains(|c: char| c.is_control()), "{message:?}");
                assert!(parameters[0].1 == "csp@32473" && parameters.len() <= 3, "{message}");
                assert!(fields[2].len() <= 255 && fields[5].len() <= 32, "{message}");
                if len_max == 8192 {
                    assert_eq!(parameters.len(), 3, "{message}");
                    let cleaned: String = text.chars().map(printable).collect();
                    assert!(cleaned.starts_with(&parameters[1].1) && cleaned.starts_with(&said));
                }
                // Beside the header, which is bounded by itself, there is no more than fits.
                let header = fields.iter().map(|field| field.len() + 1).sum::<usize>() + 12;
                assert!(message.len() <= len_max.max(header), "{} > {len_max}: {message}", message.len());
            }
        }
    }
    let late = Head { time_ms: u64::MAX, ..head("a", "b") };
    assert!(written(&late, 2048, &[], "").starts_with("<28>1 9999-12-31T23:59:59.999Z "));
}

#[test]
fn what_is_no_receiver_or_facility_is_refused_with_what_would_be_right() {
    let target = |text: &str| serde_json::from_value::<Target>(text.into());
    assert_eq!(target("/dev/log").unwrap(), Target::Unix("/dev/log".into()));
    assert_eq!(target("udp://[::1]:514").unwrap(), Target::Udp("[::1]:514".parse().unwrap()));
    for wrong in ["", "dev/log", "udp://host:514", "udp://10.0.0.1", "udp://10.0.0.1:0", "tcp://10.0.0.1:514"]
    {
        let error = target(wrong).unwrap_err().to_string();
        assert!(error.contains("udp://10.77.0.9:514"), "{error}");
    }
    let error = serde_json::from_value::<Facility>("kern".into()).unwrap_err().to_string();
    assert!(error.contains("\"kern\" is no facility of syslog; allowed are user, daemon"), "{error}");
}

#[test]
fn a_receiver_that_is_restarted_gets_the_next_message() {
    let path = std::env::temp_dir().join(format!("csp-syslog-test-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut sender = Sender::new(Target::Unix(path.clone()));
    assert!(sender.send(b"nobody").is_err());
    for round in 0..2 {
        let receiver = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        sender.send(format!("message {round}").as_bytes()).unwrap();
        let mut got = [0; 64];
        let len = receiver.recv(&mut got).unwrap();
        assert_eq!(&got[..len], format!("message {round}").as_bytes());
        drop(receiver);
        std::fs::remove_file(&path).unwrap();
    }
    // One that does not read: a send ends.
    let _receiver = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let full = (0..10_000).map(|_| sender.send(b"more")).find_map(Result::err).expect("a full queue");
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    std::fs::remove_file(&path).unwrap();
}

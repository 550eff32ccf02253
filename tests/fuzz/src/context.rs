//! Records between a proxy worker and a context: one encoding only, so that a record that parses is emitted
//! unchanged.

use csp_wire::context::{FRAMES_MAX, Place, RECORD_HEADER_LEN, RECORD_LEN_MAX, Record};

use crate::{Target, check_error};

/// Records between a proxy worker and a context.
pub static CONTEXT: Target = Target::plain("context", context, examples);

fn examples() -> Vec<Vec<u8>> {
    let place = Place { path: 3, generation: 1, stage: 2 };
    let records = [
        Record::Same { place, output: 1 },
        Record::Gone { place },
        Record::Room { place, bytes: 1 << 20 },
        Record::Done { place, fault: false, ended: true },
    ];
    let written = |record: &Record<'_>| {
        let mut out = [0; 256];
        let len = record.emit_head(None, &mut out).expect("the records are short");
        out[..len].to_vec()
    };
    vec![records.iter().flat_map(written).collect(), written(&records[2])]
}

/// The records of a stream.
fn context(mut bytes: &[u8]) {
    loop {
        match Record::parse(bytes) {
            Ok(Some((record, len))) => {
                assert!(len <= bytes.len() && Record::len_at(bytes) == Some(len));
                let mut frames = [0; FRAMES_MAX];
                let mut count = 0;
                let message = match record {
                    Record::Call { message, .. } | Record::New { message, .. } => Some(message),
                    _ => None,
                };
                if let Some(message) = &message {
                    for (known, len) in frames.iter_mut().zip(message.frame_lens()) {
                        (*known, count) = (len, count + 1);
                    }
                }
                let body = message.map_or(&[][..], |message| message.bytes);
                let mut head = vec![0; len];
                let with = message.map(|_| (&frames[..count], body.len()));
                let head_len = record.emit_head(with, &mut head).expect("it fits where it stood");
                assert_eq!([&head[..head_len], body].concat(), &bytes[..len]);
                bytes = &bytes[len..];
            }
            Ok(None) => {
                assert!(Record::len_at(bytes).is_none_or(|len| len > bytes.len()));
                return;
            }
            Err(error) => {
                check_error(error, bytes);
                assert!(
                    bytes.len() >= RECORD_HEADER_LEN
                        || !(RECORD_HEADER_LEN..=RECORD_LEN_MAX)
                            .contains(&Record::len_at(bytes).unwrap_or(0))
                );
                return;
            }
        }
    }
}

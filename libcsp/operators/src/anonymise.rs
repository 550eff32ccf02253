//! Messages without what identifies people: values are hashed with a key, masked or dropped.

use std::sync::Arc;

use csp_handlers::{Call, FormatId, Handler, Needs, ParameterError, Piece, State, Stop};

use crate::bind::Bindings;
use crate::counters::{Counter, claim};
use crate::formats::{Format, FormatSet};
use crate::hide::{Hide, Key};
use crate::input::Body;
use crate::map::Mapping;
use crate::parameters::{after_word, parts, wrong};
use crate::row::{FORMAT, ROW_LEN_MAX, Room, give_up, room};
use crate::select::stateless;
use crate::translate::rewrite;

const FINGERPRINT: u64 = 1;

/// Emits each message in its own format with values hidden. The parameters say which:
/// `key 000102030405060708090a0b0c0d0e0f, hash name, hash passengers.document, mask phone 3, drop
/// passengers.meal`.
///
/// Before it is configured it processes nothing: a message that should have been hidden does not pass.
#[derive(Debug)]
pub struct Anonymise {
    bound: Bindings<(Arc<Format>, Mapping)>,
    hidden: Vec<(String, Hide)>,
    key: Key,
    room: Room,
}

impl Anonymise {
    /// An operator that hides nothing yet.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        let bound = Bindings::new(formats);
        Anonymise { bound, hidden: Vec::new(), key: Key::default(), room: room(ROW_LEN_MAX) }
    }
}

fn key(text: &str) -> Option<Key> {
    let digits = text.trim();
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(digits, 16).ok().map(|key| Key(key.to_be_bytes()))
}

fn one(part: &str) -> Result<(&str, Hide), ParameterError> {
    let path = |rest: &str| !rest.is_empty() && !rest.contains(char::is_whitespace);
    if let Some(rest) = after_word(part, "hash").filter(|rest| path(rest)) {
        return Ok((rest, Hide::Hash));
    }
    if let Some(rest) = after_word(part, "drop").filter(|rest| path(rest)) {
        return Ok((rest, Hide::Drop));
    }
    if let Some((column, shown)) =
        after_word(part, "mask").and_then(|rest| rest.split_once(char::is_whitespace))
        && let Ok(shown) = shown.trim().parse()
    {
        return Ok((column, Hide::Mask(shown)));
    }
    wrong(format!(
        "\"{part}\" is none of: key 32 hexadecimal digits, hash column, mask column bytes shown, drop column"
    ))
}

/// The mapping of a format that hides values.
fn mapping(format: &Arc<Format>, hidden: &[(String, Hide)]) -> Result<(Arc<Format>, Mapping), String> {
    let block = &format.message().block;
    let mut mapping = Mapping::identity(block);
    for (path, hide) in hidden {
        mapping.hide(block, path, *hide)?;
    }
    Ok((format.clone(), mapping))
}

impl Handler for Anonymise {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        Needs { new_len_max: ROW_LEN_MAX, ..stateless() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.bound.get(format).is_some()
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let (mut found, mut hidden) = (None, Vec::new());
        for part in parts(parameters, ',') {
            match after_word(part, "key") {
                Some(digits) => match key(digits) {
                    Some(key) => found = Some(key),
                    None => return wrong("a key has 32 hexadecimal digits"),
                },
                None => hidden.push(one(part)?),
            }
        }
        if hidden.is_empty() {
            return wrong("nothing is hidden: hash column, mask column bytes shown, drop column");
        }
        if found.is_none() && hidden.iter().any(|(_, hide)| *hide == Hide::Hash) {
            return wrong("hash needs a key of 32 hexadecimal digits: without one, values can be tried");
        }
        let hidden: Vec<_> = hidden.into_iter().map(|(path, hide)| (path.to_owned(), hide)).collect();
        self.bound.bind(|_, format| mapping(format, &hidden))?;
        self.hidden = hidden;
        self.key = found.unwrap_or_default();
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), FINGERPRINT);
        let id = call.message().format;
        if self.bound.get(id).is_none() && !self.hidden.is_empty() {
            let hidden = &self.hidden;
            self.bound.late(id, |_, format| mapping(format, hidden));
        }
        let Some((format, mapping)) = self.bound.get(id) else {
            return give_up(call, (Counter::Invalid, FORMAT));
        };
        let body = Body::of(call);
        match rewrite(call, body, (format, format), mapping, &self.key, &mut self.room) {
            Err(problem) => return give_up(call, problem),
            Ok(len) => body.emit(call, 0, id, &[Piece::Bytes(&self.room[..len])])?,
        }
        Counter::Read.add(call.state(), 1);
        Counter::Emitted.add(call.state(), 1);
        Ok(())
    }
}

//! Anonymises a passenger record: the name is blanked, the document's number is hashed with a key, all other
//! bytes stay.
//!
//! It serves every format that has the fields `name` (text) and `document` (8 bytes) in its root block: where
//! they lie is asked for once a format. It processes messages of one frame. The parameter is the key, a
//! decimal number. Without one no message passes: what should have been hidden is not.
//!
//! Built with `rustc --target wasm32-unknown-unknown --crate-type cdylib -C opt-level=2 -C panic=abort`, and
//! `csp_guest` beside it.
#![no_std]

use csp_guest::{Declaration, Field, Handler, Message, Parameters, Stop, emit, locate};

const LEN_MAX: usize = 4096;
const FORMATS: usize = 8;

/// The message is longer than the module has room for.
const TOO_LONG: Stop = Stop::GiveUp(2);
/// The format does not have the fields, or the message has more than one frame.
const UNKNOWN: Stop = Stop::GiveUp(3);
/// There is no key yet.
const NO_KEY: Stop = Stop::GiveUp(4);

struct Anonymise {
    key: Option<u64>,
    known: [Option<(u32, Field, Field)>; FORMATS],
    record: [u8; LEN_MAX],
}

impl Default for Anonymise {
    fn default() -> Self {
        Anonymise { key: None, known: [None; FORMATS], record: [0; LEN_MAX] }
    }
}

/// The fields of a format.
fn fields(known: &mut [Option<(u32, Field, Field)>; FORMATS], format: u32) -> Option<(Field, Field)> {
    if let Some((_, name, document)) = known.iter().flatten().find(|(of, ..)| *of == format) {
        return Some((*name, *document));
    }
    let (name, document) = (locate(format, "name")?, locate(format, "document")?);
    if document.size != 8 {
        return None;
    }
    if let Some(slot) = known.iter_mut().find(|slot| slot.is_none()) {
        *slot = Some((format, name, document));
    }
    Some((name, document))
}

fn bytes(record: &mut [u8], field: Field) -> Option<&mut [u8]> {
    record.get_mut(field.offset as usize..)?.get_mut(..field.size as usize)
}

/// Mixes a number with the key (the finaliser of SplitMix64, twice): enough to show the ABI, and no
/// cryptography.
fn hash(number: u64, key: u64) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(mix(number ^ key).wrapping_add(key))
}

impl Handler for Anonymise {
    fn configure(&mut self, parameters: &Parameters) -> Result<(), &'static str> {
        let mut text = [0; 20];
        if parameters.len() == 0 {
            self.key = None;
            return Ok(());
        }
        let key = parameters.read(&mut text).and_then(|text| text.parse().ok());
        self.key = Some(key.ok_or("the parameter is the key, a number of 64 bits")?);
        Ok(())
    }

    fn on_message(&mut self, message: &Message) -> Result<(), Stop> {
        let key = self.key.ok_or(NO_KEY)?;
        if message.frames != 1 {
            return Err(UNKNOWN);
        }
        let (name, document) = fields(&mut self.known, message.format).ok_or(UNKNOWN)?;
        let record = self.record.get_mut(..message.len as usize).ok_or(TOO_LONG)?;
        match message.bytes() {
            Some(bytes) => record.copy_from_slice(bytes),
            None => _ = message.read(0, record),
        }
        bytes(record, name).ok_or(UNKNOWN)?.fill(b' ');
        let number = bytes(record, document).ok_or(UNKNOWN)?;
        let hidden = hash(u64::from_le_bytes(number.try_into().map_err(|_| UNKNOWN)?), key);
        number.copy_from_slice(&hidden.to_le_bytes());
        emit(0, message.format, record)
    }
}

csp_guest::export!(
    Anonymise,
    buffer: 1024,
    Declaration { new_len_max: LEN_MAX as u32, ..Declaration::DEFAULT }
);

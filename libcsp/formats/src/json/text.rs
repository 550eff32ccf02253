//! Bytes as JSON text and back. Bytes that are no text in their encoding are an object with their Base64, so
//! that every message can be printed and nothing is lost.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::JsonError;
use crate::types::Charset;

/// The member of an object that stands for bytes.
const BASE64_MEMBER: &str = "base64";

pub(super) enum Shown {
    Text(String),
    Base64(String),
}

/// Bytes as text in their encoding; as Base64 where they are none.
pub(super) fn shown(bytes: Vec<u8>, charset: Charset) -> Shown {
    let text = match charset {
        Charset::Ascii if bytes.is_ascii() => String::from_utf8(bytes).map_err(|error| error.into_bytes()),
        Charset::Ascii => Err(bytes),
        Charset::Latin1 => Ok(bytes.iter().map(|&byte| char::from(byte)).collect()),
        Charset::Utf8 => String::from_utf8(bytes).map_err(|error| error.into_bytes()),
    };
    match text {
        Ok(text) => Shown::Text(text),
        Err(bytes) => Shown::Base64(base64(&bytes)),
    }
}

pub(super) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The opening and closing of an object that stands for bytes.
pub(super) const BASE64_OPEN: &str = "{\"base64\":";

/// The bytes of a JSON value in an encoding; without one the text is Base64.
pub(super) fn bytes(value: &Json, charset: Option<Charset>) -> Result<Vec<u8>, JsonError> {
    match (value, charset) {
        (Json::String(text), None) => decode(text),
        (Json::String(text), Some(charset)) => encode(text, charset),
        (Json::Object(object), Some(_)) if object.len() == 1 => match object.get(BASE64_MEMBER) {
            Some(Json::String(text)) => decode(text),
            _ => Err(JsonError::expected("text, or an object with the text member \"base64\"")),
        },
        (_, None) => Err(JsonError::expected("Base64 text")),
        _ => Err(JsonError::expected("text")),
    }
}

fn encode(text: &str, charset: Charset) -> Result<Vec<u8>, JsonError> {
    match charset {
        Charset::Utf8 => Ok(text.as_bytes().to_vec()),
        Charset::Ascii if text.is_ascii() => Ok(text.as_bytes().to_vec()),
        Charset::Ascii => Err(JsonError::expected("text in US-ASCII")),
        Charset::Latin1 => text
            .chars()
            .map(|character| u8::try_from(u32::from(character)))
            .collect::<Result<_, _>>()
            .map_err(|_| JsonError::expected("text in ISO-8859-1")),
    }
}

fn decode(text: &str) -> Result<Vec<u8>, JsonError> {
    STANDARD.decode(text).map_err(|_| JsonError::expected("Base64 text"))
}

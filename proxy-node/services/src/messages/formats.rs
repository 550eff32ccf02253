//! Formats of a channel's messages, found when they are published, and channels that receive messages of
//! others.

use std::sync::Arc;

use csp_messages::FormatId;
use csp_operators::{FormatSet, body_frame};

/// Largest number of slices of a record that are examined to find its format. Its header and fixed part lie
/// in the first ones.
const SLICES_MAX: usize = 32;

/// The formats of a channel. Formats with equal keys are equal.
#[derive(Clone, Debug)]
pub struct ChannelFormats {
    key: Arc<str>,
    set: Arc<FormatSet>,
    texts: Arc<[FormatText]>,
}

/// A format as it is sent to programs.
#[derive(Clone, Debug)]
pub struct FormatText {
    /// Its name in the policy.
    pub name: String,
    /// The message of the schema.
    pub message: String,
    /// The schema, as XML.
    pub schema: String,
}

impl ChannelFormats {
    /// Formats with `key`, a text that determines all of them.
    pub fn new(key: &str, set: Arc<FormatSet>) -> Self {
        ChannelFormats { key: key.into(), set, texts: Arc::new([]) }
    }

    /// Adds the texts that are sent to programs.
    #[must_use]
    pub fn with_texts(self, texts: Vec<FormatText>) -> Self {
        ChannelFormats { texts: texts.into(), ..self }
    }

    /// Returns the texts of the policy's formats, whose ids are 1, 2 and so on.
    pub fn texts(&self) -> &[FormatText] {
        &self.texts
    }

    /// Returns the text that determines all of the formats.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the formats.
    pub fn set(&self) -> &Arc<FormatSet> {
        &self.set
    }
}

impl PartialEq for ChannelFormats {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for ChannelFormats {}

/// The messages of one format that a channel receives from another channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelFeed {
    /// Number of the channel to which the messages are published.
    pub from: u32,
    /// Their format in that channel, behind its path.
    pub format: FormatId,
    /// Number of the channel that receives them.
    pub to: u32,
    /// Their format id in the receiving channel.
    pub becomes: FormatId,
}

/// Returns the first format that fits a message of this many frames. `record` returns the slices of a frame.
pub(super) fn identify<'a, I: Iterator<Item = &'a [u8]>>(
    formats: [Option<&FormatSet>; 2],
    frames: usize,
    record: impl FnOnce(usize) -> I,
) -> FormatId {
    if formats.iter().all(Option::is_none) {
        return FormatId::UNKNOWN;
    }
    let frame = body_frame(u8::try_from(frames).unwrap_or(u8::MAX));
    let (mut slices, mut count) = ([&[][..]; SLICES_MAX], 0);
    for (into, slice) in slices.iter_mut().zip(record(frame.into())) {
        (*into, count) = (slice, count + 1);
    }
    let mut known = formats.into_iter().flatten().map(|formats| formats.identify(&slices[..count]));
    known.find(|id| *id != FormatId::UNKNOWN).unwrap_or(FormatId::UNKNOWN)
}

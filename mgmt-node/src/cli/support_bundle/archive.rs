//! The file: a compressed archive of bounded size, with a list of what is in it and what is missing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use csp_authority::Timestamp;
use flate2::Compression;
use flate2::write::GzEncoder;

/// Largest size of all files together, in bytes.
pub const LEN_MAX: u64 = 64 << 20;
/// Largest size of one file, in bytes.
pub const PART_LEN_MAX: usize = 8 << 20;
/// What is kept for the list of contents, in bytes.
const LIST_LEN_MAX: u64 = 1 << 20;
/// Bytes of a header, and what a file is filled up to.
const BLOCK: u64 = 512;

/// Which part of a text that is too long is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Its beginning.
    Beginning,
    /// Its end, for logs.
    End,
}

/// The archive under construction.
pub struct Archive {
    folder: String,
    tar: tar::Builder<GzEncoder<File>>,
    left: u64,
    time: u64,
    manifest: Vec<String>,
    /// Files in it.
    pub files: usize,
    /// What is not in it, with the reason.
    pub missing: Vec<String>,
}

impl Archive {
    /// Creates the file, for its owner alone. One that is there already is left as it is. `folder` is the
    /// folder in the archive.
    pub fn create(path: &Path, folder: &str, time: Timestamp) -> io::Result<Archive> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Archive {
            folder: folder.to_owned(),
            tar: tar::Builder::new(GzEncoder::new(file, Compression::default())),
            left: LEN_MAX - LIST_LEN_MAX,
            time: u64::try_from(time.unix_s()).unwrap_or(0),
            manifest: Vec::new(),
            files: 0,
            missing: Vec::new(),
        })
    }

    /// Adds a file, cut where it is too long. An error is that of writing.
    pub fn add(&mut self, name: &str, text: &str, keep: Keep) -> io::Result<()> {
        let most = usize::try_from(self.left.saturating_sub(2 * BLOCK)).unwrap_or(0).min(PART_LEN_MAX);
        let kept = cut(text, most, keep);
        if kept.is_empty() && !text.is_empty() {
            self.missing(name, "the bundle is full");
            return Ok(());
        }
        let note = match (kept.len() < text.len(), keep) {
            (false, _) => String::new(),
            (true, Keep::Beginning) => format!(" of {}: the beginning", text.len()),
            (true, Keep::End) => format!(" of {}: the end", text.len()),
        };
        self.manifest.push(format!("included  {name}  {} bytes{note}", kept.len()));
        self.write(name, kept.as_bytes())
    }

    /// Notes that something is not there.
    pub fn missing(&mut self, name: &str, why: &str) {
        let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.manifest.push(format!("missing   {name}  {why}"));
        self.missing.push(format!("{name}: {why}"));
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        let path = format!("{}/{name}", self.folder);
        self.tar.append_data(&mut header, path, bytes)?;
        self.files += 1;
        let len = (bytes.len() as u64).next_multiple_of(BLOCK) + BLOCK;
        self.left = self.left.saturating_sub(len);
        Ok(())
    }

    /// Adds the list of contents, below `head`, and writes everything to disk. Returns the length of the file
    /// in bytes.
    pub fn finish(mut self, head: &str) -> io::Result<u64> {
        let list = format!("{head}\n{}\n", self.manifest.join("\n"));
        let list = cut(&list, LIST_LEN_MAX as usize - 2 * BLOCK as usize, Keep::Beginning).to_owned();
        self.write("MANIFEST", list.as_bytes())?;
        let mut file = self.tar.into_inner()?.finish()?;
        file.flush()?;
        file.sync_all()?;
        file.metadata().map(|metadata| metadata.len())
    }

    /// Removes the file, which could not be written to its end.
    pub fn abandon(path: &Path) {
        let _ = std::fs::remove_file(path);
    }
}

/// The part of a text with at most `most` bytes.
fn cut(text: &str, most: usize, keep: Keep) -> &str {
    if text.len() <= most {
        return text;
    }
    match keep {
        Keep::Beginning => &text[..text.floor_char_boundary(most)],
        Keep::End => &text[text.ceil_char_boundary(text.len() - most)..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!((cut("aéb", 2, Keep::Beginning), cut("aéb", 2, Keep::End)), ("a", "b"));
        assert_eq!((cut("ab", 2, Keep::End), cut("ab", 0, Keep::End)), ("ab", ""));
    }
}

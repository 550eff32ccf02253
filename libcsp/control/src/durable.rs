//! Atomic replacement of files: after a crash a file has either its old content or its new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces the file `name` in `directory` by `text`, by writing `name.new` and renaming it. The file is
/// readable by owner and group. On an error the file keeps its content, and `name.new` is removed.
pub(crate) fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    let written = write(&new, text).and_then(|()| fs::rename(&new, directory.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    // The directory is synchronised as well, so that the rename itself is durable.
    File::open(directory)?.sync_all()
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

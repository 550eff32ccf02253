//! Names of programs.

use core::fmt;
use core::str::FromStr;

/// Longest name of a program, in bytes: that of a file name on Linux (NAME_MAX).
pub const PROGRAM_NAME_LEN_MAX: usize = 255;

/// The name of a program, as in policy rules and in ATTACH: a file name. Two names are equal if all their
/// bytes are.
///
/// Any Linux file name is valid: 1 to 255 bytes without `/` and NUL. A longer name is rejected, not
/// truncated. Stored inline, so that it can be copied and compared without allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramName {
    bytes: [u8; PROGRAM_NAME_LEN_MAX],
    len: u8,
}

/// Why bytes are not the name of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramNameError {
    /// Empty, or longer than 255 bytes.
    Length(usize),
    /// A `/` or NUL at this offset.
    Byte(usize),
}

impl fmt::Display for ProgramNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a program's name is a file name of 1 to {PROGRAM_NAME_LEN_MAX} bytes without / and NUL")?;
        match self {
            ProgramNameError::Length(0) => write!(f, "; this one is empty"),
            ProgramNameError::Length(len) => write!(f, "; this one has {len} bytes"),
            ProgramNameError::Byte(at) => write!(f, "; byte {} of this one is none of a name", at + 1),
        }
    }
}

impl core::error::Error for ProgramNameError {}

impl ProgramName {
    /// The name of a program whose name is unknown.
    pub const UNKNOWN: ProgramName = {
        let mut bytes = [0; PROGRAM_NAME_LEN_MAX];
        let text = b"program";
        let mut at = 0;
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        ProgramName { bytes, len: text.len() as u8 }
    };

    /// Parses a name from a peer, a file or a program.
    pub fn parse(name: &[u8]) -> Result<Self, ProgramNameError> {
        let length = ProgramNameError::Length(name.len());
        let len = u8::try_from(name.len()).ok().filter(|len| *len > 0).ok_or(length)?;
        if let Some(at) = name.iter().position(|byte| matches!(byte, b'/' | 0)) {
            return Err(ProgramNameError::Byte(at));
        }
        let mut bytes = [0; PROGRAM_NAME_LEN_MAX];
        bytes.get_mut(..name.len()).ok_or(length)?.copy_from_slice(name);
        Ok(ProgramName { bytes, len })
    }

    /// Returns the name of the program at a path: its last component.
    pub fn of_path(path: &[u8]) -> Result<Self, ProgramNameError> {
        ProgramName::parse(path.rsplit(|byte| *byte == b'/').next().unwrap_or(&[]))
    }

    /// Returns the name of the program that `/proc/self/exe` links to; if the file was replaced since, its
    /// former name.
    pub fn of_executable(link: &[u8]) -> Result<Self, ProgramNameError> {
        ProgramName::of_path(link.strip_suffix(b" (deleted)").unwrap_or(link))
    }

    /// Returns the name's bytes, which need not be UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }
}

impl FromStr for ProgramName {
    type Err = ProgramNameError;
    fn from_str(s: &str) -> Result<Self, ProgramNameError> {
        ProgramName::parse(s.as_bytes())
    }
}

/// Shows the name on one line: control characters and bytes that are not UTF-8 are escaped.
impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_file_name_of_linux_is_a_name_and_nothing_is_changed_in_it() {
        for name in [&b"php-fpm"[..], b"nginx", b"my server", "grüße".as_bytes(), b"a\xff\n", &[b'x'; 255]]
        {
            assert_eq!(ProgramName::parse(name).unwrap().as_bytes(), name);
        }
        assert_ne!(ProgramName::parse(b"php-fpm"), ProgramName::parse(b"php_fpm"));
    }

    #[test]
    fn what_is_no_file_name_is_refused_with_a_reason() {
        let check = |name: &[u8], expected: &str| {
            let error = ProgramName::parse(name).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{error}");
        };
        check(b"", "this one is empty");
        check(&[b'x'; 256], "this one has 256 bytes");
        check(b"sbin/nginx", "byte 5 of this one is none of a name");
        check(b"a\0", "byte 2 of this one is none of a name");
    }

    #[test]
    fn a_path_gives_its_last_component() {
        let name = |path: &[u8]| ProgramName::of_path(path).map(|name| name.to_string());
        assert_eq!(name(b"/usr/sbin/php-fpm8.2").as_deref(), Ok("php-fpm8.2"));
        assert_eq!(name(b"server").as_deref(), Ok("server"));
        assert_eq!(name(b"folder/"), Err(ProgramNameError::Length(0)));
        assert_eq!(ProgramName::of_executable(b"/usr/bin/a (deleted)"), ProgramName::parse(b"a"));
    }

    #[test]
    fn a_name_is_shown_on_one_line() {
        assert_eq!(ProgramName::parse(b"a b\n\xff\xc3\xbc").unwrap().to_string(), "a b\\n\\xff\u{fc}");
        assert_eq!(ProgramName::UNKNOWN.to_string(), "program");
    }
}

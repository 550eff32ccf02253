//! The secret keys of channels: files in one folder, each as ZeroMQ's tools write them.
//!
//! ```text
//!  /etc/csp/curve/ticks.key_secret     curve
//!  mode 600, the daemon's user's           public-key = "…40 characters of Z85…"
//!                                          secret-key = "…40 characters of Z85…"
//! ```
//! The policy names public keys, so that a file may have any name. The folder is read at the start, when a
//! policy is checked and when it is applied: a key that is copied to the host needs no restart.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csp_policy::Policy;
use csp_types::CurvePublicKey;
use csp_types::curve::from_z85;
use csp_zmtp::CurveKeys;

/// The folder, unless the configuration names another one. It need not exist.
pub const DEFAULT_FOLDER: &str = "/etc/csp/curve";
/// Ending of the files that are read.
const SUFFIX: &str = "key_secret";
/// Most files of a folder.
const FILES_MAX: usize = 1_024;
/// Longest file in bytes.
const FILE_LEN_MAX: u64 = 64 * 1024;
/// What follows the name of a key's line.
const PUBLIC: &str = "public-key";
const SECRET: &str = "secret-key";

/// Pairs by public key, as far as the folder's files could be read.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    pairs: HashMap<CurvePublicKey, Arc<CurveKeys>>,
    wrong: Vec<String>,
}

impl KeyRing {
    /// Reads a folder.
    pub fn load(folder: &Path) -> KeyRing {
        let mut ring = KeyRing::default();
        let files = files(folder).unwrap_or_else(|error| {
            if folder != Path::new(DEFAULT_FOLDER) || error.kind() != std::io::ErrorKind::NotFound {
                ring.wrong.push(format!("{}: cannot be read: {error}", folder.display()));
            }
            Vec::new()
        });
        if files.len() > FILES_MAX {
            ring.wrong.push(format!("{} has more than {FILES_MAX} keys", folder.display()));
        }
        for path in files.into_iter().take(FILES_MAX) {
            match read(&path) {
                Ok(keys) => drop(ring.pairs.insert(CurvePublicKey(keys.public()), Arc::new(keys))),
                Err(error) => ring.wrong.push(format!("{}: {error}", path.display())),
            }
        }
        ring
    }

    /// Returns what is wrong with the folder and its files.
    pub fn wrong(&self) -> &[String] {
        &self.wrong
    }

    /// Returns the pair of a public key.
    pub fn get(&self, key: &CurvePublicKey) -> Option<&Arc<CurveKeys>> {
        self.pairs.get(key)
    }

    /// Checks that the pair of every channel of `policy` is here.
    pub fn check(&self, policy: &Policy, folder: &Path) -> Result<(), String> {
        let lacks = |channel: csp_policy::Channel| {
            let key = channel.curve.as_ref()?.server_key;
            self.get(&key).is_none().then(|| {
                let (name, folder) = (&channel.name, folder.display());
                format!("channel {name}: this proxy has no secret key for {key}; copy its .{SUFFIX} file to {folder}")
            })
        };
        let lacks: Vec<String> = policy.all_channels().filter_map(lacks).collect();
        if lacks.is_empty() {
            return Ok(());
        }
        Err(lacks.iter().chain(&self.wrong).map(String::as_str).collect::<Vec<_>>().join("; "))
    }
}

fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<CurveKeys, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    // The mode is that of the file that is read, whatever the path names a moment later.
    let file = File::open(path).map_err(cannot)?;
    let mode = file.metadata().map_err(cannot)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let chmod = format!("chmod 600 {}", path.display());
        return Err(format!("its mode {mode:03o} lets others than its owner at it; make it 600: {chmod}"));
    }
    let mut text = String::new();
    file.take(FILE_LEN_MAX).read_to_string(&mut text).map_err(cannot)?;
    parse(&text)
}

fn parse(text: &str) -> Result<CurveKeys, String> {
    let secret = value(text, SECRET).ok_or(format!("has no line `{SECRET} = \"...\"`"))?;
    let keys = from_z85(secret.as_bytes()).map(CurveKeys::new);
    let keys = keys.map_err(|_| format!("{SECRET} is no key; allowed are 40 characters of Z85"))?;
    let public = CurvePublicKey(keys.public());
    match value(text, PUBLIC) {
        Some(stated) if stated != public.to_string() => {
            Err(format!("{PUBLIC} is {stated:?}, but that of {SECRET} is \"{public}\""))
        }
        _ => Ok(keys),
    }
}

/// Returns the quoted value of the line that begins with `name`.
fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix(name)?.trim_start().strip_prefix('=')?.trim();
        let quote = rest.chars().next().filter(|first| "\"'".contains(*first))?;
        rest.strip_prefix(quote)?.strip_suffix(quote)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    use super::*;

    /// The pair of the server in zmq_curve(7).
    const PUBLIC_KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    const SECRET_KEY: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";

    /// As zmq.auth.create_certificates writes it.
    fn file(public: &str, secret: &str) -> String {
        format!(
            "#   ****  Generated by pyzmq  ****\n#   ZeroMQ CURVE **Secret** Certificate\n\nmetadata\ncurve\n    \
             public-key = \"{public}\"\n    secret-key = \"{secret}\"\n"
        )
    }

    #[test]
    fn a_certificate_of_zeromqs_tools_is_read() {
        let keys = parse(&file(PUBLIC_KEY, SECRET_KEY)).unwrap();
        assert_eq!(CurvePublicKey(keys.public()).to_string(), PUBLIC_KEY);
        assert!(parse(&format!("secret-key='{SECRET_KEY}'")).is_ok());
    }

    #[test]
    fn what_is_no_pair_is_refused_without_its_secret() {
        let other = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
        for (text, expected) in [
            (String::new(), "has no line `secret-key = \"...\"`"),
            (file(PUBLIC_KEY, &SECRET_KEY[1..]), "secret-key is no key; allowed are 40 characters of Z85"),
            (file(other, SECRET_KEY), "public-key is \"Yne@"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(expected) && !error.contains(&SECRET_KEY[1..]), "{error}");
        }
    }

    #[test]
    fn a_folder_is_read_and_every_file_that_is_wrong_is_named() {
        let folder = std::env::temp_dir().join(format!("csp-curve-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str, mode| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write("ticks.key_secret", &file(PUBLIC_KEY, SECRET_KEY), 0o600);
        write("ticks.key", "the public half, for clients", 0o644);
        let key = PUBLIC_KEY.parse().unwrap();
        let ring = KeyRing::load(&folder);
        assert!(ring.get(&key).is_some() && ring.wrong().is_empty());
        write("open.key_secret", &file(PUBLIC_KEY, SECRET_KEY), 0o640);
        write("short.key_secret", "", 0o600);
        let ring = KeyRing::load(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let wrong = ring.wrong();
        assert!(wrong.len() == 2 && wrong[0].contains("mode 640") && wrong[1].contains("short"), "{wrong:?}");
        assert!(ring.get(&key).is_some(), "the others are there");
        let ring = KeyRing::load(&folder);
        assert!(ring.wrong()[0].contains("cannot be read"), "{ring:?}");
    }

    #[test]
    fn a_policy_with_a_channel_whose_key_is_elsewhere_is_refused_by_name() {
        let yaml = format!(
            "apiVersion: csp/v1\nchannels:\n  - name: ticks\n    vip: 10.76.0.100\n    port: 5556\n    \
             curve: {{server_key: '{PUBLIC_KEY}', any: [subscribe]}}\n"
        );
        let policy = Policy::parse_yaml(&yaml, "p.yaml").unwrap();
        let error = KeyRing::default().check(&policy, Path::new(DEFAULT_FOLDER)).unwrap_err();
        assert!(error.contains("channel ticks") && error.contains(PUBLIC_KEY), "{error}");
        let keys = parse(&file(PUBLIC_KEY, SECRET_KEY)).unwrap();
        let pairs = HashMap::from([(PUBLIC_KEY.parse().unwrap(), Arc::new(keys))]);
        let ring = KeyRing { pairs, wrong: Vec::new() };
        assert_eq!(ring.check(&policy, Path::new(DEFAULT_FOLDER)), Ok(()));
    }
}

//! The name that was probably meant.

/// Longest name that is compared with others, in bytes.
const NAME_LEN_MAX: usize = 128;

/// Returns the name among `names` that is most like `name`, if any is alike.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let likeness =
        |other: &str| strsim::jaro_winkler(&name.to_ascii_lowercase(), &other.to_ascii_lowercase());
    let best =
        names.map(|other| (likeness(other), other)).max_by(|left, right| left.0.total_cmp(&right.0))?;
    (best.0 > 0.7).then(|| best.1.to_owned())
}

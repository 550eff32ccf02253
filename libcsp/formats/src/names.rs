//! The nearest name, for errors.

/// The name most like `name` among `names`, if one is alike at all.
#[must_use]
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    // A name from outside may be long; what is not like any name needs no comparison.
    if name.len() > 2 * crate::schema::NAME_LEN_MAX {
        return None;
    }
    let likeness =
        |other: &str| strsim::jaro_winkler(&name.to_ascii_lowercase(), &other.to_ascii_lowercase());
    let best =
        names.map(|other| (likeness(other), other)).max_by(|left, right| left.0.total_cmp(&right.0))?;
    (best.0 > 0.7).then(|| best.1.to_owned())
}

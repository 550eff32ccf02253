//! Line differences between two texts, in the unified form of `diff -u`.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use super::paint::{Colour, Paint};

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;
/// Time for the shortest differences of texts that have little in common; beyond it they are longer than need
/// be.
const TIME_MAX: Duration = Duration::from_secs(1);

/// The differences from `old` to `new`; `None` when there are none.
pub fn unified(old: &str, new: &str, old_name: &str, new_name: &str, paint: Paint) -> Option<String> {
    if old == new {
        return None;
    }
    let diff = TextDiff::configure().timeout(TIME_MAX).diff_lines(old, new);
    let mut out = paint.bold(&format!("--- {old_name}\n+++ {new_name}")) + "\n";
    for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
        out += &paint.paint(Colour::Cyan, &hunk.header().to_string());
        out.push('\n');
        for change in hunk.iter_changes() {
            let line = change.value().trim_end_matches('\n');
            out += &match change.tag() {
                ChangeTag::Equal => format!(" {line}"),
                ChangeTag::Delete => paint.paint(Colour::Red, &format!("-{line}")),
                ChangeTag::Insert => paint.paint(Colour::Green, &format!("+{line}")),
            };
            out.push('\n');
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_line_shows_with_its_surroundings() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\n";
        let new = "a\nb\nc\nd\nE\nf\ng\nh\ni\n";
        let diff = unified(old, new, "active", "file", Paint::off()).unwrap();
        assert_eq!(diff, "--- active\n+++ file\n@@ -2,7 +2,8 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n+i\n");
        assert_eq!(unified(old, old, "x", "y", Paint::off()), None);
    }

    #[test]
    fn changes_far_apart_are_two_hunks_and_an_empty_side_counts_from_zero() {
        let old: String = (0..30).map(|i| format!("{i}\n")).collect();
        let new = old.replacen("2\n", "two\n", 1).replace("28\n", "");
        let diff = unified(&old, &new, "x", "y", Paint::off()).unwrap();
        assert_eq!(diff.matches("@@ -").count(), 2, "{diff}");
        assert!(unified("", "a\n", "x", "y", Paint::off()).unwrap().contains("@@ -0,0 +1 @@"));
    }
}

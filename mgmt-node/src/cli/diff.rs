//! Line differences between two small texts, in the unified form that `diff -u` made familiar.

use super::paint::{Colour, Paint};

/// Unchanged lines shown around a change.
const CONTEXT: usize = 3;
/// Longest text compared line by line. Beyond it all lines count as changed: the table grows with the square.
const LINES_MAX: usize = 4000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edit {
    Keep,
    Delete,
    Insert,
}

/// The differences from `old` to `new`; `None` when there are none.
pub fn unified(old: &str, new: &str, old_name: &str, new_name: &str, paint: Paint) -> Option<String> {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    if a == b {
        return None;
    }
    let edits = edits(&a, &b);
    let mut out = paint.bold(&format!("--- {old_name}\n+++ {new_name}")) + "\n";
    let changed: Vec<usize> = (0..edits.len()).filter(|&i| edits[i].0 != Edit::Keep).collect();
    let mut at = 0;
    while at < changed.len() {
        let mut end = at;
        while end + 1 < changed.len() && changed[end + 1] - changed[end] <= 2 * CONTEXT + 1 {
            end += 1;
        }
        let from = changed[at].saturating_sub(CONTEXT);
        let to = (changed[end] + CONTEXT + 1).min(edits.len());
        hunk(&mut out, &edits[..from], &edits[from..to], paint);
        at = end + 1;
    }
    Some(out)
}

fn hunk(out: &mut String, before: &[(Edit, &str)], lines: &[(Edit, &str)], paint: Paint) {
    let count = |of: &[(Edit, &str)], not: Edit| of.iter().filter(|(edit, _)| *edit != not).count();
    let (old_len, new_len) = (count(lines, Edit::Insert), count(lines, Edit::Delete));
    let start = |skipped: usize, len: usize| if len == 0 { skipped } else { skipped + 1 };
    let head = format!(
        "@@ -{},{old_len} +{},{new_len} @@",
        start(count(before, Edit::Insert), old_len),
        start(count(before, Edit::Delete), new_len)
    );
    out.push_str(&paint.paint(Colour::Cyan, &head));
    out.push('\n');
    for (edit, line) in lines {
        let text = match edit {
            Edit::Keep => format!(" {line}"),
            Edit::Delete => paint.paint(Colour::Red, &format!("-{line}")),
            Edit::Insert => paint.paint(Colour::Green, &format!("+{line}")),
        };
        out.push_str(&text);
        out.push('\n');
    }
}

/// An edit script from a longest common subsequence.
fn edits<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<(Edit, &'a str)> {
    if a.len() > LINES_MAX || b.len() > LINES_MAX {
        let delete = a.iter().map(|line| (Edit::Delete, *line));
        return delete.chain(b.iter().map(|line| (Edit::Insert, *line))).collect();
    }
    let width = b.len() + 1;
    // common[i * width + j]: length of the longest common subsequence of a[i..] and b[j..].
    let mut common = vec![0u16; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i * width + j] = if a[i] == b[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::with_capacity(a.len() + b.len());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            out.push((Edit::Keep, a[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            out.push((Edit::Delete, a[i]));
            i += 1;
        } else {
            out.push((Edit::Insert, b[j]));
            j += 1;
        }
    }
    out
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
        assert!(unified("", "a\n", "x", "y", Paint::off()).unwrap().contains("@@ -0,0 +1,1 @@"));
    }
}

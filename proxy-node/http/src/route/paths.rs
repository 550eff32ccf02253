//! The routes of one host by path. Ranks are positions in the order of all routes; the least wins.

use super::text::Expression;
use super::{PathSpec, RouteMistake, quoted};
use crate::head::normalised;

/// A compiled path.
#[derive(Clone, Debug)]
pub(super) enum Path {
    Exact(Box<[u8]>),
    Regex(Expression),
    /// Without a slash at its end; empty: any path.
    Prefix(Box<[u8]>),
}

impl Path {
    pub(super) fn new(spec: &PathSpec) -> Result<Self, RouteMistake> {
        Ok(match spec {
            PathSpec::Any => Path::Prefix([].into()),
            PathSpec::Exact(path) if path == "*" => Path::Exact(path.as_bytes().into()),
            PathSpec::Exact(path) => Path::Exact(normal(path)?),
            PathSpec::Prefix(path) => {
                let path = normal(path)?;
                Path::Prefix(path.strip_suffix(b"/").unwrap_or(&path).into())
            }
            PathSpec::Regex(pattern) => Path::Regex(Expression::new(pattern)?),
        })
    }

    /// Returns what counts in the order of routes with the same host; the greater comes first.
    pub(super) fn specificity(&self) -> (u8, usize) {
        match self {
            Path::Exact(path) => (2, path.len()),
            Path::Regex(_) => (1, 0),
            Path::Prefix(path) => (0, path.len()),
        }
    }

    /// Returns the length of the prefix that a rewrite replaces.
    pub(super) fn prefix_len(&self, path: &[u8]) -> usize {
        match self {
            Path::Exact(_) => path.len(),
            Path::Regex(_) => 0,
            Path::Prefix(prefix) => prefix.len(),
        }
    }
}

fn normal(path: &str) -> Result<Box<[u8]>, RouteMistake> {
    let mistake = |fault| RouteMistake::Path(quoted(path), fault);
    let is_right = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'\\');
    if !path.starts_with('/') || !path.bytes().all(is_right) {
        return Err(mistake(crate::Fault::Target));
    }
    let mut room = Vec::new();
    normalised(path.as_bytes(), &mut room).map(Into::into).map_err(mistake)
}

/// Routes with the same text, in order.
type Entry = (Box<[u8]>, Vec<u32>);

/// The routes of one host, or of one wildcard.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    exact: Vec<Entry>,
    prefixes: Vec<Entry>,
    /// Lengths of prefixes, each once.
    lens: Vec<u16>,
    expressions: Vec<u32>,
}

impl Paths {
    /// Adds a route behind all others.
    pub(super) fn add(&mut self, path: &Path, rank: u32) {
        match path {
            Path::Exact(path) => add(&mut self.exact, path, rank),
            Path::Regex(_) => self.expressions.push(rank),
            Path::Prefix(path) => {
                add(&mut self.prefixes, path, rank);
                // Targets are shorter than 64 KiB, so that a longer prefix never matches.
                if let Ok(len) = u16::try_from(path.len())
                    && !self.lens.contains(&len)
                {
                    self.lens.push(len);
                }
            }
        }
    }

    /// Calls `is_met` with routes of which the path may match, and returns the least rank below `best` for
    /// which it returns true.
    pub(super) fn find(
        &self,
        path: &[u8],
        mut best: Option<u32>,
        mut is_met: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut first = |ranks: &[u32]| {
            let better = ranks.iter().copied().take_while(|rank| best.is_none_or(|best| *rank < best));
            let mut better = better;
            if let Some(rank) = better.find(|rank| is_met(*rank)) {
                best = Some(rank);
            }
        };
        first(ranks(&self.exact, path));
        first(&self.expressions);
        for len in &self.lens {
            let Some((prefix, rest)) = path.split_at_checked(usize::from(*len)) else { continue };
            if *len == 0 || matches!(rest, [] | [b'/', ..]) {
                first(ranks(&self.prefixes, prefix));
            }
        }
        best
    }
}

fn add(entries: &mut Vec<Entry>, text: &[u8], rank: u32) {
    match entries.binary_search_by(|(known, _)| (**known).cmp(text)) {
        Ok(at) => entries[at].1.push(rank),
        Err(at) => entries.insert(at, (text.into(), vec![rank])),
    }
}

fn ranks<'a>(entries: &'a [Entry], text: &[u8]) -> &'a [u32] {
    match entries.binary_search_by(|(known, _)| (**known).cmp(text)) {
        Ok(at) => &entries[at].1,
        Err(_) => &[],
    }
}

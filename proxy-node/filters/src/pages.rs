//! Pages for errors: bodies of the proxy's own answers.

use csp_http::name::elements;

use crate::{FilterError, Mistake, Part};

/// Most pages of a service, and of a route.
pub const PAGES_MAX: usize = 32;
/// Longest page in bytes: it is copied into the client's connection.
pub const PAGE_LEN_MAX: usize = 16 << 10;

/// What a policy says of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageSpec {
    /// Statuses of the answers that have it, 400 to 599.
    pub statuses: Vec<u16>,
    /// Codes of the answers that have it.
    pub codes: Vec<String>,
    /// Its content.
    pub body: Box<[u8]>,
    /// Its type.
    pub content_type: String,
}

/// What a client would rather read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// It does not say.
    #[default]
    Any,
    /// HTML.
    Html,
    /// JSON.
    Json,
}

impl Preference {
    /// Reads the value of an `Accept` field (RFC 9110 §12.5.1).
    pub fn of(accept: &[u8]) -> Preference {
        let (mut html, mut json) = (0, 0);
        for element in elements(accept) {
            let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let quality = parts.find_map(|part| part.strip_prefix(b"q=").or(part.strip_prefix(b"Q=")));
            let quality = quality.map_or(1_000, thousandths);
            if name.eq_ignore_ascii_case(b"text/html") || name.eq_ignore_ascii_case(b"application/xhtml+xml")
            {
                html = html.max(quality);
            } else if is_json(name) {
                json = json.max(quality);
            }
        }
        match (html, json) {
            (0, 0) => Preference::Any,
            (html, json) if json > html => Preference::Json,
            _ => Preference::Html,
        }
    }

    /// Returns which kind a type is of.
    fn of_type(content_type: &str) -> Preference {
        let name = content_type.split(';').next().unwrap_or_default().trim().as_bytes();
        match name {
            b"text/html" | b"application/xhtml+xml" => Preference::Html,
            name if is_json(name) => Preference::Json,
            _ => Preference::Any,
        }
    }
}

fn is_json(name: &[u8]) -> bool {
    let ends = name.len().checked_sub(5).and_then(|at| name.get(at..));
    name.eq_ignore_ascii_case(b"application/json")
        || ends.is_some_and(|end| end.eq_ignore_ascii_case(b"+json"))
}

/// Reads a quality (RFC 9110 §12.4.2): 0 to 1 with up to three digits. What is malformed is 0.
fn thousandths(text: &[u8]) -> u16 {
    let (whole, fraction) = match text.split_first() {
        Some((b'0', rest)) => (0, rest),
        Some((b'1', rest)) => (1_000, rest),
        _ => return 0,
    };
    let digits = match fraction {
        [] | [b'.'] => return whole,
        [b'.', digits @ ..] if digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit) => digits,
        _ => return 0,
    };
    let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(3);
    let fraction = padded.fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
    (whole + fraction).min(1_000)
}

/// A page for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFound<'a> {
    /// Its content.
    pub body: &'a [u8],
    /// Its type.
    pub content_type: &'a str,
    /// There are others, for clients that would rather read those.
    pub is_choice: bool,
}

#[derive(Clone, Debug)]
struct Page {
    spec: PageSpec,
    kind: Preference,
}

/// Pages that were checked.
#[derive(Clone, Debug, Default)]
pub struct Pages(Box<[Page]>);

impl Pages {
    pub(crate) fn new(specs: Vec<PageSpec>) -> Result<Pages, FilterError> {
        if specs.len() > PAGES_MAX {
            return Err(Mistake::Pages(specs.len()).at(Part::Pages));
        }
        let checked = specs.into_iter().enumerate().map(|(at, spec)| {
            check(&spec).map_err(|mistake| mistake.at(Part::Page(at)))?;
            Ok(Page { kind: Preference::of_type(&spec.content_type), spec })
        });
        checked.collect::<Result<_, _>>().map(Pages)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the page for an answer: of those for it the first that the client would rather read, or else
    /// the first.
    pub fn find(&self, status: u16, code: &str, wanted: Preference) -> Option<PageFound<'_>> {
        let is_for = |page: &&Page| {
            page.spec.statuses.contains(&status) || page.spec.codes.iter().any(|known| known == code)
        };
        let mut of_answer = self.0.iter().filter(is_for);
        let is_choice = of_answer.clone().nth(1).is_some();
        let preferred = of_answer.clone().find(|page| wanted != Preference::Any && page.kind == wanted);
        let page = preferred.or_else(|| of_answer.next())?;
        Some(PageFound { body: &page.spec.body, content_type: &page.spec.content_type, is_choice })
    }
}

fn check(spec: &PageSpec) -> Result<(), Mistake> {
    if spec.statuses.is_empty() && spec.codes.is_empty() {
        return Err(Mistake::PageForNothing);
    }
    if let Some(wrong) = spec.statuses.iter().find(|status| !(400..600).contains(*status)) {
        return Err(Mistake::PageStatus(*wrong));
    }
    if spec.body.len() > PAGE_LEN_MAX {
        return Err(Mistake::PageLen(spec.body.len()));
    }
    let kind = &spec.content_type;
    let is_type = kind.contains('/') && kind.bytes().all(|byte| (b' '..0x7f).contains(&byte));
    match is_type && kind.trim() == kind {
        true => Ok(()),
        false => Err(Mistake::ContentType(kind.chars().take(80).collect())),
    }
}

//! CORS: which pages of other sites may read responses (the Fetch standard, §3.2).

use csp_http::forward::Edit;
use csp_http::head::{FieldText, Fields};
use csp_http::name::is_token;
use csp_http::route::Subject;

use crate::{FilterError, Mistake, Part};

/// Most origins, methods and fields of each kind.
pub const CORS_LIST_MAX: usize = 64;
/// Longest list of methods or fields in bytes, as a field.
pub const CORS_LEN_MAX: usize = 1_024;
/// Longest part of a name in bytes that stands for `*`.
const NAME_LEN_MAX: usize = 200;

/// What a policy says of CORS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CorsSpec {
    /// Origins whose pages may read responses: `*`, `SCHEME://HOST`, perhaps with a port, or
    /// `SCHEME://*.DOMAIN` for all names below it.
    pub origins: Vec<String>,
    /// Methods beside GET, HEAD and POST.
    pub methods: Vec<String>,
    /// Fields that requests may have beside the usual ones; `*`: any.
    pub headers: Vec<String>,
    /// Fields of responses that scripts may read beside the usual ones.
    pub expose: Vec<String>,
    /// Whether requests may have the user's cookies and certificates.
    pub credentials: bool,
    /// How long a browser may keep the answer, in seconds.
    pub max_age_s: u32,
}

/// What stands before a name, such as `https://`, and the end of the name from the dot on.
type Below = (Box<[u8]>, Box<[u8]>);

/// CORS that was checked.
#[derive(Clone, Debug)]
pub struct Cors {
    any: bool,
    exact: Box<[Box<[u8]>]>,
    below: Box<[Below]>,
    methods: Box<[u8]>,
    headers: Box<[u8]>,
    any_header: bool,
    expose: Box<[u8]>,
    credentials: bool,
    max_age: Box<[u8]>,
}

/// The fields of an answer to a preflight, beside those of every response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Preflight<'a> {
    /// `Access-Control-Allow-Methods`.
    pub methods: &'a [u8],
    /// `Access-Control-Allow-Headers`; `None`: those that were asked for.
    pub headers: Option<&'a [u8]>,
    /// `Access-Control-Max-Age`.
    pub max_age: &'a [u8],
}

impl Cors {
    pub(crate) fn new(spec: CorsSpec) -> Result<Cors, FilterError> {
        Cors::checked(spec).map_err(|mistake| mistake.at(Part::Cors))
    }

    fn checked(spec: CorsSpec) -> Result<Cors, Mistake> {
        for (what, len, min) in [
            ("origins", spec.origins.len(), 1),
            ("methods", spec.methods.len(), 0),
            ("headers", spec.headers.len(), 0),
            ("expose", spec.expose.len(), 0),
        ] {
            if !(min..=CORS_LIST_MAX).contains(&len) {
                return Err(Mistake::CorsList(what, len));
            }
        }
        for (what, names) in [("method", &spec.methods), ("field", &spec.headers), ("field", &spec.expose)] {
            let wrong = names.iter().find(|name| !is_token(name.as_bytes()) || name.len() > 128);
            if let Some(wrong) = wrong {
                return Err(Mistake::Name(wrong.chars().take(80).collect(), what));
            }
        }
        for (what, names) in
            [("methods", &spec.methods), ("headers", &spec.headers), ("expose", &spec.expose)]
        {
            let len = names.iter().map(|name| name.len() + 2).sum();
            if len > CORS_LEN_MAX {
                return Err(Mistake::CorsLen(what, len));
            }
        }
        let any = spec.origins.iter().any(|origin| origin == "*");
        if any && spec.credentials {
            return Err(Mistake::AnyWithCredentials);
        }
        let (mut exact, mut below) = (Vec::new(), Vec::new());
        for origin in spec.origins.iter().filter(|origin| *origin != "*") {
            if has_usual_port(origin) {
                return Err(Mistake::UsualPort(origin.chars().take(80).collect()));
            }
            match divide(origin).ok_or_else(|| Mistake::Origin(origin.chars().take(80).collect()))? {
                Origin::Exact(text) => exact.push(text.into_bytes().into()),
                Origin::Below(scheme, suffix) => {
                    below.push((scheme.into_bytes().into(), suffix.into_bytes().into()));
                }
            }
        }
        let methods = ["GET", "HEAD", "POST"].into_iter().chain(spec.methods.iter().map(String::as_str));
        Ok(Cors {
            any,
            exact: exact.into(),
            below: below.into(),
            methods: methods.collect::<Vec<_>>().join(", ").into_bytes().into(),
            any_header: spec.headers.iter().any(|name| name == "*"),
            headers: spec.headers.join(", ").into_bytes().into(),
            expose: spec.expose.join(", ").into_bytes().into(),
            credentials: spec.credentials,
            max_age: spec.max_age_s.to_string().into_bytes().into(),
        })
    }

    /// Returns whether pages of this origin may read responses.
    pub fn allows(&self, origin: &[u8]) -> bool {
        self.any
            || self.exact.iter().any(|known| **known == *origin)
            || self.below.iter().any(|(scheme, suffix)| {
                let name = origin.strip_prefix(&**scheme).and_then(|rest| rest.strip_suffix(&**suffix));
                name.is_some_and(is_name)
            })
    }

    /// Returns whether every origin is allowed: `Access-Control-Allow-Origin` is `*` in every response.
    pub fn allows_any(&self) -> bool {
        self.any
    }

    /// Returns the fields of an answer to a preflight.
    pub fn preflight(&self) -> Preflight<'_> {
        let headers = (!self.any_header).then_some(&*self.headers);
        Preflight { methods: &self.methods, headers, max_age: &self.max_age }
    }

    /// Returns the changes of every response: what members say of CORS goes.
    pub(crate) fn edits(&self) -> Vec<Edit> {
        let remove = |name: &str| Edit::Remove(format!("Access-Control-{name}").into());
        let names = ["Origin", "Credentials", "Methods", "Headers", "Private-Network"];
        let allowing = names.into_iter().map(|name| remove(&format!("Allow-{name}")));
        let others = ["Expose-Headers", "Max-Age"].into_iter().map(remove);
        let mut edits: Vec<Edit> = allowing.chain(others).collect();
        let mut set = |name: &str, value: &[u8]| {
            edits.push(Edit::Set(format!("Access-Control-{name}").into(), value.into()));
        };
        if self.any {
            set("Allow-Origin", b"*");
        }
        if self.credentials {
            set("Allow-Credentials", b"true");
        }
        if !self.expose.is_empty() {
            set("Expose-Headers", &self.expose);
        }
        if !self.any {
            edits.push(Edit::Add("Vary".into(), b"Origin"[..].into()));
        }
        edits
    }
}

/// Returns the method that a preflight asks for; `None`: the request is none.
pub fn requested_method<'a, F: Fields>(subject: &Subject<'a, F>) -> Option<&'a [u8]> {
    if subject.method != b"OPTIONS" || one(subject.fields, b"Origin").is_none() {
        return None;
    }
    one(subject.fields, b"Access-Control-Request-Method").filter(|method| is_token(method))
}

/// Returns the value of the only field of this name.
pub(crate) fn one<'a>(fields: &'a impl Fields, name: &[u8]) -> Option<&'a [u8]> {
    let mut values = fields.each().filter(|field: &FieldText<'_>| field.name.eq_ignore_ascii_case(name));
    let value = values.next()?.value;
    values.next().is_none().then_some(value)
}

enum Origin {
    Exact(String),
    Below(String, String),
}

/// Reads an origin of a policy. Browsers send scheme and host in lower case, and no port that goes without
/// saying.
fn divide(origin: &str) -> Option<Origin> {
    let text = origin.to_ascii_lowercase();
    let (scheme, host) = text.split_once("://")?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let (name, suffix) = match host.strip_prefix("*.") {
        Some(name) => (name, Some(format!(".{name}"))),
        None => (host, None),
    };
    let parsed = csp_http::head::Host::parse(name.as_bytes())?;
    if !is_scheme || parsed.name.is_empty() || parsed.name.contains(&b'*') {
        return None;
    }
    Some(match suffix {
        Some(suffix) => Origin::Below(format!("{scheme}://"), suffix),
        None => Origin::Exact(text),
    })
}

fn has_usual_port(origin: &str) -> bool {
    let text = origin.to_ascii_lowercase();
    let port_of = |scheme: &str| text.strip_prefix(scheme)?.rsplit_once(':')?.1.parse::<u16>().ok();
    port_of("https://") == Some(443) || port_of("http://") == Some(80)
}

/// Returns whether this is a part of a name: nothing in it can end a host.
fn is_name(text: &[u8]) -> bool {
    let is_right = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=NAME_LEN_MAX).contains(&text.len()) && text.iter().all(is_right)
}

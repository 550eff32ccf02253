//! YAML into a tree, with bounds against hostile text.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::tree::{Entry, Node, Place, Scalar, Step, Value};

/// Deepest nesting of lists and mappings, aliases put in their places.
const DEPTH_MAX: usize = 64;
/// Most values of a document, aliases put in their places.
const NODES_MAX: usize = 250_000;
/// Most bytes of its keys and values, aliases put in their places: the formats of a policy, 64, may have one
/// schema of 512 KiB.
const TEXT_LEN_MAX: usize = 64 << 20;
/// Most duplicate keys that are reported.
const DUPLICATES_MAX: usize = 20;
/// The key under which YAML 1.1 merges other mappings into one.
const MERGE: &str = "<<";

/// A mistake of form in the text.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    /// The steps to the value that was being read.
    pub steps: Vec<Step>,
    pub at: Place,
    pub message: String,
}

/// A document, and the keys that it has twice: the first of each counts.
#[derive(Debug)]
pub(crate) struct Document {
    pub root: Node,
    pub duplicates: Vec<SyntaxError>,
}

/// How much a value holds, aliases put in their places.
#[derive(Clone, Copy, Default)]
struct Size {
    /// Lists and mappings, one inside the other.
    height: usize,
    /// Values.
    nodes: usize,
    /// Bytes of keys and values.
    text_len: usize,
}

/// Reads `text`, which is one document at most.
pub(crate) fn parse(text: &str) -> Result<Document, SyntaxError> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.event(event, &span)?,
            Err(error) => {
                let mark = error.marker();
                let at = Place { line: mark.line() as u32, column: mark.col() as u32 + 1 };
                return Err(builder.error(at, error.info()));
            }
        }
    }
    let root = builder.root.unwrap_or_else(|| Node::null(Place { line: 1, column: 1 }));
    Ok(Document { root, duplicates: builder.duplicates })
}

/// A list or mapping whose end has not come.
struct Open {
    node: Node,
    anchor: usize,
    /// Of a mapping: the key whose value comes next.
    key: Option<Key>,
    /// Of a mapping: the keys so far.
    keys: HashSet<String>,
    /// What it holds so far, itself included.
    size: Size,
}

/// A key without its value.
struct Key {
    name: String,
    at: Place,
    /// It stands in the mapping already, and was reported.
    is_duplicate: bool,
}

/// A value that has an anchor.
struct Anchored {
    node: Node,
    size: Size,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    anchored: HashMap<usize, Anchored>,
    duplicates: Vec<SyntaxError>,
    /// What was read so far, copies that are kept for aliases included.
    total: Size,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), SyntaxError> {
        let at = Place { line: span.start.line() as u32, column: span.start.col() as u32 + 1 };
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                if self.awaits_key() {
                    return self.key(text.into_owned(), at);
                }
                let size = Size { height: 0, nodes: 1, text_len: text.len() };
                let scalar = self.scalar(text.into_owned(), style, tag.as_deref(), at)?;
                self.total = self.with(size, at)?;
                self.add(Node { value: Value::Scalar(scalar), at }, anchor, size)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(Value::List(Vec::new()), anchor, at),
            Event::MappingStart(_, anchor, _) => self.begin(Value::Map(Vec::new()), anchor, at),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(self.error(at, "a second document begins; allowed is one".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Whether a key comes next.
    fn awaits_key(&self) -> bool {
        self.open.last().is_some_and(|open| matches!(open.node.value, Value::Map(_)) && open.key.is_none())
    }

    fn alias(&mut self, anchor: usize, at: Place) -> Result<(), SyntaxError> {
        let Some(Anchored { node, size }) = self.anchored.get(&anchor) else {
            return Err(self.error(at, "an alias stands within its own anchor".to_owned()));
        };
        // Counted before it is copied.
        let total = self.with(*size, at)?;
        let (node, size) = (Node { at, ..node.clone() }, *size);
        self.total = total;
        self.add(node, 0, size)
    }

    fn key(&mut self, name: String, at: Place) -> Result<(), SyntaxError> {
        let size = Size { text_len: name.len(), ..Size::default() };
        self.total = self.with(size, at)?;
        let is_new = self.open.last_mut().is_none_or(|open| open.keys.insert(name.clone()));
        let is_duplicate = !is_new && name != MERGE;
        if is_duplicate && self.duplicates.len() < DUPLICATES_MAX {
            let duplicate = self.error(at, format!("duplicate mapping key: {name}"));
            self.duplicates.push(duplicate);
        }
        if let Some(open) = self.open.last_mut() {
            open.size.text_len += name.len();
            open.key = Some(Key { name, at, is_duplicate });
        }
        Ok(())
    }

    fn scalar(
        &self,
        text: String,
        style: ScalarStyle,
        tag: Option<&Tag>,
        at: Place,
    ) -> Result<Scalar, SyntaxError> {
        match tag.map(|tag| (tag.core_suffix(), tag.handle(), tag.suffix())) {
            None if style == ScalarStyle::Plain => Ok(Scalar::plain(text)),
            None | Some((Some("str"), ..) | (None, "", "!") | (None, "!", "")) => Ok(Scalar::quoted(text)),
            Some((Some("null" | "bool" | "int" | "float"), ..)) => Ok(Scalar::plain(text)),
            Some((_, handle, suffix)) => {
                Err(self.error(at, format!("the tag {handle}{suffix} is not known; leave it out")))
            }
        }
    }

    fn begin(&mut self, value: Value, anchor: usize, at: Place) -> Result<(), SyntaxError> {
        if self.awaits_key() {
            return Err(self.error(at, "a list or mapping is no key; allowed are names".to_owned()));
        }
        let node = Node { value, at };
        let size = Size { height: 1, nodes: 1, text_len: 0 };
        self.total = self.with(size, at)?;
        self.open.push(Open { node, anchor, key: None, keys: HashSet::new(), size });
        Ok(())
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let Open { mut node, anchor, size, .. } = open;
        if let Value::Map(entries) = &mut node.value
            && entries.iter().any(|entry| entry.key == MERGE)
            && let Err(at) = merge(entries)
        {
            return Err(self.error(at, "<< is for a mapping, or a list of mappings".to_owned()));
        }
        self.add(node, anchor, size)
    }

    /// Puts a whole value, which was counted, into what is open around it.
    fn add(&mut self, node: Node, anchor: usize, size: Size) -> Result<(), SyntaxError> {
        if anchor != 0 {
            // The copy that is kept counts as well.
            self.total = self.with(Size { height: 0, ..size }, node.at)?;
            self.anchored.insert(anchor, Anchored { node: node.clone(), size });
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.size.height = open.size.height.max(size.height + 1);
        open.size.nodes += size.nodes;
        open.size.text_len += size.text_len;
        match &mut open.node.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => {
                if let Some(Key { name, at, is_duplicate: false }) = open.key.take() {
                    entries.push(Entry { key: name, key_at: at, node });
                }
            }
            Value::Scalar(_) | Value::Neutral(_) => {}
        }
        Ok(())
    }

    fn error(&self, at: Place, message: String) -> SyntaxError {
        let step = |open: &Open| match &open.node.value {
            Value::List(items) => Some(Step::Index(items.len())),
            _ => open.key.as_ref().map(|key| Step::Field(key.name.clone())),
        };
        SyntaxError { steps: self.open.iter().filter_map(step).collect(), at, message }
    }

    /// Returns the total with a further value in what is open, if a document may have so much.
    fn with(&self, size: Size, at: Place) -> Result<Size, SyntaxError> {
        let refused = |what: String| Err(self.error(at, what));
        if self.open.len() + size.height > DEPTH_MAX {
            return refused(format!(
                "is nested too deeply; allowed are {DEPTH_MAX} lists and mappings in one another"
            ));
        }
        let Size { nodes, text_len, .. } = self.total;
        let (nodes, text_len) = (nodes + size.nodes, text_len + size.text_len);
        if nodes > NODES_MAX {
            return refused(format!(
                "the document has too many values; allowed are {NODES_MAX}, aliases put in their places"
            ));
        }
        if text_len > TEXT_LEN_MAX {
            return refused(format!(
                "the document is too long; allowed are {} MiB, aliases put in their places",
                TEXT_LEN_MAX >> 20
            ));
        }
        Ok(Size { nodes, text_len, ..self.total })
    }
}

/// Puts the fields of the mappings under `<<` behind the entries that are there; those that are there already
/// stay. The error is the place of what is no mapping.
fn merge(entries: &mut Vec<Entry>) -> Result<(), Place> {
    let (merged, own): (Vec<Entry>, Vec<Entry>) =
        std::mem::take(entries).into_iter().partition(|entry| entry.key == MERGE);
    let mut keys: HashSet<String> = own.iter().map(|entry| entry.key.clone()).collect();
    *entries = own;
    for Entry { node, .. } in merged {
        let sources = match node.value {
            Value::List(items) => items,
            _ => vec![node],
        };
        for source in sources {
            let Value::Map(fields) = source.value else { return Err(source.at) };
            entries.extend(fields.into_iter().filter(|field| keys.insert(field.key.clone())));
        }
    }
    Ok(())
}

//! YAML into a tree, with bounds against hostile text.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use crate::tree::{Entry, Node, Place, Scalar, Step, Value};

/// Deepest nesting of lists and mappings, aliases put in their places.
const DEPTH_MAX: usize = 64;
/// Most values of a document, aliases put in their places.
const NODES_MAX: usize = 250_000;
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
    /// Lists and mappings within it, one inside the other.
    height: usize,
    /// Values within it.
    nodes: usize,
}

/// A key without its value.
struct Key {
    name: String,
    at: Place,
    /// It stands in the mapping already, and was reported.
    is_duplicate: bool,
}

/// A value that has an anchor, with its measures.
struct Anchored {
    node: Node,
    height: usize,
    nodes: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    anchored: HashMap<usize, Anchored>,
    duplicates: Vec<SyntaxError>,
    nodes: usize,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), SyntaxError> {
        let at = Place { line: span.start.line() as u32, column: span.start.col() as u32 + 1 };
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                if self.awaits_key() {
                    self.key(text.into_owned(), at);
                    return Ok(());
                }
                let scalar = self.scalar(text.into_owned(), style, tag.as_deref(), at)?;
                self.add(Node { value: Value::Scalar(scalar), at }, anchor, 0, 0)
            }
            Event::SequenceStart(_, anchor, _) => self.begin(Value::List(Vec::new()), anchor, at),
            Event::MappingStart(_, anchor, _) => self.begin(Value::Map(Vec::new()), anchor, at),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => match self.anchored.get(&anchor) {
                Some(Anchored { node, height, nodes }) => {
                    let (height, nodes) = (*height, *nodes);
                    if self.open.len() + height > DEPTH_MAX {
                        return Err(self.too_deep(at));
                    }
                    // Counted before it is copied.
                    if self.nodes + nodes > NODES_MAX {
                        return Err(self.too_many(at));
                    }
                    let node = Node { at, ..node.clone() };
                    self.nodes += nodes;
                    self.add(node, 0, height, nodes)
                }
                None => Err(self.error(at, "an alias stands within its own anchor".to_owned())),
            },
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

    fn key(&mut self, name: String, at: Place) {
        let is_new = self.open.last_mut().is_none_or(|open| open.keys.insert(name.clone()));
        let is_duplicate = !is_new && name != MERGE;
        if is_duplicate && self.duplicates.len() < DUPLICATES_MAX {
            let duplicate = self.error(at, format!("duplicate mapping key: {name}"));
            self.duplicates.push(duplicate);
        }
        if let Some(open) = self.open.last_mut() {
            open.key = Some(Key { name, at, is_duplicate });
        }
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
        if self.open.len() >= DEPTH_MAX {
            return Err(self.too_deep(at));
        }
        let node = Node { value, at };
        self.open.push(Open { node, anchor, key: None, keys: HashSet::new(), height: 1, nodes: 0 });
        Ok(())
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let Open { mut node, anchor, height, nodes, .. } = open;
        if let Value::Map(entries) = &mut node.value
            && entries.iter().any(|entry| entry.key == MERGE)
            && let Err(at) = merge(entries)
        {
            return Err(self.error(at, "<< is for a mapping, or a list of mappings".to_owned()));
        }
        self.add(node, anchor, height, nodes)
    }

    /// Puts a whole value into what is open around it. `nodes`: the values within it.
    fn add(&mut self, node: Node, anchor: usize, height: usize, nodes: usize) -> Result<(), SyntaxError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(self.too_many(node.at));
        }
        if anchor != 0 {
            self.anchored.insert(anchor, Anchored { node: node.clone(), height, nodes: nodes + 1 });
            // The copy that is kept counts as well.
            self.nodes += nodes + 1;
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.height = open.height.max(height + 1);
        open.nodes += nodes + 1;
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

    fn too_deep(&self, at: Place) -> SyntaxError {
        self.error(
            at,
            format!("is nested too deeply; allowed are {DEPTH_MAX} lists and mappings in one another"),
        )
    }

    fn too_many(&self, at: Place) -> SyntaxError {
        self.error(
            at,
            format!("the document has too many values; allowed are {NODES_MAX}, aliases put in their places"),
        )
    }
}

/// Puts the fields of the mappings under `<<` behind the entries that are there; those that are there already stay. The error is the
/// place of what is no mapping.
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

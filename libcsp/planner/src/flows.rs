//! Flows: conditions on fields of messages, bound to the formats of their channel.

use csp_config::Problems;
use csp_formats::{Fixed, Load};
use csp_operators::{FieldRange, Format, field_load, ranges};
use csp_policy::{DEFAULT_FLOW, Flow, Policy};

use crate::catalogue::Catalogue;
use crate::formats::KnownFormat;

/// Most fields that flows of one channel read.
pub const FLOW_FIELDS_MAX: usize = 8;
/// Most conditions of a flow that are ranges, those of ports included.
const RANGES_MAX: usize = 4;

/// What a flow asks of fields of its messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowCondition {
    /// Place of the flow's format among the channel's; `None`: all of them fit.
    pub format: Option<usize>,
    /// All of these hold.
    pub fields: Vec<FieldRange>,
}

/// The fields of one format that flows of its channel read.
#[derive(Clone, Debug)]
pub struct FormatFields {
    /// All of them.
    pub all: Fixed,
    /// Each with its number, the same in all formats of the channel.
    pub fields: Vec<(u8, Fixed, Load)>,
}

impl KnownFormat {
    fn format(&self) -> Option<Format> {
        Format::new(self.schema.clone(), self.message.clone()).ok()
    }
}

/// Binds the flow's condition to the formats of its channel; `None` without one.
///
/// # Errors
/// It fits none of them, or has not one meaning in those that it fits.
pub fn condition(flow: &Flow, formats: &[KnownFormat]) -> Result<Option<FlowCondition>, String> {
    let Some(text) = &flow.predicate.condition else { return Ok(None) };
    let named = flow.predicate.format.as_deref();
    let (mut fits, mut wrong, mut asked) = (Vec::new(), None, 0);
    for (at, known) in formats.iter().enumerate() {
        if named.is_some_and(|name| known.name != name) {
            continue;
        }
        asked += 1;
        match known.format().ok_or_else(String::new).and_then(|format| ranges(&format, text)) {
            Ok(fields) => fits.push((at, &known.name, fields)),
            Err(error) => wrong = wrong.or(Some(format!("format {}: {error}", known.name))),
        }
    }
    let Some((at, first, fields)) = fits.first().cloned() else {
        return Err(wrong.unwrap_or_else(|| "the channel has no formats".to_owned()));
    };
    let other = fits[1..].iter().find(|(.., other)| *other != fields || fits.len() < asked);
    if let Some((_, second, _)) = other {
        return Err(format!(
            "it fits {first} and {second}, and not all formats with the same meaning; name one in `format`"
        ));
    }
    let is_one = fits.len() == 1 && formats.len() > 1;
    Ok(Some(FlowCondition { format: is_one.then_some(at), fields }))
}

/// Notes what is wrong with the condition, which is for channels with formats.
fn check_condition(flow: &Flow, formats: Option<&[KnownFormat]>, at: &str, problems: &mut Problems) {
    if flow.predicate.condition.is_none() || flow.name == DEFAULT_FLOW {
        return;
    }
    let field = format!("{at}.match.where");
    let depends_on = [format!("{at}.match.channel"), format!("{at}.match.format")];
    let depends_on = depends_on.each_ref().map(String::as_str);
    let Some(formats) = formats.filter(|formats| !formats.is_empty()) else {
        let message = "fields are of messages of a channel with `formats`; name it with `channel`";
        problems.add_unless(&depends_on, field, message.to_owned());
        return;
    };
    match condition(flow, formats) {
        Err(error) => problems.add_unless(&depends_on, field, error),
        Ok(None) => {}
        Ok(Some(condition)) => {
            let predicate = &flow.predicate;
            let ports = [&predicate.source_port, &predicate.port].into_iter().flatten();
            let ports = ports.filter(|range| range.0.first != range.0.last).count();
            let fields = condition.fields.iter().filter(|range| range.words.start() != range.words.end());
            let count = ports + fields.count();
            if count > RANGES_MAX {
                let message =
                    format!("{count} conditions are ranges, ports included; at most {RANGES_MAX} can be");
                problems.add(field, message);
            }
        }
    }
}

impl Catalogue {
    /// Returns the formats of a channel, by its name.
    fn formats_of(&self, policy: &Policy, channel: Option<&str>) -> Option<&[KnownFormat]> {
        let at = policy.channels.iter().position(|known| Some(known.name.as_str()) == channel)?;
        self.channels.get(at).map(Vec::as_slice)
    }

    /// Returns the fields of a channel that flows read, in the order of their numbers.
    pub fn flow_fields(&self, policy: &Policy, channel: &str) -> Vec<String> {
        let formats = self.formats_of(policy, Some(channel)).unwrap_or_default();
        let of_channel =
            policy.information_flows.iter().filter(|flow| flow.predicate.channel.as_deref() == Some(channel));
        let mut paths: Vec<String> = Vec::new();
        for condition in of_channel.filter_map(|flow| condition(flow, formats).ok()?) {
            for range in condition.fields {
                if !paths.contains(&range.path) {
                    paths.push(range.path);
                }
            }
        }
        paths
    }

    /// Returns what a flow asks of fields.
    pub fn flow_condition(&self, policy: &Policy, flow: &Flow) -> Option<FlowCondition> {
        let formats = self.formats_of(policy, flow.predicate.channel.as_deref()).unwrap_or_default();
        condition(flow, formats).ok()?
    }

    /// Returns, for each format of a channel by its id, how the fields are read that flows ask for.
    pub fn flow_readers(&self, policy: &Policy, channel: &str) -> Vec<(u32, FormatFields)> {
        let paths = self.flow_fields(policy, channel);
        let formats = self.formats_of(policy, Some(channel)).unwrap_or_default();
        let readers = (1..).zip(formats).filter_map(|(id, known)| {
            let format = known.format()?;
            let located = paths.iter().map(|path| format.message().locate(path).ok()?.root_field().cloned());
            let located: Vec<_> =
                (0..).zip(located).filter_map(|(number, field)| Some((number, field?))).collect();
            let read = |(number, field): &(u8, csp_formats::Field)| {
                let (fixed, load) = field_load(&format, field).ok()?;
                Some((*number, field.clone(), fixed, load))
            };
            let fields: Vec<_> = located.iter().filter_map(read).collect();
            let all = Fixed::new(&known.schema, known.layout(), fields.iter().map(|(_, field, ..)| field));
            let fields: Vec<_> =
                fields.into_iter().map(|(number, _, fixed, load)| (number, fixed, load)).collect();
            (!fields.is_empty()).then_some((id, FormatFields { all, fields }))
        });
        readers.collect()
    }
}

/// Notes flows of which a channel's read too many fields, and what is wrong with their conditions.
pub(crate) fn check(policy: &Policy, catalogue: &Catalogue, problems: &mut Problems) {
    for (index, flow) in policy.information_flows.iter().enumerate() {
        let formats = catalogue.formats_of(policy, flow.predicate.channel.as_deref());
        check_condition(flow, formats, &format!("information_flows[{index}]"), problems);
    }
    for channel in &policy.channels {
        let fields = catalogue.flow_fields(policy, &channel.name);
        if fields.len() > FLOW_FIELDS_MAX {
            let message = format!(
                "flows read {} fields of messages of {:?} ({}); at most {FLOW_FIELDS_MAX} can be",
                fields.len(),
                channel.name,
                fields.join(", ")
            );
            problems.add("information_flows", message);
        }
    }
}

//! Several streams become one: their rows summed up in windows, or laid side by side where their keys are
//! equal.

use std::sync::Arc;

use csp_handlers::{Call, FormatId, Handler, Needs, ParameterError, State, Stop, Tick};
use csp_queries::{Plan, Source};

use crate::bind::{MESSAGE, One, Unbound};
use crate::counters::{Counter, HEADER, claim, fingerprint};
use crate::formats::{DERIVED_FIRST, Format, FormatSet};
use crate::parameters::{after_word, duration, names, time, wrong};
use crate::query::{
    Limits, PERIOD, QuerySetupError, SOURCES_MAX, SideBySide, Time, Windowed, check_time, meaning,
};
use crate::row::{FORMAT, ROW_LEN_MAX, give_up};

/// Bytes of state for the groups of a merge.
pub const MERGE_STATE: u32 = 2 << 20;

/// Merges the streams of a channel, one for each format that the parameters fit.
///
/// - `by at seconds late 5 seconds; SELECT origin, AVG(wind) AS wind FROM message GROUP BY origin WINDOW
///   INTERVAL '5' SECONDS`: the rows of all streams go into the same windows. A stream whose messages lack a
///   column that is named is none of the merge.
/// - `by at seconds; UNION origin, hour WINDOW 1 hour`: one row of each stream with equal keys, in one
///   window, make a row with the fields of all. A later row of a stream replaces an earlier one that still
///   waits.
///
/// Without `by` the time is that of arrival.
#[derive(Debug)]
pub struct Merge {
    formats: Arc<FormatSet>,
    streams: Vec<FormatId>,
    output: FormatId,
    fingerprint: u64,
    run: Run,
}

#[derive(Debug)]
enum Run {
    Nothing,
    Windows(Box<Windowed>),
    Union(Box<SideBySide>),
}

/// What parameters have made.
struct Made {
    streams: Vec<FormatId>,
    output: FormatId,
    meaning: String,
    run: Run,
}

impl Merge {
    /// A merge of nothing, before it is configured.
    #[must_use]
    pub fn new(formats: &Arc<FormatSet>) -> Self {
        let formats = formats.clone();
        Merge { formats, streams: Vec::new(), output: FormatId::UNKNOWN, fingerprint: 0, run: Run::Nothing }
    }

    fn seed(&self) -> u64 {
        self.formats.seed().unwrap_or(Limits::default().seed)
    }

    fn windows(&self, sql: &str, time: &Time) -> Result<Made, ParameterError> {
        let mut plans: Vec<(FormatId, Arc<Plan>, FormatId)> = Vec::new();
        let mut first = None;
        for (id, format) in self.formats.all() {
            let made = self.plan(&format, sql).and_then(|made| match check_time(&made.0, time) {
                Ok(()) => Ok(made),
                Err(error) => Err(setup(error).0),
            });
            match made {
                Ok((plan, output)) if plans.first().is_none_or(|known| known.2 == output) => {
                    plans.push((id, Arc::new(plan), output));
                }
                // What other operators have derived fits by chance.
                Ok(_) if id.0 >= DERIVED_FIRST => (),
                Ok(_) => {
                    let known = &plans[0].1.sources[0].message;
                    return wrong(format!(
                        "messages \"{known}\" and \"{}\" give results of different types",
                        format.name
                    ));
                }
                Err(error) => first = first.or(Some(format!("for messages \"{}\": {error}", format.name))),
            }
        }
        plans.truncate(SOURCES_MAX);
        let Some((_, plan, output)) = plans.first() else {
            return wrong(first.unwrap_or_else(|| "the channel has no formats".to_owned()));
        };
        if plan.window.is_none() {
            return wrong("a merge needs a window: add WINDOW INTERVAL '5' SECONDS or WINDOW 100 ROWS");
        }
        let (output, meaning) = (*output, format!("{:?}", meaning(plan)));
        let times = vec![time.clone(); plans.len()];
        let make = |groups: u32| {
            let limits = Limits { groups, seed: self.seed(), ..Limits::default() };
            let plans = plans.iter().map(|(_, plan, _)| plan.clone()).collect();
            Windowed::new(plans, &times, output, &limits, HEADER)
        };
        let made = make(1).and_then(|one| make(one.groups_fitting(MERGE_STATE as usize)));
        let run = Run::Windows(Box::new(made.map_err(setup)?));
        Ok(Made { streams: plans.iter().map(|(id, ..)| *id).collect(), output, meaning, run })
    }

    fn plan(&self, format: &Format, sql: &str) -> Result<(Plan, FormatId), String> {
        let made = self.formats.derive(|schema_id| {
            let plan = Plan::new(sql, &One(format), schema_id).map_err(Unbound::Query)?;
            let (schema, xml) = (plan.derived.schema.clone(), plan.derived.xml.clone());
            Ok((plan, schema, xml))
        });
        made.map_err(Unbound::whole)
    }

    fn union(&self, text: &str, time: &Time) -> Result<Made, ParameterError> {
        let lower = text.to_ascii_lowercase();
        let Some(at) = lower.rfind(" window ") else {
            return wrong("a union needs a window: UNION origin, hour WINDOW 1 hour");
        };
        let (keys, window) = (names(&text[..at])?, duration(&text[at + " window ".len()..])?);
        let has_keys = |format: &Format| keys.iter().all(|key| format.message().locate(key).is_ok());
        let mut formats = self.formats.all();
        formats.retain(|(id, format)| id.0 < DERIVED_FIRST && has_keys(format));
        if !(2..=SOURCES_MAX).contains(&formats.len()) {
            return wrong(format!(
                "{} of the channel's formats have all of {}: 2 to {SOURCES_MAX} can be merged",
                formats.len(),
                keys.join(", ")
            ));
        }
        let source = |format: &Arc<Format>| Source {
            channel: format.name.to_string(),
            alias: format.name.to_string(),
            schema: format.schema.clone(),
            message: format.name.clone(),
        };
        let sources: Vec<Source> = formats.iter().map(|(_, format)| source(format)).collect();
        let (union, output) = self
            .formats
            .derive(|schema_id| {
                let union =
                    csp_queries::Union::new(sources.clone(), &keys, schema_id).map_err(Unbound::Query)?;
                let (schema, xml) = (union.plan.derived.schema.clone(), union.plan.derived.xml.clone());
                Ok((union, schema, xml))
            })
            .map_err(|error: Unbound| ParameterError(error.whole()))?;
        let meaning = format!("union {:?} {keys:?} {window:?}", meaning(&union.plan));
        let made = SideBySide::new(union, (time, window), output, (MERGE_STATE as usize, self.seed()))
            .map_err(setup)?;
        let run = Run::Union(Box::new(made));
        Ok(Made { streams: formats.iter().map(|(id, _)| *id).collect(), output, meaning, run })
    }
}

fn setup(error: QuerySetupError) -> ParameterError {
    ParameterError(error.to_string().replace("the time of message", &format!("the time of the {MESSAGE}")))
}

impl Handler for Merge {
    fn losses(&self, state: &State) -> csp_handlers::Losses {
        crate::counters::losses(state)
    }

    fn needs(&self) -> Needs {
        let state = HEADER as u32 + MERGE_STATE;
        Needs { state, new_len_max: ROW_LEN_MAX, period: Some(PERIOD), ..Needs::default() }
    }

    fn accepts(&self, format: FormatId) -> bool {
        self.streams.contains(&format)
    }

    fn yields(&self, _: u8, _: FormatId) -> FormatId {
        self.output
    }

    fn configure(&mut self, parameters: &str, _: &mut State) -> Result<(), ParameterError> {
        let text = parameters.trim();
        let (time, rest) = match after_word(text, "by") {
            Some(rest) => match rest.split_once(';') {
                Some((by, rest)) => (time(by)?, rest.trim()),
                None => {
                    return wrong("a semicolon is missing behind the field of time: by at seconds; SELECT …");
                }
            },
            None => (Time::Arrival, text),
        };
        let made = match after_word(rest, "union") {
            Some(rest) => self.union(rest, &time)?,
            None => self.windows(rest, &time)?,
        };
        self.fingerprint =
            fingerprint(&format!("{time:?} {:?} {} {}", made.streams, made.meaning, self.seed()));
        (self.streams, self.output, self.run) = (made.streams, made.output, made.run);
        Ok(())
    }

    fn on_message(&mut self, call: &mut Call<'_>) -> Result<(), Stop> {
        claim(call.state(), self.fingerprint);
        let format = call.message().format;
        let stream = self.streams.iter().position(|stream| *stream == format);
        match (&mut self.run, stream) {
            (Run::Windows(windows), Some(stream)) => windows.message(call, stream),
            (Run::Union(union), Some(stream)) => union.message(call, stream),
            _ => give_up(call, (Counter::Invalid, FORMAT)),
        }
    }

    fn on_timer(&mut self, tick: &mut Tick<'_>) -> Result<(), Stop> {
        claim(tick.state(), self.fingerprint);
        match &mut self.run {
            Run::Nothing => Ok(()),
            Run::Windows(windows) => windows.tick(tick),
            Run::Union(union) => {
                union.tick(tick);
                Ok(())
            }
        }
    }
}

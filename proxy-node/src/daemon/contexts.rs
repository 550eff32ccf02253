//! What a worker's contexts, paths and handlers show, on the admin endpoint and as metrics.

use csp_api::contexts::{Context, Contexts, FormatProfile, Handler, PathStage};
use csp_api::proxy::LostRows;
use csp_handlers::{CONTEXTS_MAX, FormatId, Losses, Profile};
use csp_messages::{ContextStatus, HandlerStatus, PathState, PathStatus};
use csp_services::{ContextsSnapshot, ElsewhereSnapshot, MessageBroker, Presence, StagePlace};
use csp_telemetry::MetricWriter;
use csp_types::Duration;

/// Returns what a worker runs. The worker's number is set by the reader.
pub(super) fn of_worker(broker: &MessageBroker) -> Contexts {
    let ContextsSnapshot { contexts, paths, handlers, elsewhere, places } = broker.contexts();
    let elsewhere_of = |number| elsewhere.iter().find(|known| known.context == number);
    Contexts {
        contexts: contexts.iter().map(|known| context(known, elsewhere_of(known.number))).collect(),
        stages: paths.iter().flat_map(|(channel, path)| stages(broker, channel, path, &places)).collect(),
        handlers: handlers.iter().map(handler).collect(),
    }
}

/// Joins those of all workers, in the order of the workers.
pub(super) fn join(workers: impl Iterator<Item = Contexts>) -> Contexts {
    let mut all = Contexts::default();
    for (worker, mut of_worker) in (0u64..).zip(workers) {
        of_worker.contexts.iter_mut().for_each(|context| context.worker = worker);
        of_worker.stages.iter_mut().for_each(|stage| stage.worker = worker);
        of_worker.handlers.iter_mut().for_each(|handler| handler.worker = worker);
        all.contexts.append(&mut of_worker.contexts);
        all.stages.append(&mut of_worker.stages);
        all.handlers.append(&mut of_worker.handlers);
    }
    all
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the name of a context by its number at the plane.
pub(super) fn name_of(context: u16) -> String {
    match context.checked_sub(CONTEXTS_MAX) {
        None => format!("c{context}"),
        Some(number) => format!("g{number}"),
    }
}

fn context(status: &ContextStatus, elsewhere: Option<&ElsewhereSnapshot>) -> Context {
    let place = match elsewhere.map(|known| known.presence) {
        None if status.number < CONTEXTS_MAX => "own",
        Some(Presence::Connected) => "connected",
        Some(Presence::Unused) => "unused",
        Some(Presence::Absent) | None => "absent",
    };
    let report = &status.report;
    Context {
        worker: 0,
        name: name_of(status.number).into(),
        place: place.into(),
        calls_total: elsewhere.map_or(0, |known| known.calls),
        losses_total: elsewhere.map_or(0, |known| known.losses),
        violations_total: elsewhere.map_or(0, |known| known.violations),
        stages: status.stages.into(),
        waiting: status.waiting,
        waiting_max: report.waiting_max.into(),
        messages_total: report.messages,
        bytes_total: report.bytes,
        points_total: report.points,
        busy_ns_total: nanos(report.busy()),
        state_bytes: status.state_bytes,
    }
}

/// Returns the quantiles of recent calls that are shown: p50 and p99.
fn quantiles(profile: &Profile) -> (u64, u64) {
    (nanos(profile.timing.quantile(500)), nanos(profile.timing.quantile(990)))
}

fn stages(broker: &MessageBroker, channel: &str, path: &PathStatus, places: &[StagePlace]) -> Vec<PathStage> {
    let counters = &path.counters;
    let dropped = counters.dropped_newest
        + counters.dropped_oldest
        + counters.dropped_memory
        + counters.dropped_faults
        + counters.dropped_ignored
        + counters.dropped_invalid;
    let state = match path.state {
        PathState::Active => "active",
        PathState::Waiting => "waiting",
        PathState::Retired => "retired",
        PathState::Ended => "ended",
    };
    let name = |format: Option<FormatId>| match format {
        None => "others".to_owned(),
        Some(FormatId::UNKNOWN) => "unknown".to_owned(),
        Some(format) => broker.format_name(path.channel, format).unwrap_or_else(|| format.0.to_string()),
    };
    let by_format = |(format, profile): &(Option<FormatId>, Profile)| {
        let (p50_ns, p99_ns) = quantiles(profile);
        let (messages_total, bytes_total) = (profile.messages, profile.bytes);
        FormatProfile { format: name(*format).into(), messages_total, bytes_total, p50_ns, p99_ns }
    };
    let stage = |(at, stage): (usize, &csp_messages::StageStatus)| {
        let timing = &stage.profile.timing;
        let own = (quantiles(&stage.profile), nanos(timing.mean()), nanos(timing.max));
        let ((p50_ns, p99_ns), mean_ns, max_ns) = match &stage.times {
            Some(times) => ((nanos(times.p50), nanos(times.p99)), nanos(times.mean), nanos(times.max)),
            None => own,
        };
        let place = places.iter().find(|place| (place.path, place.stage) == (path.id, at));
        PathStage {
            worker: 0,
            channel: channel.into(),
            format: path.format.map(|format| format.0),
            format_name: path.format.map_or(String::new(), |format| name(Some(format))).into(),
            state: state.into(),
            stage: at as u64,
            handler: (&stage.handler).into(),
            context: name_of(stage.context).into(),
            why: why(stage.refused.as_deref(), place).into(),
            moves_total: place.map_or(0, |place| place.moves),
            waiting: stage.waiting as u64,
            held: stage.held,
            entered_total: if at == 0 { counters.entered } else { 0 },
            dropped_total: if at == 0 { dropped } else { 0 },
            lost_rows: lost_rows(&stage.losses),
            messages_total: stage.profile.messages,
            emitted_total: stage.profile.emitted,
            mean_ns,
            max_ns,
            p50_ns,
            p99_ns,
            bytes_total: stage.profile.bytes,
            fuel_total: stage.usage.fuel,
            stops_total: stage.usage.stops,
            memory_bytes: stage.state_bytes as u64 + stage.usage.memory,
            formats: stage.formats.iter().map(by_format).collect(),
        }
    };
    path.stages.iter().enumerate().map(stage).collect()
}

/// Returns what an operator has lost as bodies show it.
pub(super) fn lost_rows(losses: &Losses) -> LostRows {
    let Losses { late, evicted, invalid, unmatched, too_long } = *losses;
    LostRows {
        late_total: late,
        evicted_total: evicted,
        invalid_total: invalid,
        unmatched_total: unmatched,
        too_long_total: too_long,
    }
}

/// Says why a stage runs where it does; nothing of one that the policy has placed and that runs.
fn why(refused: Option<&str>, place: Option<&StagePlace>) -> String {
    match (refused, place) {
        (Some(refused), _) => format!("does not run: {refused}"),
        (None, Some(place)) => format!("{}, for {} s", place.why, place.age.as_secs()),
        (None, None) => String::new(),
    }
}

fn handler(status: &HandlerStatus) -> Handler {
    let profile = &status.profile;
    let (p50_ns, p99_ns) = quantiles(profile);
    Handler {
        worker: 0,
        name: (&status.name).into(),
        stages: status.stages.into(),
        messages_total: profile.messages,
        emitted_total: profile.emitted,
        full_total: profile.full,
        faults_total: profile.faults,
        state_refused_total: status.state_refused,
        mean_ns: nanos(profile.timing.mean()),
        max_ns: nanos(profile.timing.max),
        p50_ns,
        p99_ns,
        bytes_total: profile.bytes,
        fuel_total: status.usage.fuel,
        stops_total: status.usage.stops,
        memory_bytes: status.usage.memory,
    }
}

/// Writes the metrics of a worker's contexts and handlers.
pub(super) fn collect(out: &mut MetricWriter, contexts: &Contexts, worker: &str) {
    for context in &contexts.contexts {
        let labels = [("context", context.name.as_str()), ("worker", worker)];
        let counters = [
            ("csp_context_messages_total", "Messages processed by a context", context.messages_total),
            ("csp_context_bytes_total", "Bytes of messages processed by a context", context.bytes_total),
            ("csp_context_points_total", "Resource-management points of a context", context.points_total),
            (
                "csp_context_calls_total",
                "Messages sent to a context that is another program",
                context.calls_total,
            ),
            ("csp_context_losses_total", "Lost connections to such a context", context.losses_total),
            (
                "csp_context_violations_total",
                "Connections to such a context that were ended for what it sent",
                context.violations_total,
            ),
            ("csp_context_busy_nanoseconds_total", "Time of a context in handlers", context.busy_ns_total),
        ];
        counters.into_iter().for_each(|(name, help, value)| out.counter(name, help, &labels, value));
        let gauges = [
            ("csp_context_stages", "Stages of paths that a context runs", context.stages),
            ("csp_context_waiting_messages", "Messages that wait for a context", context.waiting),
            ("csp_context_state_bytes", "Memory of the state of a context's handlers", context.state_bytes),
        ];
        gauges.into_iter().for_each(|(name, help, value)| out.gauge(name, help, &labels, value as f64));
    }
    collect_handlers(out, contexts, worker);
    collect_formats(out, contexts, worker);
}

fn collect_handlers(out: &mut MetricWriter, contexts: &Contexts, worker: &str) {
    for handler in &contexts.handlers {
        let labels = [("handler", handler.name.as_str()), ("worker", worker)];
        let counters = [
            ("csp_handler_messages_total", "Messages processed by a handler", handler.messages_total),
            ("csp_handler_bytes_total", "Bytes of messages processed by a handler", handler.bytes_total),
            ("csp_handler_emitted_total", "Messages emitted by a handler", handler.emitted_total),
            ("csp_handler_full_total", "Calls of a handler that waited for room", handler.full_total),
            ("csp_handler_faults_total", "Calls that a handler has given up", handler.faults_total),
            (
                "csp_handler_state_refused_total",
                "Stages that began with no state, since their handler refused that of the stage before",
                handler.state_refused_total,
            ),
        ];
        counters.into_iter().for_each(|(name, help, value)| out.counter(name, help, &labels, value));
        let gauges = [
            ("csp_handler_stages", "Stages of paths that a handler serves", handler.stages),
            (
                "csp_handler_p50_nanoseconds",
                "Time within which half of a handler's recent calls ended",
                handler.p50_ns,
            ),
            ("csp_handler_p99_nanoseconds", "The same of 99 of 100", handler.p99_ns),
            ("csp_handler_memory_bytes", "Memory reserved for a supplied handler", handler.memory_bytes),
            ("csp_handler_mean_nanoseconds", "Weighted mean time of a handler's calls", handler.mean_ns),
            (
                "csp_handler_max_nanoseconds",
                "Longest time of a handler's calls that were measured",
                handler.max_ns,
            ),
        ];
        gauges.into_iter().for_each(|(name, help, value)| out.gauge(name, help, &labels, value as f64));
    }
}

/// Writes the metrics of stages by channel and format.
fn collect_formats(out: &mut MetricWriter, contexts: &Contexts, worker: &str) {
    // A path that is replaced and the one that replaces it have the same labels for a moment.
    let stages = contexts.stages.iter().filter(|stage| ["active", "ended"].contains(&&*stage.state));
    for stage in stages {
        let number = stage.stage.to_string();
        let help = "How often the proxy has moved a stage to another context by itself";
        out.counter(
            "csp_stage_moves_total",
            help,
            &labels_of(stage, &number, None, worker),
            stage.moves_total,
        );
        for (reason, value) in stage.lost_rows.named() {
            let labels = labels_of(stage, &number, Some(("reason", reason)), worker);
            let help = "Rows that an operator of the channel's path was given and has not used";
            out.counter("csp_stage_lost_rows_total", help, &labels, value);
        }
        for profile in &stage.formats {
            let labels = labels_of(stage, &number, Some(("format", &profile.format)), worker);
            let help = "Messages of a format processed by a stage of the channel's path";
            out.counter("csp_stage_messages_total", help, &labels, profile.messages_total);
            let help = "Bytes of messages of a format processed by a stage of the channel's path";
            out.counter("csp_stage_bytes_total", help, &labels, profile.bytes_total);
            let help = "Time within which half of a stage's recent calls with a format ended";
            out.gauge("csp_stage_p50_nanoseconds", help, &labels, profile.p50_ns as f64);
            out.gauge("csp_stage_p99_nanoseconds", "The same of 99 of 100", &labels, profile.p99_ns as f64);
        }
    }
}

/// Returns the labels of a stage's metrics. The path of all formats, which a channel has alone, has none.
fn labels_of<'a>(
    stage: &'a PathStage,
    number: &'a str,
    further: Option<(&'a str, &'a str)>,
    worker: &'a str,
) -> Vec<(&'a str, &'a str)> {
    let channel = ("channel", stage.channel.as_str());
    let path = stage.format.map(|_| ("path", stage.format_name.as_str()));
    let stage = [("stage", number), ("handler", stage.handler.as_str())];
    std::iter::once(channel).chain(path).chain(stage).chain(further).chain([("worker", worker)]).collect()
}

//! `? figure == value`: figures of the engine by name.
//!
//! Names are those of the fields of [`csp_tcp::ConnectionInfo`], [`csp_tcp::Counters`] and
//! [`csp_tcp::Occupancy`] in their `Debug` output, so a new figure needs no change here.

use csp_tcp::Stack;
use csp_types::FlowLabel;

use crate::matching::Bases;
use crate::parse::value;
use crate::script::{Check, Operator, Value};

/// Evaluates a check. The error contains the figure's value.
pub(crate) fn check(
    check: &Check,
    stack: &Stack,
    label: Option<FlowLabel>,
    bases: &Bases,
) -> Result<(), String> {
    let found = figure(&check.name, stack, label, bases)?;
    if holds(&found, check) {
        return Ok(());
    }
    let found = match found {
        Value::Number(n) => n.to_string(),
        Value::Word(word) => word,
    };
    Err(format!("{} is {found}", check.name))
}

fn holds(found: &Value, check: &Check) -> bool {
    match (found, &check.value, check.operator) {
        (found, wanted, Operator::Equal) => found == wanted,
        (found, wanted, Operator::Unequal) => found != wanted,
        (Value::Number(found), Value::Number(wanted), operator) => match operator {
            Operator::Less => found < wanted,
            Operator::LessOrEqual => found <= wanted,
            Operator::Greater => found > wanted,
            Operator::GreaterOrEqual => found >= wanted,
            Operator::Within(high) => (*wanted..=high).contains(found),
            Operator::Equal | Operator::Unequal => false,
        },
        _ => false,
    }
}

fn figure(name: &str, stack: &Stack, label: Option<FlowLabel>, bases: &Bases) -> Result<Value, String> {
    let info = label.and_then(|label| stack.info(label));
    match name {
        "state" if info.is_none() => return Ok(Value::Word("gone".into())),
        // Difference between the initial sequence number and that of the previous connection.
        "isn_step" => {
            let before = bases.ours_before.ok_or("there was no previous connection")?;
            return Ok(Value::Number(i64::from(bases.ours.wrapping_sub(before) as i32)));
        }
        "readable" => {
            let readable = label.map_or(0, |label| stack.readable(label));
            return Ok(Value::Number(readable as i64));
        }
        _ => {}
    }
    let sources = [
        info.map(|info| format!("{info:?}")),
        Some(format!("{:?}", stack.counters())),
        Some(format!("{:?}", stack.occupancy())),
    ];
    let found = sources.into_iter().flatten().find_map(|text| field(&text, name));
    found.ok_or_else(|| format!("{name}: no such figure, or the connection has ended"))
}

/// Returns a field of a value from its `Debug` output: the first number of a tuple, the nanoseconds of a
/// duration.
fn field(debug: &str, name: &str) -> Option<Value> {
    let starts = [format!(" {name}: "), format!("({name}: ")];
    let rest = starts.iter().find_map(|start| debug.split_once(start.as_str()))?.1;
    let text = rest.trim_start_matches("Some").trim_start_matches('(');
    let end = text.find([',', ' ', ')', '}']).unwrap_or(text.len());
    Some(value::value(text.get(..end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_name() {
        let debug = "Info { state: FinWait1, cwnd: 14600, rto: 1.5s, time_wait: (3, 64), srtt: Some(20ms) }";
        let get = |name| field(debug, name);
        assert_eq!(get("state"), Some(Value::Word("finwait1".into())));
        assert_eq!(get("cwnd"), Some(Value::Number(14_600)));
        assert_eq!(get("rto"), Some(Value::Number(1_500_000_000)));
        assert_eq!(get("time_wait"), Some(Value::Number(3)));
        assert_eq!(get("srtt"), Some(Value::Number(20_000_000)));
        assert_eq!(get("wnd"), None);
    }
}

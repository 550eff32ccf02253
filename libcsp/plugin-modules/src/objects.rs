//! Modules that are eBPF objects: who verifies them, and policies under which they would never run.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use csp_classify::multifield::Direction;
use csp_plugins::{Desired, DesiredInstance, Level, ObjectDeclaration};

/// What a daemon with packet processors does with eBPF objects.
pub trait Objects: Debug + Send + Sync {
    /// Reads what an object declares.
    ///
    /// # Errors
    /// What is wrong with it.
    fn read(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String>;

    /// The same, and has the kernel verify the program.
    ///
    /// # Errors
    /// What is wrong with it, with the end of the verifier's log; or that BPF is not permitted.
    fn verify(&self, bytes: &[u8]) -> Result<ObjectDeclaration, String>;
}

/// Whether the bytes are those of an ELF file, and so of no WebAssembly.
pub(crate) fn is_object(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

pub(crate) fn check(
    objects: Option<&dyn Objects>,
    bytes: &[u8],
    new: bool,
) -> Result<ObjectDeclaration, String> {
    let objects = objects.ok_or("it is an eBPF object, which runs at level 1 of network nodes only")?;
    if new { objects.verify(bytes) } else { objects.read(bytes) }
}

/// Why instances of eBPF objects, by name, would never run, or not for all packets, under a policy.
pub(crate) fn never_run(desired: &Desired, objects: &HashSet<&str>) -> Vec<String> {
    if objects.is_empty() {
        return Vec::new();
    }
    let by_name: HashMap<&str, &DesiredInstance> =
        desired.instances.iter().map(|instance| (instance.name.as_str(), instance)).collect();
    let elsewhere = |name: &str| {
        let instance = by_name.get(name)?;
        match instance.auto {
            // It would be in the driver at times only, and the object with it.
            Some(_) => Some("auto".to_owned()),
            None => (instance.level != Level::Driver).then(|| (instance.level as u8).to_string()),
        }
    };
    let mut wrong = Vec::new();
    for instance in &desired.instances {
        let name = instance.name.as_str();
        let behind = reached(&by_name, name);
        if objects.contains(name) {
            wrong.extend(behind.iter().find_map(|other| {
                let level = elsewhere(other)?;
                Some(format!(
                    "plug-in {name}: packets can reach {other} at level {level} from there, so that the eBPF object would never run"
                ))
            }));
        } else if let Some(level) = elsewhere(name)
            && let Some(object) = behind.iter().find(|other| objects.contains(*other))
        {
            wrong.push(format!(
                "plug-in {name} is at level {level} and leads to {object}, an eBPF object, which would never get these packets"
            ));
        }
    }
    for rule in &desired.rules {
        let start = rule.instance.as_str();
        let of_object = |name: &str| objects.contains(name);
        if rule.fields.direction != Some(Direction::Ingress)
            && let Some(object) =
                core::iter::once(start).chain(reached(&by_name, start)).find(|name| of_object(name))
        {
            wrong.push(format!(
                "rule {}: it also matches packets that are transmitted, and leads to {object}, an eBPF object, which gets only received ones; \
                 add `ingress`",
                rule.name
            ));
        }
    }
    wrong
}

/// The instances behind another one, each once.
fn reached<'a>(by_name: &HashMap<&'a str, &'a DesiredInstance>, from: &'a str) -> Vec<&'a str> {
    let (mut found, mut at) = (Vec::new(), 0);
    let mut next = Some(from);
    while let Some(name) = next {
        let outputs = by_name.get(name).into_iter().flat_map(|instance| instance.outputs.iter().flatten());
        for to in outputs {
            if !found.contains(&to.as_str()) {
                found.push(to.as_str());
            }
        }
        next = found.get(at).copied();
        at += 1;
    }
    found
}

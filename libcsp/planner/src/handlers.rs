//! Supplied handlers: none has the name of a built-in one.

use csp_config::Problems;
use csp_policy::{Policy, SuppliedHandler};

/// Returns the supplied handler of a name.
pub(crate) fn find<'p>(handlers: &'p [SuppliedHandler], name: &str) -> Option<&'p SuppliedHandler> {
    handlers.iter().find(|handler| handler.name == name)
}

/// Checks the names of a policy's supplied handlers.
pub(crate) fn check(policy: &Policy, problems: &mut Problems) {
    for (index, handler) in policy.handlers.iter().enumerate() {
        let name = handler.name.as_str();
        if crate::paths::is_built_in(name) {
            problems
                .add(format!("handlers[{index}].name"), format!("`{name}` is built in; choose another name"));
        }
    }
}

#[cfg(test)]
mod tests {
    use csp_policy::Policy;

    use crate::checked;

    const HANDLERS: &str = "\
apiVersion: csp/v1
handlers:
  - name: mask
    module: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
channels:
  - name: ticks
    vip: 10.76.0.100
    port: 5556
    path:
      - {handler: forward}
      - {handler: mask, context: c1, parameters: \"4\"}
";

    #[test]
    fn a_path_names_a_supplied_handler() {
        let policy = checked(HANDLERS, "p.yaml").unwrap();
        assert_eq!(policy.handlers[0].on_stop, csp_types::options::OnStop::Restart);
        assert_eq!(Policy::from_json(&policy.to_json(), "p.json").unwrap(), policy);
        let (before, after) = HANDLERS.split_once("handlers:").unwrap();
        let before = format!("{before}channels:{}", after.split_once("channels:").unwrap().1);
        let before = before.replacen("\n      - {handler: mask, context: c1, parameters: \"4\"}", "", 1);
        let before = checked(&before, "p.yaml").unwrap();
        assert!(!before.to_json().contains("handlers"), "the hash of a policy without them stays");
        let diff = before.diff(&policy);
        assert!(diff.contains(&"+ handler mask module e3b0c44298fc".to_owned()), "{diff:?}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, expected) in [
            (
                "name: mask",
                "name: select",
                "3:11: handlers[0].name: `select` is built in; choose another name",
            ),
            (
                "module: e3b0",
                "module: sha256-e3b0",
                "4:13: handlers[0].module: \"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\" names no \
                 module; it has 64 hex digits (0-9 a-f), as `cspctl handler put FILE` prints",
            ),
            (
                "context: c1",
                "context: g0",
                "11:34: channels[0].path[1].context: `g0` is not among the policy's contexts",
            ),
        ] {
            let error = checked(&HANDLERS.replacen(from, to, 1), "p.yaml").unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = checked(&HANDLERS.replace("name: mask", "name: musk"), "p.yaml").unwrap_err();
        assert!(error.to_string().contains("`mask` is not known; allowed are forward"), "{error}");
        assert!(error.to_string().ends_with(", musk"), "the policy's own are among them: {error}");
        // A path without formats has no `anonymise`, whatever a supplied handler is called.
        let error = HANDLERS.replace("name: mask", "name: forward").replace("handler: mask", "handler: musk");
        let error = checked(&error, "p.yaml").unwrap_err().to_string();
        assert_eq!(error.matches("allowed are forward, ").count(), 1, "{error}");
        assert!(!error.contains(", forward"), "a name stands there once: {error}");
    }
}

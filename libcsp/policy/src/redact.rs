//! A policy without its secrets, for those who may read it and not change it.

use super::Policy;
use super::branches::for_each_mut;
use super::paths::PathStage;

/// What stands for a key. `anonymise` refuses it, so that such a policy cannot come into force by mistake.
const REDACTED: &str = "key (redacted)";

impl Policy {
    /// Returns the policy with the keys of `anonymise` left out: whoever has such a key can try values.
    #[must_use]
    pub fn redacted(&self) -> Policy {
        let mut policy = self.clone();
        for channel in &mut policy.channels {
            for_each_mut(&mut channel.path, &mut redact);
            channel.paths.iter_mut().for_each(|path| for_each_mut(&mut path.path, &mut redact));
        }
        policy
    }
}

fn redact(stage: &mut PathStage) {
    if stage.handler == "anonymise" {
        let parts = stage.parameters.split(',').map(str::trim);
        let parts: Vec<&str> = parts.map(|part| if is_key(part) { REDACTED } else { part }).collect();
        stage.parameters = parts.join(", ");
    }
}

/// Anything that begins as a key does, right or wrong.
fn is_key(part: &str) -> bool {
    part.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"apiVersion: csp/v1
formats:
  - name: flight
    schema: |
      <messageSchema package="a" id="1" version="0">
        <types>
          <composite name="messageHeader">
            <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
            <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
          </composite>
          <type name="text" primitiveType="char" length="8"/>
        </types>
        <message name="Flight" id="1"><field name="keys" id="1" type="text"/><field name="name" id="2" type="text"/></message>
      </messageSchema>
channels:
  - name: flights
    vip: 10.0.0.1
    port: 5601
    formats: [flight]
    path:
      - {handler: anonymise, parameters: "hash name,  key 000102030405060708090a0b0c0d0e0f , mask keys 2"}
      - {handler: select, parameters: "name = 'key 00'"}
"#;

    #[test]
    fn a_redacted_policy_has_no_key() {
        let policy = Policy::parse_yaml(POLICY, "p.yaml").unwrap();
        let redacted = policy.redacted();
        let parameters: Vec<&str> =
            redacted.channels[0].path.iter().map(|stage| stage.parameters.as_str()).collect();
        assert_eq!(parameters, ["hash name, key (redacted), mask keys 2", "name = 'key 00'"]);
        assert_ne!(policy, redacted);
    }

    #[test]
    fn a_redacted_policy_has_no_key_behind_outputs() {
        let (first, last) = ("000102030405060708090a0b0c0d0e0f", "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
        let stage = |key: &str| format!("{{handler: anonymise, parameters: \"hash name, key {key}\"}}");
        let inner = format!("{{handler: multicast, outputs: [{{}}, {{path: [{}]}}]}}", stage(last));
        let outer = format!("[{{handler: multicast, outputs: [{{path: [{}, {inner}]}}]}}]", stage(first));
        let (head, _) = POLICY.split_once("    path:").unwrap();
        for path in
            [format!("    path: {outer}\n"), format!("    paths: [{{format: flight, path: {outer}}}]\n")]
        {
            let policy = Policy::parse_yaml(&format!("{head}{path}"), "p.yaml").unwrap();
            let has = |policy: &Policy| [first, last].map(|key| policy.to_json().contains(key));
            assert_eq!((has(&policy), has(&policy.redacted())), ([true; 2], [false; 2]), "{path}");
            assert_eq!(policy.redacted().to_json().matches(REDACTED).count(), 2, "{path}");
        }
    }
}

//! SBE schemas of tests and demos.

/// Returns a schema as it stands in the block text of a policy: `attributes` are those of the schema, `types`
/// and `messages` its elements.
pub fn sbe_schema(attributes: &str, types: &str, messages: &str) -> String {
    format!(
        r#"
      <sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" {attributes}>
        <types>
          <composite name="messageHeader">
            <type name="blockLength" primitiveType="uint16"/>
            <type name="templateId" primitiveType="uint16"/>
            <type name="schemaId" primitiveType="uint16"/>
            <type name="version" primitiveType="uint16"/>
          </composite>
          {types}
        </types>
        {messages}
      </sbe:messageSchema>
"#
    )
}

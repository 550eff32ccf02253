//! Examples in documents.

/// Returns the blocks of a Markdown text that are YAML, whatever else stands behind the word on their fences.
pub fn yaml_blocks(document: &str) -> Vec<&str> {
    let blocks = document.split("```yaml").skip(1);
    blocks.filter_map(|block| block.split_once('\n')?.1.split("```").next()).collect()
}

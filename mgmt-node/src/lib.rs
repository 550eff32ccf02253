//! The management node: membership, policy generations, cspctl, operations page.

//! Tests of the policy schema.

//! Tests of the policy state machine.

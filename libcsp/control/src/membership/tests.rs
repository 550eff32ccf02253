//! Tests of membership without etcd.

//! One process in a box. Synchronous, and knows nothing of tenants, threads or HTTP.

pub mod seccomp;

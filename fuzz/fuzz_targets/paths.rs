//! Runs in: test. Any bytes as ranges, home paths and sub-paths.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_gateway::fuzzing::check_path(bytes));

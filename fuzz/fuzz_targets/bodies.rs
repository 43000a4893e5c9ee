//! Runs in: test. Any bytes as a request body or the arguments of a tool.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_gateway::fuzzing::check_body(bytes));

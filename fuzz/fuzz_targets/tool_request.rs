//! Runs in: test. Any bytes as a request of a guest for a web tool.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_gateway::fuzzing::check_tool_request(bytes));

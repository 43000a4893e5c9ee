//! Runs in: test. Any bytes as the head of a request to a host with a credential.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_interception::fuzzing::check_request_head(bytes));

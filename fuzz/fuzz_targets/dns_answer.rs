//! Runs in: test. The answer of a name server.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_egress::fuzzing::check_name_server(bytes));

//! Runs in: test. Messages of a stack worker that has been broken into.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_egress::fuzzing::check_worker(bytes));

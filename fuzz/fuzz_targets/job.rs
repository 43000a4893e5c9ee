//! Runs in: test. Any bytes as a job that a guest process reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_jail::fuzzing::check_job(bytes));

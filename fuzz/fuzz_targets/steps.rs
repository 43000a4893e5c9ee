//! Runs in: test. Any bytes as the encoded plan of a cell.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_jail::fuzzing::check_steps(bytes));

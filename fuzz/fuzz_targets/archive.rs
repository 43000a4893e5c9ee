//! Runs in: test. Any bytes as the archive of a layer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_layers::fuzzing::check_archive(bytes));

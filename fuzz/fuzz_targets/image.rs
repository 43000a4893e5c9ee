//! Runs in: test. Any bytes as an OCI image that is imported.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_layers::fuzzing::check_image(bytes));

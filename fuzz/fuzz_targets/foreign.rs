//! Runs in: test. Any bytes as a layer of an image that another tool wrote.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_layers::fuzzing::check_foreign_layer(bytes));

//! Tests of the public interface: real trees, real overlays, hostile archives, a real bucket.

#![cfg(test)]

mod bucket;
mod crashes;
mod disk_space;
mod hostile;
mod images;
mod model;
mod packing;
mod shared_store;
mod snapshot;
mod stack;
mod store_and_cache;
mod support;

//! Layers from the outside: real trees, real overlays, hostile archives, a real bucket.

#![cfg(test)]

mod bucket;
mod crashes;
mod hostile;
mod images;
mod keeping;
mod model;
mod packing;
mod room;
mod snapshot;
mod stack;
mod support;

//! File trees as layers: packed, stored by digest, unpacked once per host, compared and squashed.

//! Runs in: spawner (root).
//!
//! What a guest must not see or reach under `/proc`, as a table with reasons.

/// Paths that are masked: files by the null device, directories by an empty one. A file that only
/// the host's root may open is left as it is.
pub const MASKED: [&str; 53] = [
    // Access to the kernel or its memory.
    "kcore",
    "kmsg",
    "kallsyms",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "sysrq-trigger",
    "mtrr",
    // Keys of the host.
    "keys",
    "key-users",
    // The hardware of the host and its boot parameters.
    "acpi",
    "bus",
    "cmdline",
    "config.gz",
    "consoles",
    "devices",
    "driver",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "modules",
    "scsi",
    "tty",
    "asound",
    "crypto",
    "dma",
    "dynamic_debug",
    "fb",
    "mdstat",
    "misc",
    "partitions",
    "swaps",
    // Activity of other processes on this host.
    "diskstats",
    "locks",
    "timer_list",
    "sched_debug",
    "slabinfo",
    "pressure",
    "allocinfo",
    "buddyinfo",
    // Counts the cgroups of the host, and so the cells of others.
    "cgroups",
    // Options, free extents and caches of the host's file systems.
    "fs",
    "pagetypeinfo",
    "schedstat",
    "softirqs",
    "vmallocinfo",
    "vmstat",
    "zoneinfo",
    // Open files, inodes and dentries of the host. Masked as a whole: its settings are the host's
    // too.
    "sys/fs",
    // How many terminals are open on the host.
    "sys/kernel/pty",
    // The same in every cell of one host until it reboots.
    "sys/kernel/random/boot_id",
    // On kernels before 5.18 it changes with what other processes draw.
    "sys/kernel/random/entropy_avail",
];

/// Whether a path is below a directory that is made read-only. Such a path is masked after that:
/// the recursive bind would copy an earlier mask.
pub(crate) fn is_below_read_only(path: &str) -> bool {
    READ_ONLY.iter().any(|above| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/')))
}

/// Limits of the cell's user namespace for objects that the kernel also charges to the user who
/// made the namespace: without its own limit one cell could use up the host's.
pub const NAMESPACE_LIMITS: [(&str, u32); 2] =
    [("max_inotify_instances", 16), ("max_inotify_watches", 8192)];

/// Paths that stay visible, because programs read them, and are read-only.
pub const READ_ONLY: [&str; 1] = ["sys"];

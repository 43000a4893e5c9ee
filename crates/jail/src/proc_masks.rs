//! What a guest must not see or reach under `/proc`, as a table with reasons.

/// Paths that are covered: files by the null device, directories by an empty one.
pub const MASKED: [&str; 30] = [
    // Reaches into the kernel or its memory.
    "kcore",
    "kmsg",
    "kallsyms",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "sysrq-trigger",
    "mtrr",
    // Keys of the host's.
    "keys",
    "key-users",
    // What hardware the host has and how it was started.
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
    // What others on this host are doing right now.
    "diskstats",
    "locks",
    "timer_list",
    "sched_debug",
    "slabinfo",
    "pressure",
];

/// What the box's user namespace may have of things that the kernel counts for whoever made the
/// namespace: without a limit of its own one box could use up the host's.
pub const NAMESPACE_LIMITS: [(&str, u32); 2] =
    [("max_inotify_instances", 16), ("max_inotify_watches", 8192)];

/// Paths that stay visible, as programs read them, but cannot be written by anyone.
pub const READ_ONLY: [&str; 2] = ["sys", "fs"];

//! What a guest must not see or reach under `/proc`, as a table with reasons.

/// Paths that are covered: files by the null device, directories by an empty one. A file that only the
/// host's root may open is left as it is.
pub const MASKED: [&str; 53] = [
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
    "asound",
    "crypto",
    "dma",
    "dynamic_debug",
    "fb",
    "mdstat",
    "misc",
    "partitions",
    "swaps",
    // What others on this host are doing right now.
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
    // Open files, inodes and dentries of the host. Covered whole: its settings are the host's too.
    "sys/fs",
    // How many terminals are open on the host.
    "sys/kernel/pty",
    // The same in every cell of one host, until it is started again.
    "sys/kernel/random/boot_id",
    // Changes with what others draw, on kernels before 5.18.
    "sys/kernel/random/entropy_avail",
];

/// What lies below a directory that is made read-only first: a mask put there before would be
/// copied along with it.
pub(crate) fn is_below_read_only(path: &str) -> bool {
    READ_ONLY.iter().any(|above| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/')))
}

/// What the box's user namespace may have of things that the kernel counts for whoever made the
/// namespace: without a limit of its own one box could use up the host's.
pub const NAMESPACE_LIMITS: [(&str, u32); 2] =
    [("max_inotify_instances", 16), ("max_inotify_watches", 8192)];

/// Paths that stay visible, as programs read them, but cannot be written by anyone.
pub const READ_ONLY: [&str; 1] = ["sys"];

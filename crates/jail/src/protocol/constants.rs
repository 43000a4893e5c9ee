//! Runs in: server (no capabilities), template, pid 1 of a cell, guest.
//!
//! The numbers and names on which Rust, the Python runtime and the Node.js preload agree. Core only.
//!
//! This is the only table of them. The build script of the executor includes this file and writes
//! `cloche/protocol.py` and the constants of `preload.cjs` from [`NUMBERS`] and [`TEXTS`].
//! `docs/GUEST-PROTOCOL.md` says how they are used.

/// Declares each constant, and lists all of them by name.
macro_rules! table {
    (numbers { $($(#[$about:meta])* $number:ident: $kind:ty = $value:expr;)* }
     texts { $($(#[$says:meta])* $text:ident = $word:expr;)* }) => {
        $($(#[$about])* pub const $number: $kind = $value;)*
        $($(#[$says])* pub const $text: &str = $word;)*
        /// Every number of this table, by its name.
        pub const NUMBERS: &[(&str, i64)] = &[$((stringify!($number), $number as i64)),*];
        /// Every text of this table, by its name.
        pub const TEXTS: &[(&str, &str)] = &[$((stringify!($text), $text)),*];
    };
}

table! {
    numbers {
        /// The descriptor of the job socket, in the guest and in a template.
        JOB_FD: i32 = 3;
        /// The descriptor on which pid 1 reports.
        CONTROL_FD: i32 = 4;
        /// The descriptor on which a template is asked for forks; closed in every cell.
        FORK_FD: i32 = 5;

        /// The record of a file: mode, name, content.
        JOB_FILE: u32 = 1;
        /// The last record of a job: what to exec.
        JOB_EXEC: u32 = 2;
        /// The record of a directory to change to, since its mount has changed.
        JOB_DIRECTORY: u32 = 3;
        /// The record of what an interpreter reads that waits at the gate; others skip it.
        JOB_GATE: u32 = 4;
        /// The record before a job that has a forked interpreter map the pages of usual programs.
        JOB_WARM_UP: u32 = 5;
        /// A flag of the exec record: the job socket stays open as [`JOB_FD`].
        EXEC_KEEPS_JOB: u32 = 1;
        /// The most bytes of arguments and environment together.
        EXEC_BYTES: usize = 160 << 10;
        /// The most arguments, and the most environment variables.
        EXEC_STRINGS: usize = 128;
        /// The most bytes of a path in a job, its NUL included.
        PATH_BYTES: usize = 4096;

        /// The exit code of a waiting interpreter whose job socket closed before the job's end.
        EXIT_NO_JOB: i32 = 0;
        /// The exit code of a guest that could not take its job or exec its program.
        EXIT_BAD_JOB: i32 = 126;
        /// The exit code of a cold guest whose program, or a directory of the job, does not exist.
        EXIT_NOT_FOUND: i32 = 127;

        /// Kills a process.
        SIGKILL: i32 = 9;
        /// Continues a stopped process.
        SIGCONT: i32 = 18;
        /// Stops a process.
        SIGSTOP: i32 = 19;

        /// Index of the address of the warm-up pages in the array that a template passes to its library.
        SETUP_RANGES: usize = 0;
        /// Index of the number of ranges that every program writes to.
        SETUP_WRITTEN: usize = 1;
        /// Index of the number of ranges that every program uses. Those of usual programs follow.
        SETUP_COUNT: usize = 2;
        /// Index of the address of the variables that the template has.
        SETUP_VARIABLES: usize = 3;
        /// Index of the length of these variables.
        SETUP_VARIABLES_LEN: usize = 4;
        /// Index of the address of the buffer for the variables of a job.
        SETUP_BUFFER: usize = 5;
        /// Index of the length of this buffer.
        SETUP_BUFFER_LEN: usize = 6;
        /// Index of the address of the path of the user's site packages.
        SETUP_PACKAGES: usize = 7;
        /// Index of the offset of the libc's rseq area from the thread pointer.
        SETUP_RSEQ_OFFSET: usize = 8;
        /// Index of the length of this area; zero where the libc has none.
        SETUP_RSEQ_LEN: usize = 9;
        /// Index of the number of ranges that usual programs write to, beside the others.
        SETUP_USUAL_WRITTEN: usize = 10;
        /// Index of the number of ranges that usual programs use, beside the others.
        SETUP_USUAL_COUNT: usize = 11;
        /// The length of the array.
        SETUP_WORDS: usize = 12;
    }
    texts {
        /// The byte that an interpreter sends when it waits for its job.
        READY = "R";
        /// The process name of a guest that is done, before its exit code.
        LAST_WORD = "cloche end ";
        /// The variable that says how an interpreter waits for its job.
        START_VARIABLE = "CLOCHE_START";
        /// One interpreter that waits for one job.
        START_SINGLE = "single";
        /// An interpreter from which cells are forked.
        START_TEMPLATE = "template";
        /// The variable that names the modules which a template imports, separated by spaces.
        PRELOAD_VARIABLE = "CLOCHE_PRELOAD";
        /// The file name of the library that a template loads.
        TEMPLATE_LIBRARY = "template.so";
        /// The FIFO that an interpreter opens in its own start-up and waits at, if pid 1 takes its
        /// job. It is removed before the job comes.
        GATE = "/tmp/.cloche-gate";
    }
}

//! Runs in: server (no capabilities). The job socket of a cell.
//!
//! The runtime knows this socket only while there is something to wait for. A socket that it
//! watches would wake the server when the guest has read its job and when it closes its end, just
//! when the guest needs the processor.

use std::{
    io::{self, Write},
    os::unix::net::UnixStream as StdStream,
};

use cloche_jail::job_writer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// The server's end of a job socket.
pub(crate) struct CellJobSocket {
    socket: StdStream,
    /// Whether the interpreter behind it has pages to map before its job.
    is_cool: bool,
}

impl CellJobSocket {
    pub(crate) fn new(socket: StdStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, is_cool: false })
    }

    /// The interpreter was forked from a template, and can warm up.
    pub(crate) fn note_cool(&mut self) {
        self.is_cool = true;
    }

    pub(crate) const fn is_cool(&self) -> bool {
        self.is_cool
    }

    /// Has an interpreter that waits map what usual programs use, if it has not done so.
    pub(crate) fn warm_up(&mut self) {
        if std::mem::take(&mut self.is_cool) {
            // Without the record, the program maps its pages itself.
            let _ = self.socket.write(&job_writer::WARM_UP);
        }
    }

    /// Sends a job. Most jobs fit into the buffer of the socket.
    pub(crate) async fn send_job(&mut self, mut job: &[u8]) -> io::Result<()> {
        while !job.is_empty() {
            match self.socket.write(job) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => job = &job[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.watch()?.write_all(job).await;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends the job that starts an interpreter, and waits until that waits for a program.
    pub(crate) async fn start_waiting(&mut self, job: &[u8]) -> io::Result<()> {
        let mut socket = self.watch()?;
        socket.write_all(job).await?;
        socket.read_u8().await.map(drop)
    }

    /// The same socket, watched by the runtime until it is dropped.
    fn watch(&self) -> io::Result<UnixStream> {
        UnixStream::from_std(self.socket.try_clone()?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn a_job_that_exceeds_the_buffer_of_the_socket_arrives_whole() {
        let (ours, mut theirs) = StdStream::pair().unwrap();
        let job: Vec<u8> = (0..4_u32 << 20).map(|at| at.to_le_bytes()[1]).collect();
        let mut socket = CellJobSocket::new(ours).unwrap();
        let reader = tokio::task::spawn_blocking(move || {
            let mut taken = Vec::new();
            theirs.read_to_end(&mut taken).map(|_| taken)
        });
        socket.send_job(&job).await.unwrap();
        drop(socket);
        assert!(reader.await.unwrap().unwrap() == job);
    }

    #[tokio::test]
    async fn a_cell_that_is_gone_is_an_error() {
        let (ours, theirs) = StdStream::pair().unwrap();
        let mut socket = CellJobSocket::new(ours).unwrap();
        drop(theirs);
        assert_eq!(socket.send_job(b"job").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(socket.start_waiting(b"").await.is_err());
    }
}

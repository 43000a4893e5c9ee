//! Runs in: stack worker (no capabilities).
//!
//! The start of a worker: the limits from the broker, the device, the stack.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use cloche_model::NetworkLimits;
use rustix::event::{Timespec, epoll};

use super::{BROKER, FIRST_FLOW, MOST_EVENTS, StackWorker, TUN};
use crate::{
    protocol::{StackMessage, set_nonblocking},
    stack::{
        budget::{BufferBudget, ByteRate, Rates, TokenBucket},
        datagrams::{DatagramFlows, Queries},
        device::TunDevice,
        ip_stacks::IpStacks,
        link::BrokerLink,
    },
};

/// How long the broker may take to send the limits.
const START_WITHIN: Duration = Duration::from_secs(10);

impl StackWorker {
    /// Waits for the limits and takes the device over.
    pub(crate) fn start(tun: OwnedFd, broker: OwnedFd) -> io::Result<Self> {
        let mut link = BrokerLink::new(broker);
        let (limits, ipv6) = receive_start(&mut link)?;
        set_nonblocking(tun.as_fd())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut device = TunDevice::new(tun);
        // By level: a turn reads a bounded number of packets and messages.
        let watch = epoll::EventFlags::IN;
        epoll::add(&epoll, &device, epoll::EventData::new_u64(TUN), watch)?;
        epoll::add(&epoll, &link, epoll::EventData::new_u64(BROKER), watch)?;
        let now = Instant::now();
        let rates = Rates {
            inward: ByteRate::new(limits.bytes_in_per_second, now),
            outward: ByteRate::new(limits.bytes_out_per_second, now),
            left: limits.bytes_per_run.map(|bytes| bytes.bytes()),
        };
        Ok(Self {
            stacks: IpStacks::new(&mut device)?,
            device,
            link,
            epoll,
            started: now,
            limits,
            ipv6,
            next_id: FIRST_FLOW,
            by_flow: HashMap::new(),
            opening: HashMap::new(),
            connections: HashMap::new(),
            active: HashSet::new(),
            datagrams: DatagramFlows::default(),
            queries: Queries::default(),
            buffers: BufferBudget::default(),
            rates,
            new_flows: TokenBucket::new(limits.new_per_second.into(), limits.new_burst.into(), now),
            reported_denials: TokenBucket::new(50, 200, now),
            metered: now,
            events: Vec::with_capacity(MOST_EVENTS),
            tun_readable: false,
            // The broker may have sent more than its first message.
            broker_readable: true,
            ending: false,
        })
    }
}

fn receive_start(link: &mut BrokerLink) -> io::Result<(NetworkLimits, bool)> {
    let deadline = Instant::now() + START_WITHIN;
    loop {
        if let Some((message, _)) = link.receive()? {
            return match message {
                StackMessage::Start { limits, ipv6 } => Ok((limits, ipv6)),
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let socket = link.as_fd();
        let mut fds = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

//! Runs in: server (no capabilities).
//!
//! A future that wakes itself while it is polled is polled again at once. The scheduler would put
//! its task behind others and wake another worker thread for it, which then takes the task over:
//! wake-ups in the middle of a request, for a poll that finds nothing to do. Knows nothing of HTTP.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use parking_lot::Mutex;

/// How often a future is polled in a row. One that wakes itself again and again must let others run.
const MOST_POLLS: usize = 4;

/// No poll is under way: a wake is for the task.
const IDLE: u8 = 0;
/// A poll is under way.
const POLLING: u8 = 1;
/// The future was woken since the poll began.
const WOKEN: u8 = 2;

/// Runs a future whose wakes during its own poll do not reach the scheduler.
pub(crate) async fn absorb_own_wakes<F: Future>(work: F) -> F::Output {
    let mut work = pin!(work);
    let wakes = Arc::new(OwnWakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    poll_fn(move |context| wakes.poll(&waker, work.as_mut(), context)).await
}

#[derive(Default)]
struct OwnWakes {
    state: AtomicU8,
    /// The waker of the task.
    task: Mutex<Option<Waker>>,
}

impl OwnWakes {
    fn poll<F: Future>(
        &self,
        waker: &Waker,
        mut work: Pin<&mut F>,
        context: &Context<'_>,
    ) -> Poll<F::Output> {
        self.remember_task(context.waker());
        for _ in 0..MOST_POLLS {
            self.state.store(POLLING, Ordering::SeqCst);
            let polled = work.as_mut().poll(&mut Context::from_waker(waker));
            if polled.is_ready() {
                return polled;
            }
            let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            if self.state.compare_exchange(POLLING, IDLE, success, failure).is_ok() {
                return Poll::Pending;
            }
        }
        self.state.store(IDLE, Ordering::SeqCst);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn remember_task(&self, waker: &Waker) {
        let mut task = self.task.lock();
        match &mut *task {
            Some(known) => known.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }
}

impl Wake for OwnWakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        if self.state.compare_exchange(POLLING, WOKEN, success, failure) != Err(IDLE) {
            return;
        }
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls once a future that wakes itself this many times before it is ready. Returns whether it
    /// is ready then, and how often its task was woken.
    fn poll_once(own_wakes: usize) -> (bool, usize) {
        let counted = Arc::new(CountedWakes::default());
        let mut left = own_wakes;
        let work = poll_fn(move |context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let waker = Waker::from(Arc::clone(&counted));
        let polled = pin!(absorb_own_wakes(work)).poll(&mut Context::from_waker(&waker));
        (polled.is_ready(), counted.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_without_its_task() {
        assert_eq!(poll_once(0), (true, 0));
        assert_eq!(poll_once(MOST_POLLS - 1), (true, 0));
    }

    #[test]
    fn a_future_that_goes_on_waking_itself_lets_others_run() {
        assert_eq!(poll_once(MOST_POLLS), (false, 1));
    }

    #[test]
    fn a_wake_between_polls_reaches_the_task() {
        let counted = Arc::new(CountedWakes::default());
        let (kept, sent) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None::<Waker>)));
        let keep = Arc::clone(&sent);
        let work = poll_fn(move |context| {
            *keep.lock() = Some(context.waker().clone());
            kept.lock().take().map_or(Poll::Pending, |()| Poll::Ready(()))
        });
        let waker = Waker::from(Arc::clone(&counted));
        let mut task = pin!(absorb_own_wakes(work));
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(counted.0.load(Ordering::SeqCst), 0);
        sent.lock().take().unwrap().wake();
        assert_eq!(counted.0.load(Ordering::SeqCst), 1);
    }
}

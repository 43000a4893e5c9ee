//! Runs in: test. The queue by itself: who is next, what is bounded, what is given back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const WAIT: Duration = Duration::from_secs(30);

/// So many places for all teams, and all of them for one team.
fn queue_of(places: u64) -> FairQueue {
    with_share(places, 1000)
}

fn with_share(places: u64, team_share_milli: u64) -> FairQueue {
    let capacity = HostShare { places, ..HostShare::UNLIMITED };
    let limits = ClassLimits {
        capacity,
        team_share_milli,
        queued_per_team: 8,
        queued: 20,
        longest_wait: WAIT,
    };
    FairQueue::new(limits, 2)
}

fn team(number: usize) -> TeamId {
    format!("team_{number}").parse().unwrap()
}

fn enter(queue: &FairQueue, number: usize, weight: u32) -> Result<QueueTicket, QueueFull> {
    let request = PlaceRequest { team: &team(number), weight, demand: HostShare::PLACE };
    queue.enter(request)
}

fn place(queue: &FairQueue, number: usize) -> HostPlace {
    match enter(queue, number, 1).unwrap() {
        QueueTicket::Granted(place) => place,
        QueueTicket::Waiting(_) => panic!("it has to wait"),
    }
}

fn waiting(queue: &FairQueue, number: usize) -> WaitingTicket {
    match enter(queue, number, 1).unwrap() {
        QueueTicket::Granted(_) => panic!("it has a place"),
        QueueTicket::Waiting(waiting) => waiting,
    }
}

/// The place of a request that waits, if it was given one.
fn granted(waiting: &mut WaitingTicket) -> Option<HostPlace> {
    waiting.granted.try_recv().ok()
}

#[test]
fn a_full_host_gives_the_next_place_to_the_team_that_waits_with_the_burst() {
    let queue = queue_of(2);
    let (first, second) = (place(&queue, 1), place(&queue, 1));
    let mut burst: Vec<_> = (0..5).map(|_| waiting(&queue, 1)).collect();
    let mut other = waiting(&queue, 2);
    drop(first);
    let next = granted(&mut burst[0]).expect("the burst was there first");
    drop(second);
    let others = granted(&mut other).expect("then it is the other team's turn");
    assert!(burst[1..].iter_mut().all(|waiting| granted(waiting).is_none()));
    drop((next, others));
    assert!(granted(&mut burst[1]).is_some() && granted(&mut burst[2]).is_some());
}

#[test]
fn a_team_with_more_weight_has_more_turns_in_a_row() {
    let queue = queue_of(1);
    let mut running = Some(place(&queue, 9));
    let heavy = |queue| match enter(queue, 1, 3).unwrap() {
        QueueTicket::Waiting(waiting) => waiting,
        QueueTicket::Granted(_) => unreachable!(),
    };
    let mut waits: Vec<(usize, WaitingTicket)> = Vec::new();
    for _ in 0..6 {
        waits.push((1, heavy(&queue)));
    }
    for _ in 0..2 {
        waits.push((2, waiting(&queue, 2)));
    }
    let mut order = Vec::new();
    while !waits.is_empty() {
        drop(running.take());
        let at = waits.iter_mut().position(|(_, waiting)| {
            running = granted(waiting);
            running.is_some()
        });
        order.push(waits.remove(at.expect("the place is given to a waiting request")).0);
    }
    assert_eq!(order, [1, 1, 1, 2, 1, 1, 1, 2]);
}

#[test]
fn the_queue_of_a_team_and_of_the_host_are_bounded() {
    let queue = queue_of(1);
    let _running = place(&queue, 1);
    let mut held: Vec<_> = (0..8).map(|_| waiting(&queue, 1)).collect();
    assert_eq!(enter(&queue, 1, 1).err(), Some(QueueFull::Team(8)));
    held.extend((0..8).map(|_| waiting(&queue, 2)));
    held.extend((0..4).map(|_| waiting(&queue, 3)));
    assert_eq!(enter(&queue, 4, 1).err(), Some(QueueFull::Host(20)));
    assert_eq!(queue.level(), QueueLevel { running: 1, queued: 20 });
    held.pop();
    assert!(enter(&queue, 4, 1).is_ok());
}

#[test]
fn a_cancelled_request_frees_its_turn_and_a_place_it_did_not_take() {
    let queue = queue_of(1);
    let running = place(&queue, 1);
    let (first, second, mut third) = (waiting(&queue, 2), waiting(&queue, 3), waiting(&queue, 4));
    drop(first);
    drop(running);
    // The place was given to the second, which goes without having looked.
    drop(second);
    assert!(granted(&mut third).is_some(), "no wake-up is lost");
    assert_eq!(queue.level(), QueueLevel { running: 0, queued: 0 });
    assert!(queue.inner.state.lock().teams.is_empty(), "nothing is kept of teams that are gone");
}

#[test]
fn one_team_leaves_a_part_of_the_host_to_the_next() {
    let queue = with_share(8, 750);
    let mut held: Vec<_> = Vec::new();
    while let QueueTicket::Granted(place) = enter(&queue, 1, 1).unwrap() {
        held.push(place);
    }
    assert_eq!(held.len(), 6);
    held.push(place(&queue, 2));
    held.push(place(&queue, 3));
    let mut fourth = waiting(&queue, 4);
    drop(held.pop());
    assert!(granted(&mut fourth).is_some());
}

#[test]
fn a_request_larger_than_the_host_runs_alone() {
    let queue = queue_of(4);
    let demand = HostShare { memory: u64::MAX, places: 100, ..HostShare::PLACE };
    let request = PlaceRequest { team: &team(1), weight: 1, demand };
    let QueueTicket::Granted(whole) = queue.enter(request).unwrap() else { panic!() };
    let mut next = waiting(&queue, 2);
    drop(whole);
    assert!(granted(&mut next).is_some());
}

#[test]
fn a_large_request_keeps_its_turn_but_does_not_hold_up_small_ones() {
    let queue = queue_of(4);
    let mut small: Vec<_> = (0..3).map(|_| place(&queue, 1)).collect();
    let demand = HostShare { places: 3, ..HostShare::PLACE };
    let request = PlaceRequest { team: &team(2), weight: 1, demand };
    let QueueTicket::Waiting(mut large) = queue.enter(request).unwrap() else { panic!() };
    small.push(place(&queue, 3));
    drop(small.drain(..2));
    assert!(granted(&mut large).is_none());
    drop(small.pop());
    assert!(granted(&mut large).is_some());
}

#[test]
fn the_oldest_cells_of_a_team_are_in_front_and_the_next_one_follows() {
    let queue = queue_of(8);
    let held: Vec<_> = (0..4).map(|_| place(&queue, 1)).collect();
    let other = place(&queue, 2);
    let in_front = |number| -> Vec<bool> {
        let state = queue.inner.state.lock();
        state.teams[&team(number)].running.iter().map(|place| place.in_front).collect()
    };
    assert_eq!(in_front(1), [true, true, false, false]);
    assert_eq!(in_front(2), [true]);
    let mut held = held.into_iter();
    drop(held.next());
    assert_eq!(in_front(1), [true, true, false]);
    drop((held, other));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_wake_up_is_lost_among_many_tasks() {
    let queue = FairQueue::new(
        ClassLimits { queued_per_team: 1000, queued: 10_000, ..queue_of(3).inner.limits },
        2,
    );
    let tasks = (0..300_usize).map(|at| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let ticket = enter(&queue, at % 7, 1).unwrap();
            match ticket {
                QueueTicket::Granted(place) => {
                    tokio::task::yield_now().await;
                    drop(place);
                }
                // Some give up, before or after they were given a place.
                QueueTicket::Waiting(waiting) if at % 5 == 0 => {
                    tokio::task::yield_now().await;
                    drop(waiting);
                }
                QueueTicket::Waiting(mut waiting) => {
                    let place = tokio::time::timeout(WAIT, waiting.wait_granted()).await;
                    drop(place.expect("every turn comes"));
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(queue.level(), QueueLevel::default());
    assert_eq!(queue.inner.state.lock().used, HostShare::NONE);
}

/// What happens to the queue, by team.
#[derive(Clone, Debug)]
enum Happening {
    Comes(usize),
    /// The running place at this position, counted round, ends.
    Ends(usize),
    /// The waiting request at this position, counted round, gives up.
    GivesUp(usize),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        4 => (0..5_usize).prop_map(Happening::Comes),
        3 => (0..100_usize).prop_map(Happening::Ends),
        1 => (0..100_usize).prop_map(Happening::GivesUp),
    ];
    proptest::collection::vec(one, 1..200)
}

/// The queue, all that is in it, and how often each team was passed over since its last turn.
struct Watched {
    queue: FairQueue,
    places: u64,
    running: Vec<(usize, HostPlace)>,
    waiting: Vec<(usize, WaitingTicket)>,
    passed_over: BTreeMap<usize, BTreeMap<usize, usize>>,
}

impl Watched {
    fn happen(&mut self, what: &Happening) {
        match *what {
            Happening::Comes(number) => match enter(&self.queue, number, 1) {
                Ok(QueueTicket::Granted(place)) => {
                    let alone = self.waiting.iter().all(|(other, _)| *other != number);
                    assert!(alone, "nothing overtakes a request of its own team");
                    self.running.push((number, place));
                }
                Ok(QueueTicket::Waiting(waiting)) => {
                    assert_eq!(
                        self.running.len() as u64,
                        self.places,
                        "it waits, and there is room"
                    );
                    self.waiting.push((number, waiting));
                }
                Err(_) => assert!(self.waiting.len() >= 8),
            },
            Happening::Ends(at) if !self.running.is_empty() => {
                let at = at % self.running.len();
                drop(self.running.remove(at));
            }
            Happening::GivesUp(at) if !self.waiting.is_empty() => {
                let at = at % self.waiting.len();
                drop(self.waiting.remove(at));
            }
            Happening::Ends(_) | Happening::GivesUp(_) => {}
        }
        self.collect();
    }

    /// Takes the places that were given, and counts who was passed over by whom.
    fn collect(&mut self) {
        while let Some(at) = self.waiting.iter_mut().position(|(number, waiting)| {
            let place = granted(waiting);
            let was_given = place.is_some();
            self.running.extend(place.map(|place| (*number, place)));
            was_given
        }) {
            let (number, _) = self.waiting.remove(at);
            self.passed_over.remove(&number);
            let others: std::collections::BTreeSet<_> =
                self.waiting.iter().map(|(other, _)| *other).filter(|o| *o != number).collect();
            for other in others {
                let times = self.passed_over.entry(other).or_default().entry(number).or_default();
                *times += 1;
                assert!(*times <= 1, "team {other} waited while team {number} had two turns");
            }
        }
        let still: Vec<_> = self.waiting.iter().map(|(number, _)| *number).collect();
        self.passed_over.retain(|number, _| still.contains(number));
        assert!(self.running.len() as u64 <= self.places);
        let room = (self.running.len() as u64) < self.places;
        assert!(!room || self.waiting.is_empty(), "there is room, and a request waits");
    }
}

proptest! {
    #[test]
    fn no_team_with_a_waiting_request_waits_for_more_than_one_round(
        all in happenings(), places in 1..4_u64,
    ) {
        let mut watched = Watched {
            queue: queue_of(places),
            places,
            running: Vec::new(),
            waiting: Vec::new(),
            passed_over: BTreeMap::new(),
        };
        for what in &all {
            watched.happen(what);
        }
        watched.waiting.clear();
        watched.running.clear();
        prop_assert_eq!(watched.queue.level(), QueueLevel::default());
    }
}

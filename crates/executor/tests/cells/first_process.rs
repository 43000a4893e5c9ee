//! Runs in: test. Pid 1 of a warm cell shares its template's memory: no signal of a guest may reach it
//! there, also where Landlock does not keep guests from sending any.

use cloche_executor::{PoolSettings, RunIo};
use cloche_model::{Language, RunEnding, RunSpec};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests};

use crate::host::{has_parked_fork, own_config, start_with};

pub(crate) const TESTS: &[OwnTest] = own_tests![signals_of_a_guest_do_not_reach_its_template];

const ATTACK: &str = "import os
for signal in range(1, 65):
    os.kill(1, signal)
    os.kill(1, signal)
print('sent')
";

async fn signals_of_a_guest_do_not_reach_its_template() {
    let pool = PoolSettings { floor: 1, ceiling: 2, ..PoolSettings::default() };
    let mut config = own_config(Some(pool));
    config.spawner_args = ["__spawner", "without", "landlock"].map(str::to_owned).to_vec();
    let Some(executor) = start_with(config).await else { return };
    let plain = RunSpec::new(Language::Python, "print(1)");
    executor.prewarm_pool(Language::Python, &plain.limits, &plain.sandbox);
    eventually("a cell is parked", async || has_parked_fork(&executor)).await;
    let attack = RunSpec::new(Language::Python, ATTACK);
    for (spec, expected) in [(&attack, "sent\n")].into_iter().chain([(&plain, "1\n"); 6]) {
        let outcome = executor.run(spec.clone(), RunIo::default()).await.unwrap();
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{outcome:?}");
        assert_eq!(outcome.ending, RunEnding::Exited(0), "{outcome:?}");
    }
    assert_eq!(executor.read_metrics().cold_starts, 0, "all of them came from the template");
    executor.stop().await;
}

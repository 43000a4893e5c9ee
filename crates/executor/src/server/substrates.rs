//! Runs in: server (no capabilities). Tries which substrates this host can start, each for real.

use std::{sync::PoisonError, time::Duration};

use cloche_model::{Language, RunEnding, RunSpec, SandboxShape, Substrate};

use super::{executor::Executor, run_error::RunError};

/// How long a trial may take.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Looks at the walls that a runtime might leave out without an error: the user, its capabilities
/// and the network.
const TRIAL: &str = r#"
fail() { echo "$1" >&2; exit 1; }
[ "$UID" = 1000 ] || fail "the program runs as user $UID"
while read -r name value; do
  case $name in
    Cap*:) [ "$value" = 0000000000000000 ] || fail "the program has capabilities: $name $value" ;;
  esac
done < /proc/self/status
while read -r name _; do
  case $name in
    lo:*|Inter-*|face) ;;
    *) fail "the program has the network interface $name" ;;
  esac
done < /proc/net/dev
{ : > /usr/trial; } 2>/dev/null && fail "the program can write to /usr"
echo tried
"#;

impl Executor {
    /// Starts a cell of a substrate and looks at its walls. A runtime that is missing, too old or
    /// broken is an error with its own words.
    pub async fn try_substrate(&self, substrate: Substrate) -> Result<(), RunError> {
        self.check_root(substrate)?;
        let mut spec = RunSpec::new(Language::Bash, TRIAL);
        spec.sandbox.substrate = substrate;
        spec.limits.timeout = TRIAL_TIMEOUT;
        let outcome = self.run_trial(spec).await?;
        if outcome.ending == RunEnding::Exited(0) && outcome.stdout.bytes == b"tried\n" {
            self.inner.tried.lock().unwrap_or_else(PoisonError::into_inner).insert(substrate);
            return Ok(());
        }
        let said = String::from_utf8_lossy(&outcome.stderr.bytes).trim().to_owned();
        let words = format!("a program in it ended with {:?}: {said}", outcome.ending);
        Err(RunError::Substrate { substrate: substrate.name().to_owned(), words })
    }

    /// Without root, the refusal of the spawner has no words of a runtime.
    fn check_root(&self, substrate: Substrate) -> Result<(), RunError> {
        let lacks_root = self.missing_walls().iter().any(|(wall, _)| wall == "host-uid");
        let is_contained = self.inner.contained.is_some();
        if substrate == Substrate::Native || !(lacks_root || is_contained) {
            return Ok(());
        }
        let words = "only root can prepare a sandbox for an OCI runtime".to_owned();
        Err(RunError::Substrate { substrate: substrate.name().to_owned(), words })
    }

    /// Tries the substrate of a sandbox before its first run.
    pub(super) async fn ensure_substrate(&self, sandbox: &SandboxShape) -> Result<(), RunError> {
        let substrate = sandbox.substrate;
        let is_tried = || {
            let tried = self.inner.tried.lock().unwrap_or_else(PoisonError::into_inner);
            tried.contains(&substrate)
        };
        if substrate == Substrate::Native || is_tried() {
            return Ok(());
        }
        self.try_substrate(substrate).await
    }
}

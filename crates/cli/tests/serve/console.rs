//! Runs in: test.
//!
//! The console in Debian's Chromium, against the real binary. The tests are in `console/tests`,
//! because Playwright speaks JavaScript; each has a server of its own here. With
//! `CLOCHE_SCREENSHOTS=docs/console` they write the pictures of the documentation.

use crate::{
    browser::{has_browser, run_browser_tests},
    host::Host,
    python_client::top,
    registry::{Layouts, Registry, RegistryOptions, run},
    support::{binary, ended, skip},
};

#[tokio::test]
async fn people_do_their_work_in_the_console() {
    if !has_browser() {
        return;
    }
    let Some(host) = Host::start().await else { return };
    run_browser_tests(&host, "flows", &[]).await;
}

#[tokio::test]
async fn people_do_their_daily_work_in_the_console() {
    if !has_browser() {
        return;
    }
    let Some(host) = Host::start().await else { return };
    run_browser_tests(&host, "daily", &[]).await;
}

#[tokio::test]
async fn hostile_text_stays_inert_in_the_console() {
    if !has_browser() {
        return;
    }
    let Some(host) = Host::start().await else { return };
    run_browser_tests(&host, "inert", &[]).await;
}

#[tokio::test]
async fn each_form_of_the_console_shows_complaints_at_their_fields() {
    if !has_browser() {
        return;
    }
    let Some(host) = Host::start().await else { return };
    run_browser_tests(&host, "forms", &[]).await;
}

#[tokio::test]
async fn every_page_of_the_console_is_accessible_and_fits() {
    if !has_browser() {
        return;
    }
    let Some(host) = Host::start().await else { return };
    run_browser_tests(&host, "pages", &[]).await;
}

#[tokio::test]
async fn a_plot_is_shown_in_the_playground() {
    let layout = top().join("target/images/default");
    if !has_browser() {
        return;
    }
    if !layout.join("index.json").exists() {
        skip("there is no image target/images/default: run scripts/setup-tests");
        return;
    }
    let Some(host) = Host::start().await else { return };
    let layout = layout.display().to_string();
    for words in [
        &["image", "import", &layout, "--name", "cloche/default"][..],
        &["sandbox", "set", "default/default", "--image", "cloche/default"],
    ] {
        let mut command = std::process::Command::new(binary());
        command.args(words).arg("--data-dir").arg(host.data());
        let done = ended(command, b"");
        assert_eq!(done.code, 0, "{words:?} {done:?} {}", host.said("log"));
    }
    run_browser_tests(&host, "plots", &[]).await;
}

#[tokio::test]
async fn an_image_is_pulled_with_progress_in_the_console() {
    if !has_browser() {
        return;
    }
    let Some(host) = Host::start().await else { return };
    let Some(registry) = Registry::start(RegistryOptions::default()) else { return };
    let Some(layouts) = Layouts::make(5_000_000) else { return };
    let image = format!("{}:one", layouts.path().display());
    let label = "note=<b data-hacked><img src=x onerror=window.hacked=1>";
    run("umoci", &["config", "--image", &image, "--config.label", label]);
    registry.push(&layouts.source("one"), "tool:1");
    run_browser_tests(&host, "images", &[("CLOCHE_REGISTRY", &registry.address)]).await;
}

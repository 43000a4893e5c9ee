//! dev
use cloche_executor::{Config, Executor, RunIo};
use cloche_model::{Language, RunSpec};
fn main() {
    let mut args = std::env::args().skip(1);
    let first = args.next().unwrap();
    if first == "__spawner" {
        let r = cloche_executor::spawner::run();
        eprintln!("spawner {r:?}");
        return;
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let e = Executor::start(Config::with_program("/proc/self/exe")).await.unwrap();
        let lang: Language = first.parse().unwrap();
        let code = args.next().unwrap();
        let n: usize = args.next().map_or(1, |n| n.parse().unwrap());
        for _ in 0..n {
            let t = std::time::Instant::now();
            let o = e.run(RunSpec::new(lang, code.clone()), RunIo::default()).await;
            let el = t.elapsed();
            match o {
                Ok(o) => { print!("{}", o.stdout.text()); eprint!("{}", o.stderr.text()); eprintln!("{:?} {:?} {:?} {el:?}", o.ending, o.usage, o.timings) }
                Err(e) => eprintln!("ERR {e:?}"),
            }
        }
        e.settle().await;
        e.stop().await;
    });
}

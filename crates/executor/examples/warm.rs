use cloche_executor::*;
use cloche_model::*;
use std::time::*;
fn main() {
    if std::env::args().nth(1).as_deref() == Some("__spawner") {
        let _ = spawner::run();
        return;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let rt =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    rt.block_on(async {
        let mut c = Config::with_program(std::env::current_exe().unwrap());
        c.pool = Some(PoolSettings::default());
        let e = Executor::start(c).await.unwrap();
        let lang: Language = std::env::args().nth(1).unwrap().parse().unwrap();
        let code = std::env::args().nth(2).unwrap();
        let n: usize = std::env::args().nth(3).unwrap().parse().unwrap();
        let gap: u64 = std::env::args().nth(4).map_or(20, |n| n.parse().unwrap());
        let spec = RunSpec::new(lang, code.clone());
        e.prepare(lang, &spec.limits, &spec.sandbox);
        let t = Instant::now();
        while !e.is_warm() && t.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        eprintln!("warm after {:?}", t.elapsed());
        if let Some(c) = std::env::args().nth(5) {
            let c: usize = c.parse().unwrap();
            let t = Instant::now();
            let mut js = vec![];
            for _ in 0..c {
                let e = e.clone();
                let spec = spec.clone();
                js.push(tokio::spawn(async move {
                    for _ in 0..n / c {
                        let o = e.run(spec.clone(), RunIo::default()).await;
                        if !matches!(&o, Ok(o) if o.ending == Ending::Exited(0)) {
                            eprintln!("{o:?}");
                        }
                    }
                }));
            }
            for j in js {
                j.await.unwrap();
            }
            let el = t.elapsed();
            eprintln!("{} runs in {el:?}: {:.0}/s", n, n as f64 / el.as_secs_f64());
            let s = e.snapshot();
            eprintln!(
                "hits {} forks {} cold {} died {} cells {} {:?}",
                s.pool_hits, s.on_demand_forks, s.cold_starts, s.died_parked, s.cells, s.shelves
            );
            e.stop().await;
            return;
        }
        let mut v = vec![];
        for i in 0..n {
            let t = Instant::now();
            let o = e.run(spec.clone(), RunIo::default()).await;
            v.push(t.elapsed());
            if i == 0 {
                match o {
                    Ok(o) => {
                        print!("{}", o.stdout.text());
                        eprint!("{}", o.stderr.text());
                        eprintln!("{:?} {:?} {:?}", o.ending, o.usage, o.timings)
                    }
                    Err(e) => eprintln!("ERR {e:?}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(gap)).await;
        }
        v.sort();
        eprintln!("p50 {:?} p90 {:?} p99 {:?}", v[n / 2], v[n * 9 / 10], v[n * 99 / 100]);
        let s = e.snapshot();
        eprintln!(
            "hits {} forks {} cold {} died {} cells {} {:?}",
            s.pool_hits, s.on_demand_forks, s.cold_starts, s.died_parked, s.cells, s.shelves
        );
        e.stop().await;
    });
}

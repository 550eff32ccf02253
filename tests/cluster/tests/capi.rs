//! C programs behind the cluster and in front of it: the library's two examples as servers, and a test of
//! streams.
#![allow(clippy::disallowed_types, clippy::unwrap_used, reason = "runs real processes; a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use csp_cluster::configs::{CLIENT_ADDRESS, UPLOAD_PORT};
use csp_cluster::{Cluster, Fetch, Process, Tier, VIP, demo, testing, wait_until};

const WARNINGS: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"];
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
/// The port of the echo server on the client host.
const OUTSIDE_PORT: &str = "7007";
const DEADLINE: Duration = Duration::from_secs(15);

fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libcsp/capi")
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Compiles a C source of libcsp/capi against this build's libcsp.so, which is linked into the scratch
/// folder.
fn compile(cluster: &Cluster, compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    let folder = cluster.scratch().join("lib");
    if !folder.exists() {
        run(Command::new(capi().join("link.sh")).arg(cluster.binary("libcsp.a")).arg(&folder));
    }
    let name = Path::new(source).file_stem().unwrap().to_string_lossy().into_owned();
    let kind = if flags.contains(&SANITIZERS[0]) { "sanitized" } else { compiler };
    let program = cluster.scratch().join(format!("{name}-{kind}"));
    let mut command = Command::new(compiler);
    command.args(WARNINGS).args(["-g", "-O1"]).args(flags);
    command.arg("-I").arg(capi().join("include")).arg("-o").arg(&program).arg(capi().join(source));
    // DT_RPATH goes before LD_LIBRARY_PATH, which cargo sets to a folder where `make build` may have left an
    // older library.
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    run(command.arg("-L").arg(&folder).arg(rpath).arg("-lcsp"));
    program
}

/// Returns the command of a program on the app host that finds the agent.
fn on_app_host(cluster: &Cluster, program: &Path, arguments: &[&str]) -> Command {
    let mut command = cluster.host(Tier::AppNode).command(&program.to_string_lossy());
    command.args(arguments).env("CSP_AGENT", cluster.scratch().join("run/agent.sock"));
    command.env("CSP_CHANNELS", cluster.scratch().join("run/channels"));
    command
}

fn start(cluster: &Cluster, program: &Path, arguments: &[&str]) -> Process {
    let name = program.file_name().unwrap().to_string_lossy().into_owned();
    let log = cluster.scratch().join("log").join(format!("{name}.log"));
    let mut command = on_app_host(cluster, program, arguments);
    // A stopped server leaves its clients' memory to the kernel.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let mut process = Process::spawn(&name, command, &log).unwrap();
    wait_until(&format!("{name} to listen"), DEADLINE, || {
        assert!(process.exited().is_none(), "{name}: {}", process.log_tail(20));
        process.log_tail(5).contains("listening").then_some(())
    })
    .unwrap();
    process
}

/// Returns curl's status and body on standard output.
fn curl(cluster: &Cluster, arguments: &[&str]) -> String {
    let all = [&["-sS", "-m", "20", "-w", " %{http_code}"], arguments].concat();
    cluster.client.run("curl", &all).unwrap()
}

fn url(path: &str) -> String {
    format!("http://{VIP}:80/{path}")
}

fn files(cluster: &Cluster) {
    let www = cluster.scratch().join("www");
    fs::create_dir_all(www.join("a folder")).unwrap();
    fs::write(www.join("a folder/index.html"), "<p>in a folder</p>").unwrap();
    for (name, length) in [("empty", 0), ("1B", 1), ("16KiB", 16 << 10), ("20MiB", 20 << 20)] {
        fs::write(www.join(name), testing::pattern(length)).unwrap();
        Fetch(cluster).file(name).unwrap();
    }
    assert_eq!(curl(cluster, &[&url("a%20folder/")]), "<p>in a folder</p> 200");
    let head = curl(cluster, &["-I", &url("20MiB")]);
    assert!(head.contains("Content-Length: 20971520") && head.ends_with(" 200"), "{head}");
    // Two requests on one connection, and one that must be the last.
    let kept = [url("1B"), url("16KiB")];
    let connects =
        curl(cluster, &["-w", "%{num_connects},", "-o", "/dev/null", "-o", "/dev/null", &kept[0], &kept[1]]);
    assert_eq!(connects, "1,0,", "kept alive");
    Fetch(cluster).sequential("1B", 50).unwrap();
}

/// Files that a client must not get, and malformed requests.
fn refusals(cluster: &Cluster) {
    let www = cluster.scratch().join("www");
    let _ = fs::remove_file(www.join("way-out"));
    std::os::unix::fs::symlink("../demo.yaml", www.join("way-out")).unwrap();
    for (path, status) in [
        ("../demo.yaml", "404"),
        ("%2e%2e/demo.yaml", "404"),
        ("a%20folder/../../demo.yaml", "404"),
        ("way-out", "404"),
        ("a%20folder", "404"),
        ("nothing", "404"),
        ("%00", "400"),
        ("%zz", "400"),
    ] {
        let answer = curl(cluster, &["--path-as-is", &url(path)]);
        assert!(answer.ends_with(&format!(" {status}")) && !answer.contains("csp/v1"), "{path}: {answer}");
    }
    assert!(curl(cluster, &["-X", "DELETE", &url("1B")]).ends_with(" 405"));
    let long = "x".repeat(9000);
    let output = cluster.client.output("curl", &["-sS", "-m", "20", "-H", &format!("X: {long}"), &url("1B")]);
    assert!(output.is_ok(), "431 or a reset, but an end");
    assert!(curl(cluster, &[&url("1B")]).ends_with(" 200"), "the server is still there");
}

/// Clients that read slowly do not delay others, and a load reports no error.
fn load(cluster: &Cluster) {
    std::thread::scope(|scope| {
        let slow = || {
            cluster
                .client
                .run("curl", &["-sS", "-m", "60", "--limit-rate", "8M", "-o", "/dev/null", &url("20MiB")])
        };
        let slow: Vec<_> = (0..3).map(|_| scope.spawn(slow)).collect();
        println!("{}", Fetch(cluster).wrk("16KiB", 32, 2).unwrap());
        let watched = demo::no_kernel_tcp(cluster, Duration::from_secs(1));
        watched.unwrap();
        slow.into_iter().for_each(|thread| drop(thread.join().unwrap().unwrap()));
    });
}

fn echo(cluster: &Cluster) {
    let script = cluster.scratch().join("echo_client.py");
    fs::write(&script, include_str!("../apps/echo_client.py")).unwrap();
    let port = UPLOAD_PORT.to_string();
    for (clients, length) in [("1", "1"), ("8", "1000000"), ("2", "10000000")] {
        let arguments = [&*script.to_string_lossy(), VIP, &port, clients, length];
        let reported = cluster.client.run("/usr/bin/python3", &arguments).unwrap();
        assert_eq!(reported, format!("{clients} of {clients} came back\n"));
    }
}

/// tests/c/streams.c connects from the app host to a server outside of the cluster.
fn active_open(cluster: &Cluster) {
    let script = cluster.scratch().join("echo.py");
    fs::write(&script, include_str!("../apps/echo.py")).unwrap();
    let mut command = cluster.client.command("/usr/bin/python3");
    command.arg(&script).args([CLIENT_ADDRESS, OUTSIDE_PORT]);
    let log = cluster.scratch().join("log/outside.log");
    let mut outside = Process::spawn("the echo server on the client host", command, &log).unwrap();
    let listens = || {
        let sockets = cluster.client.run("ss", &["-ltn"]).ok()?;
        sockets.contains(&format!("{CLIENT_ADDRESS}:{OUTSIDE_PORT}")).then_some(())
    };
    wait_until("the echo server on the client host", DEADLINE, listens).unwrap();
    let there = format!("{CLIENT_ADDRESS}:{OUTSIDE_PORT}");
    let nobody = format!("{CLIENT_ADDRESS}:7");
    for (compiler, flags) in [("clang", &[][..]), ("gcc", &SANITIZERS[..])] {
        let program = compile(cluster, compiler, "tests/c/streams.c", flags);
        let output =
            on_app_host(cluster, Path::new("timeout"), &["60", &program.to_string_lossy(), &there, &nobody])
                .output()
                .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("streams: good"), "{text}\n{}", cluster.all_logs());
    }
    outside.stop().unwrap();
}

/// The agent stops and is restarted: the server keeps its connections and accepts new ones. Then the proxy is
/// killed: its connections break, and the server serves through the new proxy.
fn what_goes_and_comes_back(cluster: &mut Cluster) {
    let serves = |cluster: &Cluster| cluster.answers(&url("1KiB")).then_some(());
    cluster.daemon(Tier::AppNode).unwrap().kill();
    assert!(curl(cluster, &[&url("1B")]).ends_with(" 200"), "without an agent");
    cluster.start(Tier::AppNode).unwrap();
    cluster.wait_live(Tier::AppNode).unwrap();
    cluster.daemon(Tier::ProxyNode).unwrap().kill();
    cluster.start(Tier::ProxyNode).unwrap();
    cluster.wait_live(Tier::ProxyNode).unwrap();
    wait_until("an answer through the new proxy", testing::SERVING_DEADLINE, || serves(cluster))
        .map_err(|error| error.context(cluster.all_logs()))
        .unwrap();
    Fetch(cluster).file("20MiB").unwrap();
}

#[test]
fn c_programs_serve_and_ask_through_the_cluster() {
    let Some(mut cluster) = testing::lay_out("capi") else { return };
    if !csp_support::installed("clang", "clang") {
        return;
    }
    cluster.start_daemons().unwrap();
    cluster.apply_policy().unwrap();
    let www = cluster.scratch().join("www").to_string_lossy().into_owned();
    fs::write(cluster.scratch().join("www/1KiB"), testing::pattern(1 << 10)).unwrap();
    for (compiler, flags) in [("clang", &[][..]), ("gcc", &SANITIZERS[..])] {
        let http = compile(&cluster, compiler, "examples/http_server.c", flags);
        let echo_server = compile(&cluster, compiler, "examples/echo_server.c", flags);
        let mut http = start(&cluster, &http, &[":80", &www]);
        let echoed = ["stream", &format!(":{UPLOAD_PORT}"), "channel", "echo"];
        let mut echo_server = start(&cluster, &echo_server, &echoed);
        let serves = || cluster.answers(&url("1KiB")).then_some(());
        wait_until("an answer of the server in C", testing::SERVING_DEADLINE, serves)
            .map_err(|error| error.context(cluster.all_logs()))
            .unwrap();
        files(&cluster);
        refusals(&cluster);
        load(&cluster);
        echo(&cluster);
        what_goes_and_comes_back(&mut cluster);
        for process in [&mut http, &mut echo_server] {
            let status = process.stop().unwrap();
            assert!(status.success(), "{}: {status}\n{}", process.name(), process.log_tail(20));
        }
    }
    active_open(&cluster);
    assert_eq!(cluster.casualties(), "");
    cluster.stop().unwrap();
}
